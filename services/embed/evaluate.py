"""Retrieval metrics and the dissertation's ColorShape protocol (Table 5.1) for FocalLens.

Shapes: Q queries, N gallery images, E embedding width. Similarities are cosines, higher is closer.
"""

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata
from torch import Tensor

from services.core.settings import ServiceSettings
from services.core.starters import packaged_starters
from services.core.store import Store
from services.embed.checkpoint import FOCALLENS_CONFIG, FocalLensCheckpoint, load_clip, load_focallens
from services.embed.colorshape import (
    COLORS,
    NUM_SHAPES_KEPT_WHOLE,
    SHAPES,
    Scenes,
    is_held_out,
    render,
    sample_classes,
    sample_continuous,
)
from services.embed.data import TEST_INSTRUCTIONS, UNSEEN_CONDITIONS
from services.embed.focallens import FocalLens, Readouts

Array = NDArray[np.float64]

TABLE_CONDITIONS = ("color", "shape", "both")

app = typer.Typer(no_args_is_help=True)


def average_precisions(similarity: Array, labels: NDArray[np.int64]) -> Array:
    """Leave-one-out average precision of every image as a query against all others.

    `similarity` (N, N), `labels` (N,): AP is the mean of the precisions at the ranks of the images with the query's
    label, the query itself excluded; NaN where there are none. Ties rank irrelevant images first.
    """
    num_images = len(labels)
    precisions = np.full(num_images, np.nan)
    for query in range(num_images):
        others = np.arange(num_images) != query
        is_relevant = labels[others] == labels[query]
        if is_relevant.any():
            # the second key puts an irrelevant image before a relevant one of the same similarity
            order = np.lexsort((is_relevant, -similarity[query, others]))
            hits = np.flatnonzero(is_relevant[order]) + 1
            precisions[query] = np.mean(np.arange(1, len(hits) + 1) / hits)
    return precisions


def mean_average_precision(similarity: Array, labels: NDArray[np.int64]) -> float:
    """Mean of `average_precisions` over the queries that have at least one relevant image."""
    return float(np.nanmean(average_precisions(similarity, labels)))


def expected_average_precision(num_gallery: int, num_relevant: int) -> float:
    """AP of a random ranking, exactly: (H_n + (m − 1)/(n − 1) · (n − H_n)) / n, with n ≥ 1 and 1 ≤ m ≤ n."""
    n, m = num_gallery, num_relevant
    if n == 1:
        return 1.0
    harmonic = float(np.sum(1 / np.arange(1, n + 1)))
    return (harmonic + (m - 1) / (n - 1) * (n - harmonic)) / n


def random_mean_average_precision(labels: NDArray[np.int64]) -> float:
    """Expected leave-one-out mAP of a random ranking, over the queries that have a relevant image."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    relevant = counts[inverse] - 1
    return float(np.mean([expected_average_precision(len(labels) - 1, m) for m in relevant[relevant > 0].tolist()]))


def scaled_average_precision(mean_ap: float, random_ap: float) -> float:
    """CelebA's scaled mAP, (p − r) / (1 − r): 0 is chance, 1 is perfect."""
    return (mean_ap - random_ap) / (1 - random_ap)


def leave_one_out_recall(similarity: Array, labels: NDArray[np.int64], k: int) -> float:
    """Share of the queries with a relevant image that find one among their k nearest others; ties count against."""
    hits = []
    for query in range(len(labels)):
        others = np.arange(len(labels)) != query
        is_relevant = labels[others] == labels[query]
        if is_relevant.any():
            order = np.lexsort((is_relevant, -similarity[query, others]))
            hits.append(bool(is_relevant[order[:k]].any()))
    return float(np.mean(hits))


def target_recall(similarity: Array, k: int) -> float:
    """GeneCIS's Recall@k: (Q, N) similarities whose target is column 0; a tie with a distractor counts against."""
    rank = (similarity[:, 1:] >= similarity[:, :1]).sum(axis=1)
    return float(np.mean(rank < k))


def continuous_color_correlation(similarity: Array, rgb: Array) -> float:
    """Mean over queries of Spearman's ρ between similarity (N, N) and minus the distance in RGB (N, 3)."""
    num_images = len(rgb)
    closeness = -np.linalg.norm(rgb[:, None] - rgb[None], axis=-1)
    correlations = []
    for query in range(num_images):
        others = np.arange(num_images) != query
        ranks = np.stack([rankdata(similarity[query, others]), rankdata(closeness[query, others])])
        correlations.append(np.corrcoef(ranks)[0, 1])
    return float(np.mean(correlations))


