"""`fovea evaluate wise-ft BASE TUNED --data DIR --output DIR`: weights between a CLIP before and after tuning.

Every share is evaluated on parts of the suite in one resumable run, and one share is chosen by them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused
from services.jobs.checkpoints import Device, check_publication, publish_trained
from services.jobs.options import StoreUrl, among, command_line, finite, output_folder
from services.jobs.plots import Curve, Panel, draw
from services.jobs.tables import Cell, Table
from services.nn.clip_model import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, ClipModel, load_clip
from services.score.evaluation.aggregates import AVERAGE, COMP, ELEVATER, aggregates
from services.score.evaluation.clip_judge import Clip, ClipJudge
from services.score.evaluation.judges import RESULT_FILES, Result, Similarity
from services.score.evaluation.loading import (
    JudgeOptions,
    Limit,
    Named,
    SimilarityOption,
    choose_device,
    exits,
    find_model,
)
from services.score.evaluation.suite.command import DataFolder, Suite, is_of, run_suite
from services.score.evaluation.suite.parts import PARTS, fingerprint
from services.score.evaluation.tables import SHARE, name_of_share, print_tables
from services.score.fsc_clip import interpolate
from services.score.model.checkpoint import (
    FSC_CLIP_CONFIG,
    FSC_CLIP_KIND,
    FscClipCheckpoint,
    load_fsc_clip,
    save_fsc_clip,
)

# By default, FSC-CLIP's Comp is to gain and its ZS is to be kept.
COMP_PARTS = tuple(name for name, part in PARTS.items() if part.benchmark in COMP)
ZERO_SHOT_PARTS = ELEVATER


@dataclass(frozen=True)
class Point:
    """A share α with the numbers of what is to gain and of what is to be kept, in percent, by benchmark."""

    alpha: float
    gains: Mapping[str, float]
    keeps: Mapping[str, float]

    @property
    def gained(self) -> float:
        """The mean over benchmarks."""
        return fmean(self.gains.values())

    @property
    def kept(self) -> float:
        """The mean over benchmarks."""
        return fmean(self.keeps.values())


def values_of(names: Sequence[str], results: Sequence[Result]) -> dict[str, float]:
    """Compute one number for each benchmark of some parts; for retrieval two, recall at 1 both ways.

    It is the average in FSC-CLIP's Table 1 if the parts are all of the benchmark, otherwise the mean of their tasks.
    Raises KeyError for a score that is not there.
    """
    scores = {result.benchmark: result.scores for result in results}
    sizes = {result.benchmark: result.sizes for result in results}
    values = {}
    for benchmark in dict.fromkeys(PARTS[name].benchmark for name in names):
        tasks = [task for name in names if PARTS[name].benchmark == benchmark for task in PARTS[name].scores]
        own = {task: scores[benchmark][task] for task in tasks}
        if benchmark == "retrieval":
            for way in ("i2t", "t2i"):
                values[f"{way.upper()} R@1"] = fmean(own[task] for task in tasks if task.endswith(f"::{way}/R@1"))
        else:
            values[benchmark] = aggregates(benchmark, own, sizes[benchmark]).get(AVERAGE, fmean(own.values()))
    return values


def choose(points: Sequence[Point], margin: float) -> Point:
    """Choose the share that gains most among those that lose at most `margin` points of each number to be kept,
    compared with the share 0, which is the model before tuning and the first of the points."""
    base = points[0]
    allowed = [
        point for point in points if all(point.keeps[name] >= value - margin for name, value in base.keeps.items())
    ]
    return max(allowed, key=lambda point: point.gained)


def make_table(points: Sequence[Point], chosen: Point) -> Table:
    """Make the table of a model's shares: the means, and each number that they are means of."""
    columns = [("gained", "Mean"), *(("gained", name) for name in points[0].gains)]
    columns += [("kept", "Mean"), *(("kept", name) for name in points[0].keeps)]
    rows = [
        (
            Cell(f"{point.alpha:g}" + (", chosen" if point == chosen else "")),
            *(Cell(f"{value:.1f}") for value in (point.gained, *point.gains.values())),
            *(Cell(f"{value:.1f}") for value in (point.kept, *point.keeps.values())),
        )
        for point in points
    ]
    header = ("\nα", *(f"{group}\n{name}" for group, name in columns))
    return Table("WiSE-FT: shares α of the tuned weights, percent", header, tuple(rows))


