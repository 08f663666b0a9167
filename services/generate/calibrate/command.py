"""`fovea calibrate`: choose a checkpoint's calibration on questions of its own, measure it, and keep what helps."""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from services.core.store.errors import StoreError
from services.core.store.manifest import MANIFEST_FILE, check_alias, check_model_name
from services.core.store.versions import Version
from services.generate.calibrate.bench import Bench
from services.generate.calibrate.choice import TABLE_PROMPTS, Choice, Plan, bias_tables, choose_calibration
from services.generate.calibrate.search import Limits, RelSetting, Tried
from services.generate.data.question_sets import GENERATED, Part, QuestionSet, question_set
from services.generate.data.questions import BadData, Example
from services.generate.generation.bias import EstimateKind
from services.generate.model.language_model import LanguageModel
from services.generate.profile import BiasKind, BiasTable, CalibrationProfile, RowScope, SpanRule, write_profile
from services.jobs.checkpoints import CheckpointSource, find_checkpoint, open_store
from services.jobs.options import output_file, output_folder
from services.nn.devices import DeviceName, DeviceOptions

MAX_ROWS = 12

NameT = TypeVar("NameT", bound=str)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def calibrate(
    checkpoint: Annotated[str, typer.Argument(help="A Hugging Face folder, or NAME[@ALIAS] in the store.")],
    data: Annotated[
        str, typer.Option(help="generated, or a file of lost-in-the-middle's (.jsonl.gz) or SynthWiki's (.csv).")
    ] = GENERATED,
    documents: Annotated[int, typer.Option(min=2, help="Documents a question.")] = 10,
    positions: Annotated[str, typer.Option(help="Of gold documents, counted from 0: 0,4,9, or all.")] = "all",
    prompts: Annotated[int, typer.Option(min=2, help="Questions to choose by, and as many to decide by.")] = 800,
    measured: Annotated[int, typer.Option(min=1, help="Prompts that rank the sources of relevance.")] = 200,
    span_rule: Annotated[str, typer.Option(help="Span rules to try.")] = "newline,text",
    row_scope: Annotated[str, typer.Option(help="Prompt rows to calibrate, to try.")] = "last,tail",
    bias: Annotated[
        str, typer.Option(help="Estimates to choose among, of exact, tree, single and cached.")
    ] = "tree,exact,single",
    search_bias: Annotated[EstimateKind, typer.Option(help="The estimate that all settings are tried with.")] = "tree",
    tables: Annotated[
        str | None, typer.Option(help="Numbers of documents with a table for the cached bias instead of --documents.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one draws other questions.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            callback=output_folder, help="The folder to write calibration.json into, such as the checkpoint's own."
        ),
    ] = None,
    publish: Annotated[str | None, typer.Option(help="Publish a version with the profile under this name.")] = None,
    alias: Annotated[str, typer.Option(help="The alias that names the published version.")] = "latest",
    save: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="A JSON file for the profile and everything that was tried."),
    ] = None,
    max_cached_tokens: Annotated[int, typer.Option(min=1, help="Tokens that prompts take side by side.")] = 65_536,
    device: Annotated[DeviceName, typer.Option(help="Where to run.")] = "auto",
    store_url: Annotated[str | None, typer.Option(envvar="FOVEA_STORE_URL", help="The model store.")] = None,
) -> None:
    """Choose and measure a checkpoint's attention calibration; off where nothing helps on held-out questions."""
    plan = Plan(
        positions=parse_positions(positions, documents),
        num_prompts=prompts,
        num_measured=measured,
        span_rules=among(span_rule, get_args(SpanRule), "--span-rule"),
        search_bias=search_bias,
        bias_kinds=among(bias, get_args(BiasKind), "--bias"),
        limits=Limits(row_scopes=among(row_scope, get_args(RowScope), "--row-scope")),
    )
    if publish is not None:
        _check_publication(publish, alias, store_url)
    counts = parse_numbers(tables or str(documents), "--tables")
    console = Console(highlight=False, width=200)
    questions, source, model = load(data, checkpoint, device, store_url)
    bench = Bench(model, questions, max_cached_tokens)
    examples = drawn(questions, "calibration", documents, 2 * prompts, seed, "--documents")
    of_tables = [drawn(questions, "calibration", count, TABLE_PROMPTS, seed, "--tables") for count in counts]
    try:
        with Progress(console=Console(stderr=True)) as progress:
            choice = _chosen(bench, examples, plan, progress)
        found = [one for those in of_tables for one in _tables(bench, choice.profile, those)]
    except (BadData, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    profile = choice.profile.model_copy(update={"tables": tuple(found)})
    print_choice(choice, console)
    try:
        if save is not None:
            save.parent.mkdir(parents=True, exist_ok=True)
            save.write_text(json.dumps(_record(choice, profile, source, seed), indent=2) + "\n")
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            console.print(f"wrote {write_profile(profile, output)}")
        if publish is not None:
            console.print(f"published {_published(source, profile, publish, alias, store_url)}")
    finally:  # what can't be kept is printed all the same
        console.print(profile.model_dump_json(), soft_wrap=True, markup=False)


def load(
    data: str, checkpoint: str, device: DeviceName, store_url: str | None
) -> tuple[QuestionSet, CheckpointSource, LanguageModel]:
    """Data, then checkpoint, then model. Raises BadParameter for one that there is not."""
    try:
        questions = question_set(data)
    except BadData as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error
    try:
        source = find_checkpoint(checkpoint, store_url)
        return questions, source, LanguageModel.load(source.directory, DeviceOptions(device=device))
    except (OSError, StoreError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="CHECKPOINT") from error


def drawn(
    questions: QuestionSet, part: Part, num_documents: int, count: int | None, seed: int, option: str
) -> list[Example]:
    """`QuestionSet.examples`. Raises BadParameter for a number of documents, `option`, that there are not."""
    try:
        return questions.examples(part, num_documents, count, seed)
    except BadData as error:
        raise typer.BadParameter(str(error), param_hint=f"--data, {option}") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def parse_positions(text: str, num_documents: int) -> tuple[int, ...]:
    """`all`, or numbers between commas. Raises BadParameter for a position that there is not."""
    found = tuple(range(num_documents)) if text == "all" else parse_numbers(text, "--positions")
    if found[0] < 0 or found[-1] >= num_documents:
        message = f"the positions of {num_documents} documents are 0 to {num_documents - 1}"
        raise typer.BadParameter(message, param_hint="--positions")
    return found


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers between commas, in order and each once. Raises BadParameter."""
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not numbers between commas", param_hint=option) from error


def among(text: str, known: tuple[NameT, ...], option: str) -> tuple[NameT, ...]:
    """Names between commas, in the order of `known`. Raises BadParameter for one that is not known."""
    wanted = text.split(",")
    for name in wanted:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)
    return tuple(name for name in known if name in wanted)


def _chosen(bench: Bench, examples: Sequence[Example], plan: Plan, progress: Progress) -> Choice:
    """The choice, with a bar for each of its steps."""
    task = progress.add_task("")

    def begin(what: str, num_prompts: int) -> None:
        progress.reset(task, description=what, total=num_prompts)

    watched = replace(bench, on_progress=lambda count: progress.advance(task, count))
    return choose_calibration(watched, examples, plan, begin)


def _tables(bench: Bench, profile: CalibrationProfile, examples: Sequence[Example]) -> Sequence[BiasTable]:
    """Of a profile that is on; an own draw of questions with equally many documents, gold anywhere."""
    if not profile.enabled or profile.rel_scope == "per_head":
        return ()
    return tuple(bias_tables(bench, examples, range(len(examples[0].documents)), profile))


def print_choice(choice: Choice, console: Console) -> None:
    """What was tried, and what is kept."""
    console.print(_rel_table(choice.rel_settings))
    for number, tried in enumerate(choice.rounds, start=1):
        console.print(_tried_table(f"Round {number}: {tried[0].score.num_questions} questions", tried))
    console.print(_tried_table("Estimates of the bias", choice.estimates))
    console.print(_tried_table("Held-out questions", choice.held_out))


def _rel_table(settings: Sequence[RelSetting]) -> Table:
    table = Table(title="Sources of relevance, gold in the middle", title_justify="left")
    for heading in ("span", "rel", "layers", "R@1", "R@3", "vanilla R@1", "vanilla R@3", "spread"):
        table.add_column(heading)
    for setting in sorted(settings, key=lambda one: -one.merit)[:MAX_ROWS]:
        recalls = [*setting.recall.values(), *setting.vanilla_recall.values()]
        table.add_row(
            setting.span_rule, setting.scope, _layers(setting.layers), *(f"{recall:.3f}" for recall in recalls),
            f"{setting.spread:.1e}",
        )  # fmt: skip
    return table


def _tried_table(title: str, tried: Sequence[Tried]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("bias", "span", "rel", "rel layers", "layers", "t", "rows", "average", "by position"):
        table.add_column(heading)
    for one in tried[:MAX_ROWS]:
        score = one.score
        shares = " ".join(f"{100 * score.accuracy({position}):.0f}" for position in sorted(score.asked))
        table.add_row(*_settings(one.profile), f"{100 * score.accuracy():.2f}", shares)
    return table


def _settings(profile: CalibrationProfile | None) -> Sequence[str]:
    if profile is None:
        return ("vanilla", *[""] * 6)
    return (
        profile.bias, profile.span_rule, profile.rel_scope, _layers(profile.rel_layers), _layers(profile.layers),
        f"{profile.temperature:g}", profile.row_scope,
    )  # fmt: skip


def _layers(layers: Sequence[int]) -> str:
    return f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"


def _record(choice: Choice, profile: CalibrationProfile, source: CheckpointSource, seed: int) -> dict[str, object]:
    """Everything that was tried, as JSON."""

    def told(tried: Sequence[Tried]) -> list[dict[str, object]]:
        return [
            {"profile": one.profile and one.profile.model_dump(mode="json", exclude={"gain", "tables"}),
             "right": one.score.right, "asked": one.score.asked}
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
    """Before the work. Raises BadParameter for what the store does not accept, and for a store that there is not."""
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


def _published(
    source: CheckpointSource, profile: CalibrationProfile, name: str, alias: str, store_url: str | None
) -> Version:
    """A new version: the checkpoint's files, the profile beside them and its gain in the manifest."""
    calibration = {"enabled": profile.enabled, **profile.gain}
    info = source.info.model_copy(
        update={
            "base": source.label if source.name is not None else source.info.base,
            "metrics": {**source.info.metrics, "calibration": calibration},
            "code_revision": os.environ.get("FOVEA_CODE_REVISION", source.info.code_revision),
        }
    )
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "checkpoint"
        shutil.copytree(source.directory, directory)
        (directory / MANIFEST_FILE).unlink(missing_ok=True)
        write_profile(profile, directory)
        return open_store(store_url).publish(name, directory, info, alias=alias)
