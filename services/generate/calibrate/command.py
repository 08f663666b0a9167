"""`fovea calibrate`: choose a checkpoint's calibration, measure it on separate questions, and keep it if it helps."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

from services.core.errors import FoveaError
from services.core.store.checkpoint_files import DESCRIPTION_FILE, read_description
from services.core.store.errors import StoreError
from services.core.store.manifest import MANIFEST_FILE, CheckpointInfo, check_alias, check_model_name
from services.core.store.store import Store
from services.core.store.versions import Version
from services.core.text_files import BadFile
from services.generate.calibrate.bench import (
    AnyBench,
    Checkpoint,
    Data,
    VllmModel,
    VllmUrl,
    drawn,
    estimates_to_try,
    open_bench,
    parse_positions,
    vllm_address,
)
from services.generate.calibrate.choice import TABLE_PROMPTS, Plan, ProfileChoice, bias_tables, choose_calibration
from services.generate.calibrate.fits import fitted_relevance
from services.generate.calibrate.search import Limits, RelSetting, Tried
from services.generate.data.questions import Example
from services.generate.model.profile import (
    Answerability,
    BiasKind,
    BiasTable,
    CalibrationProfile,
    RowScope,
    SpanRule,
    read_profile,
    write_profile,
)
from services.generate.retrieval_heads import Head, HeadScore
from services.jobs.checkpoints import CheckpointSource, Device, open_store
from services.jobs.code_revision import code_revision
from services.jobs.interruption import interruptible
from services.jobs.options import StoreUrl, among, command_line, output_file, output_folder
from services.jobs.progress import standard_bars

KIND = "causal-lm"
MAX_ROWS = 12
# The standard error of an accuracy on as many held-out questions is up to 5 percentage points.
ENOUGH_QUESTIONS = 100
# answerable questions for one that no document answers, in data that have these
ANSWERABLE_FOR_ONE = 3
NO_HEADS = "none"
STOPPED = "Stopped. Nothing is kept; run the same command to begin again."

app = command_line()


Positions = Annotated[str, typer.Option(help="Positions of the gold document, counted from 0: 0,4,9, or all.")]
Prompts = Annotated[
    int, typer.Option(min=2, help="Questions to choose settings with, and as many again to decide with.")
]
NumMeasured = Annotated[int, typer.Option(min=1, help="Prompts to rank the sources of relevance with.")]
Sources = Annotated[
    int, typer.Option(min=1, help="Sources of relevance to try for each span rule, those that rank best.")
]
Heads = Annotated[
    str, typer.Option(help="Scores to choose single heads by, beside layers: some of core and qr, or none.")
]
Bias = Annotated[
    str,
    typer.Option(
        help="Bias estimates to choose among: some of exact, tree, single, query and cached. All settings are tried "
        "with tree, or with query if it is alone."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        callback=output_folder, help="The folder to write calibration.json into, such as the checkpoint's own."
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(callback=output_file, help="A JSON file for the profile and everything that was tried."),
]


@app.command()
@interruptible(STOPPED)
def calibrate(
    checkpoint: Checkpoint,
    data: Data,
    documents: Annotated[int, typer.Option(min=2, help="Documents per question.")] = 10,
    positions: Positions = "all",
    prompts: Prompts = 800,
    measured: NumMeasured = 200,
    sources: Sources = 3,
    heads: Heads = NO_HEADS,
    span_rule: Annotated[str, typer.Option(help="Span rules to try.")] = "newline,text",
    row_scope: Annotated[str, typer.Option(help="Choices of calibrated prompt rows to try.")] = "last,tail",
    bias: Bias = "tree,exact,single",
    seed: Annotated[int, typer.Option(help="Seed of the questions that are drawn.")] = 0,
    output: Output = None,
    publish: Annotated[str | None, typer.Option(help="Publish a version with the profile under this name.")] = None,
    alias: Annotated[str, typer.Option(help="The alias that names the published version.")] = "latest",
    save: Save = None,
    device: Device = "auto",
    vllm_url: VllmUrl = None,
    vllm_model: VllmModel = "",
    store_url: StoreUrl = None,
) -> None:
    """Choose and measure a checkpoint's attention calibration; off where nothing helps on held-out questions.

    One of --publish, --output and --save is required.
    """
    if output is None and publish is None and save is None:
        raise typer.BadParameter("say where to keep the calibration: --publish NAME, --output FOLDER or --save FILE")
    kinds = among(bias, get_args(BiasKind), "--bias")
    search_bias, kinds = estimates_to_try(kinds, is_over_vllm=vllm_url is not None)
    limits = Limits(
        rel_settings=sources,
        row_scopes=among(row_scope, get_args(RowScope), "--row-scope"),
        head_scores=() if heads == NO_HEADS else among(heads, get_args(HeadScore), "--heads"),
    )
    asked = parse_positions(positions, documents)
    span_rules = among(span_rule, get_args(SpanRule), "--span-rule")
    plan = Plan(asked, prompts, measured, span_rules, search_bias, kinds, limits)
    keeping = Keeping(output, save, publish, alias, store_url)
    if publish is not None:
        _check_publication(publish, alias, store_url)
    address = vllm_address(checkpoint, vllm_url, vllm_model)
    bench, source, _ = open_bench(data, checkpoint, store_url, device, address)
    run(bench, source, plan, documents, seed, keeping)


@dataclass(frozen=True)
class Keeping:
    """Destinations of a calibration: a folder, a file, a name in the store."""

    output: Path | None
    save: Path | None
    publish: str | None
    alias: str
    store_url: str | None

    def keep(
        self, choice: ProfileChoice, profile: CalibrationProfile, source: CheckpointSource, info: CheckpointInfo,
        seed: int, console: Console,
    ) -> None:  # fmt: skip
        """Write what was asked for, and print where it is."""
        if self.save is not None:
            self.save.parent.mkdir(parents=True, exist_ok=True)
            self.save.write_text(json.dumps(_record(choice, profile, source, seed), indent=2) + "\n")
        if self.output is not None:
            self.output.mkdir(parents=True, exist_ok=True)
            console.print(f"wrote {write_profile(profile, self.output)}")
        if self.publish is not None:
            store = open_store(self.store_url)
            console.print(f"published {_publish(source, info, profile, self.publish, self.alias, store)}")


def run(bench: AnyBench, source: CheckpointSource, plan: Plan, documents: int, seed: int, keeping: Keeping) -> None:
    """Choose a profile, print it and what was tried, and keep it."""
    console = Console(highlight=False, width=200)
    questions, prompts = bench.questions, plan.num_prompts
    info = _known_info(source)
    examples = drawn(questions, "calibration", documents, 2 * prompts, seed, "--documents")
    unanswerable = questions.unanswerable("calibration", documents, 2 * (prompts // ANSWERABLE_FOR_ONE), seed)
    of_tables = drawn(questions, "calibration", documents, TABLE_PROMPTS, seed, "--documents")
    try:
        with standard_bars().bar("") as bar:
            watched = replace(bench, on_progress=bar.advance)
            choice = choose_calibration(watched, examples, plan, bar.begin, unanswerable)
            bar.begin("tables of the bias")
            tables = _tables(watched, choice.profile, of_tables)
            bar.begin("relevance of a document")
            fit = fitted_relevance(watched, of_tables, choice.profile)
    except (BadFile, FoveaError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    fitted = {"tables": tables, "answerability": _answerability(source), "relevance": fit}
    profile = choice.profile.model_copy(update=fitted)
    print_choice(choice, console)
    try:
        keeping.keep(choice, profile, source, info, seed, console)
        console.print(decision(profile), soft_wrap=True)
    finally:  # print it even if it can't be saved
        console.print(profile.model_dump_json(), soft_wrap=True, markup=False)


def _tables(bench: AnyBench, profile: CalibrationProfile, examples: Sequence[Example]) -> Sequence[BiasTable]:
    """Make an enabled profile's tables from separate questions with equally many documents, gold anywhere."""
    if not profile.enabled or profile.rel_scope == "per_head":
        return ()
    return tuple(bias_tables(bench, examples, range(len(examples[0].documents)), profile))