def plot(curves: Mapping[str, Sequence[Point]], labels: tuple[str, str]) -> str:
    """Plot what models gain over what they keep, with a mark for each α, as SVG (Figure 3)."""
    drawn = tuple(Curve(name, tuple((point.kept, point.gained) for point in points)) for name, points in curves.items())
    axes = Panel("WiSE-FT, α from 0 to 1", *labels, drawn, has_zero=False, labels_points=False)
    return draw([axes], columns=1)


TENTHS = tuple(i / 10 for i in range(11))
RESULTS, FIGURE = "results.json", "figure-3.svg"

Output = Annotated[
    Path,
    typer.Option(
        callback=output_folder,
        help="Folder for the scores, from which the same command continues, the plot and the chosen checkpoint. "
        "Models with the same folder share tables and plot.",
    ),
]

app = command_line()


@app.command()
def wise_ft(
    base: Annotated[
        str, typer.Argument(help="CLIP before tuning: a name in the store, a folder, or open_clip's NAME:PRETRAINED.")
    ],
    tuned: Annotated[
        str,
        typer.Argument(help="CLIP after tuning, with LoRA matrices merged, likewise. ROW=… sets its name in tables."),
    ],
    data: DataFolder,
    output: Output,
    gain: Annotated[
        str | None,
        typer.Option(help="Comma-separated parts of the suite that are to gain.", show_default="those of Comp"),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Comma-separated parts that must not lose.", show_default="those of ZS")
    ] = None,
    margin: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="Maximum loss of each benchmark of --keep, in percentage points."),
    ] = 1.0,
    limit: Limit = None,
    similarity: SimilarityOption = "global",
    device: Device = "auto",
    publish: Annotated[str | None, typer.Option(help="Name to publish the chosen weights under.")] = None,
    store_url: StoreUrl = None,
) -> None:
    """Evaluate interpolated weights of a CLIP before and after tuning, and choose the share that gains most.

    The weights are (1 − α) · before + α · after, for α from 0 to 1 in steps of 0.1 (FSC-CLIP's Figure 3).
    """
    log_warnings_to_stderr()
    gains = COMP_PARTS if gain is None else among(gain, tuple(PARTS), "--gain")
    keeps = ZERO_SHOT_PARTS if keep is None else among(keep, tuple(PARTS), "--keep")
    check_publication(publish or "", store_url, is_wanted=publish is not None)
    suite = Suite(data, tuple(dict.fromkeys([*gains, *keeps])), limit, keeps_read=True)
    options = JudgeOptions("clip", device, store_url, similarity)
    with exits("fovea evaluate wise-ft", f"The same command continues after the parts in {output / RESULTS}."):
        pair = Pair.load(base, tuned, options)
        evaluate(pair, suite, output / RESULTS, options)
    results = RESULT_FILES.load([output / RESULTS])
    curves = curves_of([one for one in results if is_of(one, pair.asked(suite, similarity))], gains, keeps)
    points = curves[pair.name]
    chosen = choose(points, margin)
    console = Console(width=240, highlight=False)
    print_tables(results, console)
    console.print(make_table(points, chosen).to_rich())
    labels = ("ZS" if keep is None else keep, "Comp" if gain is None else gain)
    (output / FIGURE).write_text(plot(curves, labels))
    directory = output / Path(pair.name).name
    save_fsc_clip(pair.checkpoint(chosen.alpha), directory)
    told = {"alpha": chosen.alpha, "margin": margin, "gain": gains, "keep": keeps, "limit": limit, "data": str(data)}
    publish_trained(
        *(directory, publish or pair.name, FSC_CLIP_KIND),
        {"base": base, "tuned": tuned, **told, "seed": None, "publish": publish is not None, "store_url": store_url},
        {name: round(value, 4) for name, value in {**chosen.gains, **chosen.keeps}.items()},
    )
    typer.echo(json.dumps({"chosen": chosen.alpha, "points": [asdict(point) for point in points]}))