@dataclass(frozen=True)
class ColorShapeResult:
    """One embedder on ColorShape: points of mAP by condition, Spearman's ρ for the continuous colours."""

    embedder: str
    by_condition: dict[str, float]
    held_out: dict[str, float]
    continuous: float

    @property
    def average(self) -> float:
        """Mean of Color, Shape and Both, Table 5.1's average."""
        return float(np.mean([self.by_condition[condition] for condition in TABLE_CONDITIONS]))


@dataclass(frozen=True)
class ColorShapeProtocol:
    """Renderings to retrieve: 4 colours × 4 shapes, the combinations held out of training, and nameless colours.

    `num_per_class` images a class, and in proportion for the other two; `is_plain` puts all objects on plain white.
    Training draws from other seeds.
    """

    num_per_class: int = 125
    is_plain: bool = False
    seed: int = 1_000_003
    side: int = 64

    def scenes(self) -> Scenes:
        pairs = [(color, shape) for color in range(4) for shape in range(NUM_SHAPES_KEPT_WHOLE)]
        return sample_classes(pairs, self.num_per_class, self._generator(0), is_plain=self.is_plain)

    def held_out_scenes(self) -> Scenes:
        grid = [(color, shape) for color in range(len(COLORS)) for shape in range(len(SHAPES))]
        pairs = [pair for pair in grid if bool(is_held_out(torch.tensor(pair[0]), torch.tensor(pair[1])))]
        return sample_classes(pairs, max(2, self.num_per_class // 3), self._generator(1), is_plain=self.is_plain)

    def continuous_scenes(self) -> Scenes:
        return sample_continuous(6 * self.num_per_class, self._generator(2))

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + stream)


def checkpoint_directory(reference: str, store_url: str | None) -> Path:
    """A folder as it is; else the verified local copy of `name` or `name@alias` in the store.

    The packaged starters are published first where the store is empty. Raises StoreError where there is no such one.
    """
    if Path(reference).is_dir():
        return Path(reference)
    settings = ServiceSettings(port=0)
    store = Store.open(store_url or settings.store_url)
    store.publish_starters(packaged_starters(Path(__file__).parents[1]))
    name, _, version = reference.partition("@")
    return store.fetch(name, store.resolve(name, version or "latest"), settings.checkpoint_cache_dir)


def load_embedder(directory: Path, device: str) -> FocalLensCheckpoint:
    """A FocalLens directory, or an open_clip one, which has only its plain embedding to give."""
    if (directory / FOCALLENS_CONFIG).is_file():
        return load_focallens(directory, device=device)
    clip = load_clip(str(directory))
    model = FocalLens(clip.model).eval().requires_grad_(False).to(device)
    return FocalLensCheckpoint(model, clip.tokenizer, clip.transform)


def labels_of(scenes: Scenes, condition: str) -> NDArray[np.int64]:
    """The class of each scene under a condition: (N,)."""
    color, shape, size = scenes.color[:, 0], scenes.shape[:, 0], scenes.size[:, 0]
    label = {
        "color": color,
        "shape": shape,
        "both": color * len(SHAPES) + shape,
        "size": size,
        "background": scenes.background,
        "position": scenes.cell,
        "texture": scenes.texture,
        "size and color": color * 2 + size,
    }[condition]
    return label.numpy()


def embed_pixels(
    checkpoint: FocalLensCheckpoint, pixels: Tensor, instruction: str | None, *, batch_size: int = 250
) -> NDArray[np.float32]:
    """Embeddings of images (N, height, width, 3) uint8 under one instruction, or under none: (N, E), L2-normalised."""
    model, device = checkpoint.model, pixels.device
    conditions = None
    if instruction is not None:
        conditions = model.encode_conditions(checkpoint.tokenizer([instruction]).to(device))
    features = []
    with torch.inference_mode():
        for start in range(0, len(pixels), batch_size):
            chunk = pixels[start : start + batch_size]
            images = checkpoint.transform.normalise(chunk).to(next(model.parameters()).dtype)
            everyone = torch.arange(len(chunk), device=device)
            index = torch.full_like(everyone, -1 if conditions is None else 0)
            features.append(model.encode_images(images, conditions, Readouts(everyone, index)).float().cpu())
    return torch.cat(features).numpy()


def evaluate_colorshape(
    checkpoint: FocalLensCheckpoint, embedder: str, protocol: ColorShapeProtocol, *, is_conditional: bool
) -> ColorShapeResult:
    """Table 5.1's row of a checkpoint; with `is_conditional` false every condition gets the same plain embedding."""

    device = next(checkpoint.model.parameters()).device

    def similarity_among(scenes: Scenes) -> Callable[[str], Array]:
        pixels = render(scenes.to(device), checkpoint.transform.size[0])

        @functools.cache  # the plain embedding answers every condition
        def embed(instruction: str | None) -> Array:
            return embed_pixels(checkpoint, pixels, instruction).astype(np.float64)

        def similarity(condition: str) -> Array:
            embeddings = embed(TEST_INSTRUCTIONS[condition] if is_conditional else None)
            return embeddings @ embeddings.T

        return similarity

    def mean_ap(scenes: Scenes, conditions: Iterable[str]) -> dict[str, float]:
        similarity = similarity_among(scenes)
        return {name: 100 * mean_average_precision(similarity(name), labels_of(scenes, name)) for name in conditions}

    continuous = protocol.continuous_scenes()
    return ColorShapeResult(
        embedder=embedder,
        by_condition=mean_ap(protocol.scenes(), TEST_INSTRUCTIONS),
        held_out=mean_ap(protocol.held_out_scenes(), TABLE_CONDITIONS),
        continuous=continuous_color_correlation(
            similarity_among(continuous)("color"), continuous.rgb[:, 0].numpy().astype(np.float64)
        ),
    )


def summary(result: ColorShapeResult) -> dict[str, float]:
    """A result as flat numbers for a manifest."""
    return {
        "average_map": result.average,
        **{f"map_{condition.replace(' ', '_')}": value for condition, value in result.by_condition.items()},
        **{f"held_out_map_{condition}": value for condition, value in result.held_out.items()},
        "continuous_color_spearman": result.continuous,
    }


def print_table(results: list[ColorShapeResult], console: Console) -> None:
    """Table 5.1's layout, then the other attributes, the held-out combinations and the continuous colours."""
    others = [condition for condition in TEST_INSTRUCTIONS if condition not in TABLE_CONDITIONS]
    table = Table(title="ColorShape, mAP in points (* never asked in tuning)")
    table.add_column("embedder")
    for name in [*TABLE_CONDITIONS, "average", *others]:
        table.add_column(f"{name}*" if name in UNSEEN_CONDITIONS else name, justify="right")
    for name in TABLE_CONDITIONS:
        table.add_column(f"held-out {name}", justify="right")
    table.add_column("continuous color, ρ", justify="right")
    for result in results:
        values = [*(result.by_condition[name] for name in TABLE_CONDITIONS), result.average]
        values += [result.by_condition[name] for name in others]
        values += [result.held_out[name] for name in TABLE_CONDITIONS]
        table.add_row(result.embedder, *(f"{value:.1f}" for value in values), f"{result.continuous:.3f}")
    console.print(table)


@app.callback()
def choose_protocol() -> None:
    """Evaluate a FocalLens checkpoint by the dissertation's protocols."""


@app.command()
def colorshape(
    checkpoint: Annotated[
        str, typer.Option(help="A FocalLens checkpoint: its name in the store, or a folder.")
    ] = "focallens-shapes",
    baseline: Annotated[
        str, typer.Option(help="The CLIP to compare with, likewise; its plain embedding answers every condition.")
    ] = "clip-shapes",
    images_per_class: Annotated[int, typer.Option(help="The dissertation renders 500.")] = 125,
    plain: Annotated[bool, typer.Option(help="Objects on plain white instead of all backgrounds.")] = False,
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, mps.")] = "cpu",
    store_url: Annotated[str | None, typer.Option(envvar="FOVEA_STORE_URL", help="The model store.")] = None,
) -> None:
    """Retrieve rendered shapes under each condition: mAP against the unconditional CLIP (Table 5.1)."""
    clip = load_embedder(checkpoint_directory(baseline, store_url), device)
    tuned = load_embedder(checkpoint_directory(checkpoint, store_url), device)
    protocol = ColorShapeProtocol(num_per_class=images_per_class, is_plain=plain, side=tuned.transform.size[0])
    results = [evaluate_colorshape(clip, "CLIP", protocol, is_conditional=False)]
    results.append(evaluate_colorshape(tuned, "FocalLens, no condition", protocol, is_conditional=False))
    results.append(evaluate_colorshape(tuned, "FocalLens", protocol, is_conditional=True))
    print_table(results, Console(width=200))
    Console(highlight=False).print(json.dumps([{**asdict(r), "average": r.average} for r in results]), soft_wrap=True)
