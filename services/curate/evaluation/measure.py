"""`fovea curate measure …`: the dissertation's tables and figures about hard negatives, on your own data."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused, shown_names
from services.core.text_files import Place, read_json, read_table, text_of
from services.curate.data.comparisons import COMPARED, same_caption
from services.curate.evaluation.humans import (
    accuracies,
    choice_table,
    count_judgements,
    judgement_table,
    read_answers,
)
from services.curate.model.blind_model import BlindModel
from services.curate.refinement.loading import DEFAULT_CACHE, CacheFolder, Models, load_models
from services.curate.sugarcrepe import better_ratio
from services.jobs.checkpoints import Device
from services.jobs.options import StoreUrl, command_line, output_file
from services.jobs.plots import Curve, Panel, draw
from services.jobs.published_data import described
from services.jobs.sugarcrepe import FORMS, Pair, SwapObj, load_pairs
from services.jobs.tables import MISSING, Cell, Table

EVALUATION = "`fovea evaluate compositionality`"


def read_results(path: Path, needed: Sequence[str]) -> list[tuple[Place, dict[str, str]]]:
    """Read results of an evaluation as a table: a row for each judge that has the needed scores, and the columns that
    all of these have.

    Raises Refused for another file, and if no judge has these scores.
    """
    results = read_json(path)
    rows: dict[str, dict[str, str]] = {}
    with described(path, EVALUATION, "results"):
        for one in results:
            own = rows.setdefault(text_of(one, "judge", f"{path}: a result"), {})
            own |= {task: str(float(score)) for task, score in one["scores"].items()}
    kept = [row for row in rows.values() if row.keys() >= set(needed)]
    if not kept:
        known = dict.fromkeys(name for row in rows.values() for name in row)
        raise Refused(f"{path}: no judge has scores of {', '.join(needed)}; there are {shown_names(list(known))}")
    return [
        (Place(path, number, ", judge "), {name: row[name] for name in kept[0] if all(name in one for one in kept)})
        for number, row in enumerate(kept, 1)
    ]


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of two columns of one row a model, (N,) each, with its 95 % interval by Fisher's transformation."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    r: float
    interval: tuple[float, float]


def correlation(name: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> Correlation:
    """Correlate two columns of numbers that vary, of three rows or more."""
    from scipy.stats import pearsonr  # takes a second to import

    computed = pearsonr(x, y)
    low, high = computed.confidence_interval()
    return Correlation(name, x, y, float(computed.statistic), (float(low), float(high)))


def correlations(path: Path, x: str, columns: Sequence[str]) -> list[Correlation]:
    """Correlate column `x` of a CSV file, or of results of an evaluation, with other columns, all numeric ones if none
    are named (Figure 4.5).

    Raises Refused for a column that is missing, holds other than numbers, or does not vary.
    """
    needed = (x, *columns)
    rows = read_results(path, needed) if path.suffix == ".json" else list(read_table(path, columns=needed))
    if not rows:
        raise Refused(f"{path} has no rows")
    wanted = columns or [name for name, value in rows[0][1].items() if name != x and _is_number(value)]
    values = {name: _column(rows, name) for name in (x, *wanted)}
    if len(rows) < 3:
        raise Refused(f"{path}: a correlation needs at least 3 rows, not {len(rows)}")
    if flat := [name for name, column in values.items() if np.ptp(column) == 0]:
        raise Refused(f"{path}: {flat[0]}: a column of equal numbers correlates with nothing")
    return [correlation(name, values[x], values[name]) for name in wanted]


def correlation_table(found: Sequence[Correlation], x: str) -> Table:
    """Tell r, its 95 % interval and the number of models."""
    rows = [
        (one.name, f"{one.r:.2f}", f"{one.interval[0]:.2f} to {one.interval[1]:.2f}", str(len(one.x))) for one in found
    ]
    return Table.of_texts(f"Correlation with {x}", ("Column", "r", "95 %", "Models"), rows)


def scatter(found: Sequence[Correlation], x: str) -> str:
    """Draw the models as points, a panel for each column, as SVG."""
    return draw(
        [
            Panel(
                f"{one.name}: r = {one.r:.2f}",
                x,
                one.name,
                (Curve("one model each", tuple(zip(one.x.tolist(), one.y.tolist(), strict=True)), is_joined=False),),
                has_zero=False,
                labels_points=False,
            )
            for one in found
        ]
    )


def _column(rows: Sequence[tuple[Place, Mapping[str, str]]], name: str) -> NDArray[np.float64]:
    for place, row in rows:
        if not _is_number(row[name]):
            raise Refused(f"{place}: {name}: {row[name]!r} is not a number")
    return np.array([float(row[name]) for _, row in rows])


def _is_number(text: str | None) -> bool:
    try:
        return bool(np.isfinite(float(text or "")))
    except ValueError:
        return False


@dataclass(frozen=True)
class Quality:
    """Mean scores × 100 of the negatives of one form, theirs and ours, and of captions that both have, where ours win.

    A value is None where a set has no negative of the form, or the two share no caption.
    """

    form: str
    model: str
    theirs: float | None
    ours: float | None
    better: float | None
    num_compared: int


def qualities(ours: Sequence[Pair], theirs: Sequence[Pair], models: Iterable[BlindModel]) -> list[Quality]:
    """Compare the negatives of two sets by each model: their mean scores, and the captions where ours scores higher.

    Where a set has several negatives of a caption and form, all combinations are compared. Scores of likelihoods are
    the mean probability of a token, eˢ.
    """
    found: dict[str, list[Quality]] = {form: [] for form in COMPARED}
    for model in models:
        texts = [pair.negative_caption for pair in (*ours, *theirs)]
        scores = model.scores(texts)
        values = np.exp(scores) if model.scorer.kind == "likelihood" else scores
        of_ours, of_theirs = values[: len(ours)].tolist(), values[len(ours) :].tolist()
        for form, kinds in COMPARED.items():
            one = [(pair.caption, score) for pair, score in zip(ours, of_ours, strict=True) if pair.kind in kinds]
            two = [(pair.caption, score) for pair, score in zip(theirs, of_theirs, strict=True) if pair.kind in kinds]
            if one or two:
                found[form].append(_quality(form, model.name, one, two))
    return [quality for of_form in found.values() for quality in of_form]


def _quality(form: str, model: str, ours: Sequence[tuple[str, float]], theirs: Sequence[tuple[str, float]]) -> Quality:
    by_caption: dict[str, list[float]] = {}
    for caption, score in theirs:
        by_caption.setdefault(same_caption(caption), []).append(score)
    both = [(score, other) for caption, score in ours for other in by_caption.get(same_caption(caption), ())]
    better = 100 * better_ratio(*np.array(both).T) if both else None
    return Quality(form, model, _mean(theirs), _mean(ours), better, len(both))


def _mean(scores: Sequence[tuple[str, float]]) -> float | None:
    return 100 * float(np.mean([score for _, score in scores])) if scores else None


# The dissertation marks gains of more than this, in percentage points.
MARKED_GAIN = 10.0

# A benchmark and a form of hard negatives.
Part = tuple[str, str]


@dataclass(frozen=True)
class Scores:
    """A judge's accuracy in percent over all pairs of each part, and the numbers of these."""

    judge: str
    accuracy: dict[Part, float]
    sizes: dict[Part, int]