@dataclass(frozen=True)
class Pair:
    """Weights before and after tuning, the model that they are put into, and what tells the two from others."""

    name: str
    clip: ClipModel
    theta0: Mapping[str, Tensor]
    theta1: Mapping[str, Tensor]
    local_weight: float
    temperature: float | None
    fingerprints: tuple[str, str]

    @classmethod
    def load(cls, base: str, tuned: str, options: JudgeOptions) -> "Pair":
        """Load both models, on the CPU. Raises Refused for a model that is none, and for two that differ."""
        named = Named.parse(tuned)
        places = find_model(base, options), find_model(named.reference, options)
        try:
            before, after = (_load(place) for place in places)
            _check_shapes(before.clip.model, after.clip.model)
        except (OSError, RuntimeError, ValueError) as error:
            raise Refused(f"{base} and {named.reference} have no weights in between: {error}") from error
        theta0, theta1 = (
            {name: x.clone() for name, x in one.clip.model.state_dict().items()} for one in (before, after)
        )
        if all(torch.equal(theta0[name], x) for name, x in theta1.items() if name in theta0):
            raise Refused(f"{base} and {named.reference} have the same weights: nothing lies between them")
        prints = fingerprint(places[0]), fingerprint(places[1])
        return cls(named.name, after.clip, theta0, theta1, after.local_weight, after.temperature, prints)

    def checkpoint(self, alpha: float) -> FscClipCheckpoint:
        """Put a share of the tuned weights into the model."""
        self.clip.model.load_state_dict(interpolate(self.theta0, self.theta1, alpha))
        return FscClipCheckpoint(self.clip, self.local_weight, self.temperature)

    def judge(self, alpha: float, device: torch.device, similarity: Similarity) -> ClipJudge:
        """Make the judge of a share of the tuned weights."""
        checkpoint = self.checkpoint(alpha)
        checkpoint.clip.model.eval().requires_grad_(False).to(device)
        clip = Clip.of_model(checkpoint.clip, checkpoint.local_weight)
        return ClipJudge(clip, name=name_of_share(self.name, alpha), similarity=similarity)

    def asked(self, suite: Suite, similarity: Similarity) -> dict[str, Any]:
        """Settings that all curves of a figure share."""
        return {"base": self.fingerprints[0], "similarity": similarity, "limit": suite.limit}


def evaluate(pair: Pair, suite: Suite, save: Path, options: JudgeOptions) -> None:
    """Evaluate every share on all parts, and save each part when it is finished.

    Raises Refused for a part without data, before the next share is begun.
    """
    device = choose_device(options)
    for alpha in TENTHS:
        settings = {**pair.asked(suite, options.similarity), "tuned": pair.fingerprints[1], "alpha": alpha}
        outcome = run_suite(
            lambda alpha=alpha: pair.judge(alpha, device, options.similarity),  # type: ignore[misc]
            suite,
            judge=name_of_share(pair.name, alpha),
            settings=settings,
            save=save,
            tell=lambda line, alpha=alpha: typer.echo(f"α = {alpha:g}, {line}"),  # type: ignore[misc]
        )
        if outcome.missing:
            raise Refused(
                "there are no data of "
                + "; ".join(f"{name}: {reason}" for name, reason in outcome.missing.items())
                + ". Choose other parts with --gain and --keep"
            )


def curves_of(results: Sequence[Result], gains: Sequence[str], keeps: Sequence[str]) -> dict[str, list[Point]]:
    """Collect the points of all models whose shares have all scores, by name and in the order of α."""
    rows: dict[str, dict[float, list[Result]]] = {}
    for result in results:
        if match := SHARE.fullmatch(result.judge):
            rows.setdefault(match["name"], {}).setdefault(float(match["number"]), []).append(result)
    curves = {}
    for name, shares in rows.items():
        try:
            curves[name] = [
                Point(alpha, values_of(gains, own), values_of(keeps, own)) for alpha, own in sorted(shares.items())
            ]
        except KeyError:  # another model, evaluated on other parts
            continue
    return curves


def _load(place: Path | str) -> FscClipCheckpoint:
    if isinstance(place, Path) and (place / FSC_CLIP_CONFIG).is_file():
        return load_fsc_clip(place)
    if isinstance(place, Path) and (place / OPEN_CLIP_CONFIG).is_file() and not (place / OPEN_CLIP_WEIGHTS).is_file():
        raise ValueError(
            f"{place} is no CLIP: it has {OPEN_CLIP_CONFIG}, as other models do, and no {OPEN_CLIP_WEIGHTS}"
        )
    name, _, pretrained = (str(place), "", None) if isinstance(place, Path) else place.partition(":")
    clip = load_clip(name, pretrained)
    clip.model.eval()
    return FscClipCheckpoint(clip, 0.0)


def _check_shapes(before: Any, after: Any) -> None:
    """Raises ValueError for models that differ in more than the length of a text."""
    shapes = [{name: list(x.shape) for name, x in model.state_dict().items()} for model in (before, after)]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        first, second = (some.get(name) for some in shapes)
        if first != second and name.removeprefix("text.") != "positional_embedding":
            raise ValueError(f"{name} has the shape {first} before and {second} after tuning")
