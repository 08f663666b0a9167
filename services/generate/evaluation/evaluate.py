"""`fovea evaluate litm`: found-in-the-middle by the dissertation's protocols (chapter 3, appendix B), on any model.

Protocols: `accuracy` is Table B.2 and Figures 3.5 and 3.6, `recall` Table 3.3, `attention` Table 3.1 and Figures 3.3
and 3.4, `hypotheses` Tables 3.2 and B.1; `estimates` compares the estimates of the bias with the paper's.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import ValidationError
from rich.console import Console

from services.core.errors import FoveaError
from services.core.text_files import BadFile
from services.generate.calibrate.bench import (
    Bench,
    Checkpoint,
    Data,
    VllmModel,
    VllmUrl,
    drawn,
    open_bench,
    parse_positions,
    vllm_address,
)
from services.generate.calibrate.choice import TABLE_PROMPTS, bias_tables
from services.generate.data.questions import Example, Part, at_positions
from services.generate.evaluation.protocols import (
    CALIBRATED,
    METHODS,
    VANILLA,
    AnswerOptions,
    Scores,
    Study,
    accuracy_by_position,
    attention_and_use,
    compare_estimates,
    hypotheses,
    num_prompts,
    recall_at_3,
)
from services.generate.evaluation.results import RESULT_FILES, Protocol, Result, figures, print_tables
from services.generate.model.language_model import ModelConfig
from services.generate.model.profile import (
    BadProfile,
    BiasKind,
    BiasTable,
    CalibrationProfile,
    DummyForm,
    complaints,
    paper_profile,
    read_profile,
    read_profile_file,
)
from services.jobs.checkpoints import CheckpointSource, Device
from services.jobs.interruption import interruptible
from services.jobs.options import StoreUrl, among, command_line, output_folder, parse_numbers, positive, results_file
from services.jobs.plots import draw
from services.jobs.progress import Bar, standard_bars

PAPER = "paper"
STOPPED = "Stopped. The protocols that had ended are reported above, and kept with --save."
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

app = command_line()


@dataclass(frozen=True)
class Plan:
    """Protocols and methods to run, and their questions; without `positions`, gold is placed at three positions."""

    protocols: tuple[Protocol, ...]
    methods: tuple[str, ...]
    positions: str | None
    limit: int | None
    part: Part
    seed: int

    def positions_of(self, num_documents: int) -> tuple[int, ...]:
        """The requested positions, or the dissertation's: first, middle and last."""
        if self.positions is None:
            return tuple(sorted({0, (num_documents - 1) // 2, num_documents - 1}))
        return parse_positions(self.positions, num_documents)


Protocols = Annotated[str, typer.Option(help=f"Protocols to run, among {', '.join(PROTOCOLS)}.")]
Positions = Annotated[
    str | None,
    typer.Option(
        help="Positions of the gold document, counted from 0: 0,4,9, or all; by default first, middle and last."
    ),
]
Methods = Annotated[str, typer.Option(help=f"Rows of Table B.2: all, or some of {', '.join(METHODS)}.")]
AllQuestions = Annotated[
    bool, typer.Option("--all-questions", help="Include the questions of a file that calibration is chosen on.")
]
Calibration = Annotated[
    str | None,
    typer.Option(help="A calibration.json to use instead of the checkpoint's, or paper for the paper's settings."),
]
Temperature = Annotated[float | None, typer.Option(callback=positive, help="Temperature, instead of the profile's.")]
Save = Annotated[
    Path | None,
    typer.Option(callback=results_file(RESULT_FILES.load), help="A JSON file to add the scores to."),
]
Plots = Annotated[Path | None, typer.Option(callback=output_folder, help="A folder for the figures, as SVG.")]


@app.command()
@interruptible(STOPPED)
def litm(
    checkpoint: Checkpoint,
    data: Data,
    documents: Annotated[str, typer.Option(help="Documents per question; several as in 10,20.")] = "10",
    protocols: Protocols = "accuracy,recall",
    positions: Positions = None,
    methods: Methods = "all",
    limit: Annotated[int | None, typer.Option(min=1, help="Evaluate only this many questions.")] = None,
    all_questions: AllQuestions = False,
    seed: Annotated[int, typer.Option(help="Seed of distractors and of the questions' order.")] = 0,
    calibration: Calibration = None,
    bias: Annotated[BiasKind | None, typer.Option(help="Bias estimate, instead of the profile's.")] = None,
    temperature: Temperature = None,
    layers: Annotated[str | None, typer.Option(help="Layers to calibrate, as in 2,3, not the profile's.")] = None,
    dummy: Annotated[DummyForm | None, typer.Option(help="Form of dummies, instead of the profile's.")] = None,
    save: Save = None,
    plots: Plots = None,
    device: Device = "auto",
    vllm_url: VllmUrl = None,
    vllm_model: VllmModel = "",
    store_url: StoreUrl = None,
) -> None:
    """Evaluate a model's answers by the position of the gold document, with and without attention calibration."""
    every = METHODS if vllm_url is None else (VANILLA, CALIBRATED)
    plan = Plan(
        among(protocols, PROTOCOLS, "--protocols"),
        every if methods == "all" else among(methods, METHODS, "--methods"),
        positions,
        limit,
        "all" if all_questions else "evaluation",
        seed,
    )
    counts = sorted(parse_numbers(documents, int, "--documents"))
    if vllm_url is not None:
        _check_for_vllm(plan)
    address = vllm_address(checkpoint, vllm_url, vllm_model)
    bench, source, config = open_bench(data, checkpoint, store_url, device, address)
    asked = [drawn(bench.questions, plan.part, count, limit, seed, "--documents") for count in counts]
    for count in counts:
        plan.positions_of(count)  # fail before any answers are computed
    changes = {"bias": bias, "temperature": temperature, "layers": layers, "dummy": dummy}
    profile = _profile(source, config, calibration, changes)
    options = AnswerOptions(bench.questions.max_tokens, bench.questions.stop)
    if isinstance(bench, Bench):
        options = replace(options, max_cached_tokens=bench.max_cached_tokens)
    run_all(Study(bench, profile, options), plan, asked, source, save, plots)


def run_all(
    study: Study,
    plan: Plan,
    asked: Sequence[Sequence[Example]],
    source: CheckpointSource,
    save: Path | None,
    plots: Path | None,
) -> None:
    """Run the protocols on each group of examples, and report; also what had ended when it is interrupted."""
    results: list[Result] = []
    try:
        with standard_bars().bar("") as bar:
            for examples in asked:
                results.extend(run(study, plan, examples, source, bar))
    except KeyboardInterrupt:
        if results:
            report(results, save, plots)
        raise
    except (BadFile, BadProfile, FoveaError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    report(results, save, plots)


def _check_for_vllm(plan: Plan) -> None:
    """Raises BadParameter for what needs the model in this process."""
    if plan.protocols != ("accuracy",):
        raise typer.BadParameter(
            "over vLLM there is only accuracy: give --protocols accuracy", param_hint="--protocols"
        )
    if not {VANILLA, CALIBRATED}.issuperset(plan.methods):
        methods = f'"{VANILLA},{CALIBRATED}"'
        raise typer.BadParameter(f"vLLM does not reorder: give --methods {methods}", param_hint="--methods")


def run(study: Study, plan: Plan, examples: Sequence[Example], source: CheckpointSource, bar: Bar) -> Iterator[Result]:
    """Run the protocols on examples with equally many documents, one result for each."""
    num_documents = len(examples[0].documents)
    watched = replace(study, bench=replace(study.bench, on_progress=bar.advance))
    questions = study.bench.questions
    positions = plan.positions_of(num_documents)
    settings = {
        "version": source.label,
        "seed": plan.seed,
        "questions": len(examples),
        "part": plan.part,
        "distractors": questions.distractors,
        "profile": study.profile.model_dump(mode="json", exclude={"gain", "tables"}),
    }
    protocols: Mapping[Protocol, Callable[[], Scores]] = {
        "accuracy": lambda: accuracy_by_position(watched, examples, positions, plan.methods),
        "recall": lambda: recall_at_3(watched, examples),
        "attention": lambda: attention_and_use(watched, examples, plan.seed),
        "hypotheses": lambda: hypotheses(watched, examples),
        "estimates": lambda: _estimates(watched, examples, num_documents, plan),
    }
    for protocol in plan.protocols:
        total = num_prompts(protocol, len(examples), num_documents, positions, plan.methods)
        bar.begin(f"{protocol} with {num_documents} documents, prompts", total)
        yield Result(source.label, protocol, questions.name, num_documents, protocols[protocol](), settings)


def report(results: Sequence[Result], save: Path | None, plots: Path | None) -> None:
    """Print the tables of all saved results, save the scores, draw figures and print the new scores as the last line.

    The scores are printed even if they can't be saved.
    """
    kept = RESULT_FILES.load([save]) if save is not None and save.is_file() else []
    shown = RESULT_FILES.merge([*kept, *results])
    console = Console(width=200, highlight=False)
    print_tables(shown, console)
    try:
        if save is not None:
            RESULT_FILES.save(results, save)
        if plots is not None:
            plots.mkdir(parents=True, exist_ok=True)
            for figure, panels in figures(shown).items():
                path = plots / f"figure-{figure}.svg"
                path.write_text(draw(panels))
                console.print(f"wrote {path}")
    finally:
        console.print(json.dumps([asdict(result) for result in results]), soft_wrap=True, markup=False)


def _estimates(study: Study, examples: Sequence[Example], num_documents: int, plan: Plan) -> Scores:
    """Compare the estimates of the bias; the table of the cached one is made from the questions for calibration."""
    profile = study.profile
    tables: Sequence[BiasTable] = profile.tables
    if not any(table.num_documents == num_documents for table in tables):
        own = study.bench.questions.examples("calibration", num_documents, TABLE_PROMPTS, plan.seed)
        tables = list(bias_tables(study.own, own, range(num_documents), profile))
    placed = at_positions(examples, plan.positions_of(num_documents))
    return compare_estimates(study, placed, tables, get_args(BiasKind))


def _profile(
    source: CheckpointSource, model: ModelConfig, calibration: str | None, changes: Mapping[str, Any]
) -> CalibrationProfile:
    """The named profile, else the checkpoint's own, else the paper's, with the changes of the options.

    Raises BadParameter for a profile that cannot be read or does not fit the model, and for changes that do not fit.
    """
    named = "CHECKPOINT" if calibration is None else "--calibration"
    num_layers = model.num_layers
    try:
        found = _profile_named(source, num_layers, calibration).check_layers(num_layers, model.num_heads)
    except (OSError, BadProfile) as error:
        raise typer.BadParameter(str(error), param_hint=named) from error
    wanted = {field: value for field, value in changes.items() if value is not None}
    if "layers" in wanted:
        wanted["layers"] = tuple(sorted(parse_numbers(wanted["layers"], int, "--layers")))
        if wanted["layers"][0] < 0 or wanted["layers"][-1] >= num_layers:
            raise typer.BadParameter(f"the model's layers are 0 to {num_layers - 1}", param_hint="--layers")
    try:
        return found.changed(wanted)
    except ValidationError as error:
        given = ", ".join(f"--{field}" for field in wanted)
        raise typer.BadParameter(complaints(error), param_hint=given) from error


def _profile_named(source: CheckpointSource, num_layers: int, calibration: str | None) -> CalibrationProfile:
    """Read the named profile. Raises OSError or BadProfile for one that cannot be read."""
    if calibration is None:
        own = read_profile(source.directory)
        return own if own is not None and own.enabled else paper_profile(num_layers)
    if calibration == PAPER:
        return paper_profile(num_layers)
    return read_profile_file(Path(calibration))