def read_scores(paths: Iterable[Path]) -> list[Scores]:
    """Read results of `fovea evaluate compositionality … --output`, by judge in order of appearance.

    Raises Refused for another file, and for results that have no type of pairs.
    """

    results: list[dict[str, Any]] = []
    for path in paths:
        loaded = read_json(path)
        with described(path, EVALUATION, "results"):
            if not isinstance(loaded, list):
                raise TypeError("it is not a list")
            form_accuracies(loaded, f"{path}: a result")
            results += loaded
    found = form_accuracies(results)
    if not any(one.accuracy for one in found):
        raise Refused(f"none of these results is of pairs: {', '.join(sorted({one['benchmark'] for one in results}))}")
    return found


def form_accuracies(results: Sequence[Mapping[str, Any]], place: str = "a result") -> list[Scores]:
    """Compute each judge's accuracy by benchmark and form, weighted by the numbers of pairs of the form's types.

    Raises BadFile for a judge that is no text, with the place of the results.
    """
    found: dict[str, Scores] = {}
    for one in results:
        judge = text_of(one, "judge", place)
        own, sizes = found.setdefault(judge, Scores(judge, {}, {})), one["sizes"]
        for form, kinds in FORMS.items():
            tested = [kind for kind in kinds if kind in one["scores"]]
            if tested:
                right = sum(one["scores"][kind] * sizes[kind] for kind in tested)
                part, total = (one["benchmark"], form), sum(sizes[kind] for kind in tested)
                own.accuracy[part], own.sizes[part] = right / total, total
    return list(found.values())


