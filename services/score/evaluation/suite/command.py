"""`fovea evaluate suite MODEL --data DIR --save FILE`: the papers' benchmarks in one resumable run."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused
from services.core.text_files import BadFile
from services.jobs.checkpoints import Device
from services.jobs.interruption import EXIT_FAILED
from services.jobs.options import StoreUrl, among, command_line, results_file, split
from services.score.evaluation.judges import RESULT_FILES, Judge, Result
from services.score.evaluation.loading import (
    JudgeOptions,
    Limit,
    Named,
    SimilarityOption,
    exits,
    find_model,
    load_judge,
)
from services.score.evaluation.suite.parts import PARTS, Part, Prepared, fingerprint
from services.score.evaluation.tables import numbers_of, print_tables


@dataclass
class Outcome:
    """The results of a run, and the parts, by name, that were evaluated now, before, or not, with the reason.

    Those `kept` without data, because these are gone, are also in `unchecked`.
    """

    results: list[Result] = field(default_factory=list)
    evaluated: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """The parts of a run by name, in their folder; `limit` records of each task are used.

    For several models, `keeps_read` keeps what was read of all parts in memory. For a judge that does not read images,
    none need be there.
    """

    data: Path
    names: Sequence[str] = tuple(PARTS)
    limit: int | None = None
    keeps_read: bool = False
    reads_images: bool = True
    _read: dict[str, Prepared] = field(default_factory=dict, compare=False, repr=False)

    def prepare(self, name: str) -> Prepared:
        """Read a part's files. Raises BadFile."""
        prepared = self._read.get(name) or PARTS[name].prepare(self.data, self.limit, self.reads_images)
        if self.keeps_read:
            self._read[name] = prepared
        return prepared


def run_suite(
    load: Callable[[], Judge],
    suite: Suite,
    *,
    judge: str,
    settings: Mapping[str, Any],
    save: Path | None = None,
    tell: Callable[[str], None] = print,
) -> Outcome:
    """Evaluate the parts of a suite and save each when it is finished.

    The model is loaded when the first part needs it, so that a run with nothing left to do loads none. A part is
    finished if `save` has all of its scores by this judge, with these settings and of these data, or if its data are
    gone. Raises Refused and OSError; what was evaluated before is saved.
    """
    outcome = Outcome()
    loaded: Judge | None = None
    wanted = {**settings, "limit": suite.limit}
    saved = RESULT_FILES.load([save]) if save is not None and save.is_file() else []
    own = [one for one in saved if one.judge == judge and is_of(one, wanted)]
    for name in suite.names:
        part = PARTS[name]
        try:
            prepared = suite.prepare(name)
            if is_finished(part, own, prepared.data):
                outcome.kept.append(name)
                continue
            loaded = loaded or load()
            result = prepared.evaluate(loaded)
        except BadFile as error:
            if is_finished(part, own):
                outcome.kept.append(name)
                outcome.unchecked.append(name)
            else:
                outcome.missing[name] = str(error)
                tell(f"{name}: {error}")
            continue
        settled = {**result.settings, **wanted}
        found = replace(result, judge=judge, settings=settled, data={name: prepared.data})
        outcome.evaluated.append(name)
        outcome.results.append(found)
        if save is not None:
            RESULT_FILES.save([found], save)
        tell(f"{name}: {', '.join(f'{task} {score:.1f}' for task, score in found.scores.items())}")
    outcome.results = RESULT_FILES.merge([*own, *outcome.results])
    return outcome


def is_of(result: Result, settings: Mapping[str, Any]) -> bool:
    """Tell whether a result has these settings; it may have others, such as notes on its own data."""
    return all(result.settings.get(name) == value for name, value in settings.items())


def is_finished(part: Part, results: Sequence[Result], data: str | None = None) -> bool:
    """Tell whether results have all scores of a part, of the data with a digest or of any."""
    own = [result for result in results if result.benchmark == part.benchmark]
    known = [result.data.get(part.name) for result in own]
    return {name for result in own for name in result.scores} >= set(part.scores) and (data is None or data in known)


DataFolder = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="Folder of all data sets, laid out as the guide tells.")
]

app = command_line()


@app.command()
def suite(
    model: Annotated[
        str,
        typer.Argument(
            help="Model to evaluate: a name in the store, a folder, or open_clip's NAME:PRETRAINED. ROW=… sets its "
            "row's name."
        ),
    ],
    data: DataFolder,
    judge: Annotated[
        Literal["clip", "vera", "grammar"],
        typer.Option(help="clip: a model of images and texts. vera, grammar: text-only models, which need no images."),
    ] = "clip",
    save: Annotated[
        Path | None,
        typer.Option(
            callback=results_file(RESULT_FILES.load),
            help="JSON file to add each part's scores to; a part whose scores it has is not evaluated again unless "
            "its data changed.",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated parts or benchmarks of parts to evaluate, such as crepe,aro,cifar10.",
            show_default="all, without images those that choose among captions",
        ),
    ] = None,
    limit: Limit = None,
    similarity: SimilarityOption = "global",
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Evaluate a model on compositionality benchmarks, and a CLIP also on 21 classification and three retrieval sets.

    What is missing in the data folder is named with its source, and no average is shown that needs it.
    """
    log_warnings_to_stderr()
    reads_images = judge == "clip"
    names = chosen_parts(only, [name for name, part in PARTS.items() if reads_images or part.has_captions])
    options = JudgeOptions(judge, device, store_url, similarity)
    try:
        named = Named.parse(model)
        place = find_model(named.reference, options)
    except Refused as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from error
    settings = {"checkpoint": fingerprint(place), **({"similarity": similarity} if reads_images else {})}
    with exits("fovea evaluate suite", "The same command continues after the parts that are in --save."):
        outcome = run_suite(
            lambda: load_judge(named, place, options),
            Suite(data, names, limit, reads_images=reads_images),
            judge=named.name,
            settings=settings,
            save=save,
            tell=typer.echo,
        )
    tell(outcome)


def chosen_parts(only: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Read the parts of `--only`, or all known ones: the name of a benchmark stands for all of its parts."""
    if only is None:
        return tuple(known)
    wanted = [[name for name in known if PARTS[name].benchmark == text] or [text] for text in split(only)]
    return among(",".join(name for names in wanted for name in names) or only, known, "--only")


def tell(outcome: Outcome) -> None:
    """Print the tables, what is missing and, as the last line, all of it as JSON. Exits if nothing was evaluated."""
    print_tables(outcome.results, Console(width=240, highlight=False))
    if outcome.kept:
        typer.echo(f"Not evaluated again, as --save has them: {', '.join(outcome.kept)}")
    if outcome.unchecked:
        typer.echo(f"Their data are gone, so their scores could not be checked: {', '.join(outcome.unchecked)}")
    for name, reason in outcome.missing.items():
        typer.echo(f"Missing: {name}. {reason}")
    if not outcome.results:
        raise typer.Exit(EXIT_FAILED)
    numbers = next(iter(numbers_of(outcome.results).values()))
    typer.echo(json.dumps({"scores": numbers, "missing": outcome.missing}))


if __name__ == "__main__":
    app()