def _answerability(source: CheckpointSource) -> Answerability | None:
    """Keep what the checkpoint's profile says about its refusal, without what was fitted for another calibration."""
    earlier = read_profile(source.directory)
    if earlier is None or earlier.answerability is None:
        return None
    return earlier.answerability.model_copy(update={"calibrated": None})


def print_choice(choice: ProfileChoice, console: Console) -> None:
    """Print the tried settings, and the chosen profile."""
    console.print(_rel_table(choice.rel_settings))
    for number, tried in enumerate(choice.rounds, start=1):
        console.print(_tried_table(f"Round {number}: {tried[0].score.num_questions} questions", tried))
    console.print(_tried_table("Estimates of the bias", choice.estimates))
    console.print(_tried_table("Held-out questions", choice.held_out))


def decision(profile: CalibrationProfile) -> str:
    """Say whether calibration is on, and which measurements decided that."""
    gain = profile.gain
    if not gain:
        return "Calibration is off: there was no setting to try."
    count = round(gain["num_prompts"])
    middle, mean = (
        f"from {100 * gain[f'{prefix}vanilla']:.2f} % to {100 * gain[f'{prefix}calibrated']:.2f} %"
        for prefix in ("middle_", "")
    )
    told = f"on {count} held-out questions, accuracy with the gold in the middle went {middle}, its mean {mean}"
    if profile.enabled:
        said = f"Calibration is on: {told}."
    else:
        said = (
            "Calibration is off: no finalist raised the accuracy with the gold in the middle without lowering its mean"
            f" over all positions; with the last one, {told}."
        )
    if "num_unanswerable" in gain:
        said += (
            f" Of {round(gain['num_unanswerable'])} unanswerable questions, {100 * gain['refused_vanilla']:.2f} % were"
            f" refused without and {100 * gain['refused_calibrated']:.2f} % with it."
        )
    if count < ENOUGH_QUESTIONS:
        said += f" So few questions say little: give at least {ENOUGH_QUESTIONS} --prompts."
    return said