def gains_table(scores: Sequence[Scores], control: str) -> Table:
    """Tell accuracies, and in brackets the difference to the control's; gains of more than MARKED_GAIN are bold.

    The last row has the number of pairs. Raises Refused if the control is not among the judges.
    """
    of_control = next((one.accuracy for one in scores if one.judge == control), None)
    if of_control is None:
        raise Refused(f"the control {control!r} is none of {', '.join(one.judge for one in scores)}")
    parts = list(dict.fromkeys(part for one in scores for part in one.accuracy))
    rows = []
    for one in scores:
        base = {} if one.judge == control else of_control
        rows.append((Cell(one.judge), *(_cell(one.accuracy.get(part), base.get(part)) for part in parts)))
    sizes = {part: size for one in scores for part, size in one.sizes.items()}
    rows.append((Cell("pairs"), *(Cell(f"{sizes[part]:,}") for part in parts)))
    header = ("\nModel", *(f"{benchmark}\n{form.upper()}" for benchmark, form in parts))
    return Table(f"Accuracy, and gains on {control}", header, tuple(rows))


def _cell(value: float | None, control: float | None) -> Cell:
    if value is None:
        return Cell(MISSING)
    if control is None:
        return Cell(f"{value:.1f}")
    gain = value - control
    return Cell(f"{value:.1f} ({gain:+.1f})", "best" if gain > MARKED_GAIN else "")


app = command_line(no_args_is_help=True)

Markdown = Annotated[
    Path | None, typer.Option("--output", callback=output_file, help="Markdown file to write the table to.")
]
PAIRS_HELP = "Pairs as JSON lines, or a folder in SugarCrepe's form."


@app.callback()
def choose() -> None:
    """Measure hard negatives as the dissertation does."""
    log_warnings_to_stderr()


@app.command()
def counts(
    pairs: Annotated[Path, typer.Argument(exists=True, help=PAIRS_HELP)],
    swap_obj: SwapObj = None,
    output: Markdown = None,
) -> None:
    """Count the pairs and images of each type (Table 4.2)."""
    with bad_input():
        loaded = load_pairs(pairs, swap_obj=swap_obj)
    found: list[tuple[str, str, int, int]] = [
        (form.upper(), kind, *_counted([pair for pair in loaded if pair.kind == kind]))
        for form, kinds in FORMS.items()
        for kind in kinds
    ]
    found = [*(row for row in found if row[2]), ("all", "", *_counted(loaded))]
    rows = [(form, kind, f"{pairs:,}", f"{images:,}") for form, kind, pairs, images in found]
    tell(
        Table.of_texts("Negative captions by type", ("Form", "Type", "Pairs", "Images"), rows, num_names=2),
        output,
        {kind or form: {"num_pairs": pairs, "num_images": images} for form, kind, pairs, images in found},
    )


def _counted(pairs: Sequence[Pair]) -> tuple[int, int]:
    """Count pairs and their images."""
    return len(pairs), len({pair.filename for pair in pairs})


@app.command()
def quality(
    ours: Annotated[Path, typer.Argument(exists=True, help=PAIRS_HELP)],
    theirs: Annotated[Path, typer.Argument(exists=True, help="Pairs of the same captions to compare with.")],
    model: Models = None,
    output: Markdown = None,
    cache: CacheFolder = DEFAULT_CACHE,
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Compare two sets of hard negatives by their blind scores, in the mean and caption by caption (Table 4.4)."""
    with bad_input():
        pairs = load_pairs(ours), load_pairs(theirs)
        found = qualities(*pairs, load_models(model, device=device, cache=cache, store_url=store_url))
    rows = [
        (one.form, one.model, _told(one.theirs), _told(one.ours), _told(one.better), f"{one.num_compared:,}")
        for one in found
    ]
    header = ("Form", "Model", "theirs\nmean", "ours\nmean", "ours better %", "compared")
    tell(
        Table.of_texts("Scores of negative captions × 100", header, rows, num_names=2), output, list(map(asdict, found))
    )


@app.command()
def humans(
    answers: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Exports of `fovea curate review --task …`, or JSON lines with id, kind and is_right, or with form, "
            "quality (commonsense or grammar) and better (ours, theirs or tie).",
        ),
    ],
    output: Markdown = None,
) -> None:
    """Tell how often people choose the true caption (Tables 4.5, 4.6), and which negatives they find better (C.3)."""
    with bad_input():
        choices, judgements = read_answers(answers)
    found, counted = {name: accuracies(of_set) for name, of_set in choices.items()}, count_judgements(judgements)
    tables = [*([choice_table(found)] if found else []), *([judgement_table(counted)] if counted else [])]
    tell(tables, output, {"choices": {name: asdict(one) for name, one in found.items()}, "judgements": counted})


@app.command()
def correlate(
    table: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="CSV file, one model a row, or results of `fovea evaluate suite … --save`.",
        ),
    ],
    x: Annotated[str, typer.Option(help="Column to correlate with, such as imagenet-1k.")],
    column: Annotated[
        list[str] | None, typer.Option(help="Column of accuracies. Repeatable.", show_default="all other numbers")
    ] = None,
    output: Markdown = None,
    drawing: Annotated[
        Path | None, typer.Option("--figure", callback=output_file, help="SVG file with a scatter plot of each column.")
    ] = None,
) -> None:
    """Correlate columns of results: Pearson's r of each with one of them (Figure 4.5)."""
    with bad_input():
        found = correlations(table, x, column or ())
    columns = [{"column": one.name, "r": one.r, "interval": one.interval, "num_models": len(one.x)} for one in found]
    tell(correlation_table(found, x), output, columns)
    if drawing is not None:
        write_durably(drawing, [scatter(found, x).encode()])


@app.command()
def gains(
    results: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, help="Results of `fovea evaluate compositionality`."),
    ],
    control: Annotated[str, typer.Option(help="Row of the model that was tuned without hard negatives.")],
    output: Markdown = None,
) -> None:
    """Tell what training on hard negatives gains, by benchmark and form (Tables 4.5 and C.4)."""
    with bad_input():
        scores = read_scores(results)
        table = gains_table(scores, control)
    (of_control,) = (one.accuracy for one in scores if one.judge == control)
    numbers = [
        {
            **{"judge": one.judge, "benchmark": part[0], "form": part[1], "accuracy": value},
            "gain": value - of_control[part] if part in of_control else None,
            "num_pairs": one.sizes[part],
        }
        for one in scores
        for part, value in one.accuracy.items()
    ]
    tell(table, output, numbers)


def tell(tables: Table | Sequence[Table], output: Path | None, numbers: Any) -> None:
    """Print tables and, as the last line, the numbers as JSON; write the tables as Markdown where wanted."""
    several = [tables] if isinstance(tables, Table) else tables
    console = Console(width=140, highlight=False)
    for table in several:
        console.print(table.to_rich())
    if output is not None:
        write_durably(output, ["\n".join(table.to_markdown() for table in several).encode()])
    typer.echo(json.dumps(numbers))


@contextmanager
def bad_input() -> Iterator[None]:
    """Report unusable input as an invalid option."""
    try:
        yield
    except Refused as error:
        raise typer.BadParameter(str(error)) from error


def _told(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


if __name__ == "__main__":
    app()