def _rel_table(settings: Sequence[RelSetting]) -> Table:
    table = Table(title="Sources of relevance, gold in the middle", title_justify="left")
    for heading in ("span", "rel", "layers or heads", "R@1", "R@3", "vanilla R@1", "vanilla R@3", "spread"):
        table.add_column(heading)
    for setting in sorted(settings, key=lambda one: -one.merit)[:MAX_ROWS]:
        recalls = [*setting.recall.values(), *setting.vanilla_recall.values()]
        table.add_row(
            setting.span_rule, setting.scope, _sources(setting.layers, setting.heads),
            *(f"{recall:.3f}" for recall in recalls),
            f"{setting.spread:.1e}",
        )  # fmt: skip
    return table


def _tried_table(title: str, tried: Sequence[Tried]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("bias", "span", "rel", "of", "layers", "t", "rows", "average", "refused", "by position"):
        table.add_column(heading)
    for one in tried[:MAX_ROWS]:
        score = one.score
        shares = " ".join(f"{100 * score.accuracy({position}):.0f}" for position in sorted(score.asked))
        refused = f"{100 * score.refused / score.unanswerable:.0f}" if score.unanswerable else ""
        table.add_row(*_settings(one.profile), f"{100 * score.accuracy():.2f}", refused, shares)
    return table


def _settings(profile: CalibrationProfile | None) -> Sequence[str]:
    if profile is None:
        return ("vanilla", *[""] * 6)
    estimate = profile.bias if profile.dummy_tokens is None else f"{profile.bias}, saving"
    return (
        estimate, profile.span_rule, profile.rel_scope, _sources(profile.rel_layers, profile.rel_heads),
        _layers(profile.layers), f"{profile.temperature:g}", profile.row_scope,
    )  # fmt: skip


def _layers(layers: Sequence[int]) -> str:
    return f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"


def _sources(layers: Sequence[int], heads: Sequence[Head]) -> str:
    """Name layers, or heads by layer and number, as in 2.0 2.3."""
    return " ".join(f"{layer}.{head}" for layer, head in heads) or _layers(layers)


def _record(
    choice: ProfileChoice, profile: CalibrationProfile, source: CheckpointSource, seed: int
) -> dict[str, object]:
    """All tried settings, as JSON values."""

    def told(tried: Sequence[Tried]) -> list[dict[str, object]]:
        return [
            {"profile": one.profile and one.profile.model_dump(mode="json", exclude={"gain", "tables"}),
             **asdict(one.score)}
            for one in tried
        ]  # fmt: skip

    return {
        "checkpoint": source.label,
        "seed": seed,
        "profile": profile.model_dump(mode="json"),
        "rel_settings": [asdict(setting) for setting in choice.rel_settings],
        "rounds": [told(tried) for tried in choice.rounds],
        "estimates": told(choice.estimates),
        "held_out": told(choice.held_out),
    }


def _check_publication(name: str, alias: str, store_url: str | None) -> None:
    """Check options before the work. Raises BadParameter for values that the store rejects, or a missing store."""
    checks = (
        ("--publish", lambda: check_model_name(name)),
        ("--alias", lambda: check_alias(alias)),
        ("--store-url", lambda: open_store(store_url).names()),
    )
    for option, check in checks:
        try:
            check()
        except StoreError as error:
            raise typer.BadParameter(str(error), param_hint=option) from error


def _known_info(source: CheckpointSource) -> CheckpointInfo:
    """Read the publisher's description of the checkpoint. Raises BadParameter for one that can't be read."""
    if source.manifest is not None:
        known = source.manifest.model_dump(include=set(CheckpointInfo.model_fields))
        return CheckpointInfo(**known | {"base": source.label})
    if not (source.directory / DESCRIPTION_FILE).is_file():
        return CheckpointInfo(kind=KIND)
    try:
        return read_description(source.directory).info().model_copy(update={"base": source.label})
    except StoreError as error:
        raise typer.BadParameter(str(error), param_hint="CHECKPOINT") from error


def _publish(
    source: CheckpointSource, info: CheckpointInfo, profile: CalibrationProfile, name: str, alias: str, store: Store
) -> Version:
    """Publish a version with the checkpoint's files and the profile, and with its gain in the manifest."""
    calibration = {"enabled": profile.enabled, **profile.gain}
    info = info.model_copy(
        update={
            "metrics": {**info.metrics, "calibration": calibration},
            "code_revision": code_revision() or info.code_revision,
        }
    )
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "checkpoint"
        shutil.copytree(source.directory, directory)
        (directory / MANIFEST_FILE).unlink(missing_ok=True)
        write_profile(profile, directory)
        return store.publish(name, directory, info, alias=alias)
