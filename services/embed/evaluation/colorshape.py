"""The dissertation's ColorShape protocol (Table 5.1): renderings retrieved by color, by shape, and by both."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from services.embed.evaluation.embedders import ImageEmbedder
from services.embed.evaluation.metrics import continuous_color_correlation, cosine_rows, mean_average_precision
from services.jobs.colorshape import (
    COLORS,
    NUM_SHAPES_KEPT_WHOLE,
    SHAPES,
    Scenes,
    is_held_out,
    render,
    sample_classes,
    sample_continuous,
)
from services.jobs.progress import watched
from services.jobs.tables import Table

# The conditions and their instructions, in the form of Table D.3.
TEST_INSTRUCTIONS = {
    "color": "What is the color of the object in the image?",
    "shape": "What is the shape of the object in the image?",
    "both": "What is the color and shape of the object in the image?",
    "size": "What is the size of the object in the image?",
    "background": "What is the color of the background in the image?",
    "position": "What is the position of the object in the image?",
    "texture": "What is the texture of the background in the image?",
    "size and color": "What is the size and color of the object in the image?",
}
TABLE_CONDITIONS = ("color", "shape", "both")
# A combination of two attributes that the packaged checkpoints were never asked in tuning.
UNSEEN_CONDITIONS = ("size and color",)
RENDERED_AT_ONCE = 64


@dataclass(frozen=True)
class ColorShapeResult:
    """One embedder on ColorShape: points of mAP by condition, Spearman's ρ for the continuous colors."""

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
    """Renderings to retrieve: 4 colors × 4 shapes, the combinations held out of training, and unnamed colors.

    `num_per_class` images per class, and proportional numbers for the other two. `is_paper` leaves what the paper has
    (section 5.4.1): its three conditions, and the four shapes in any color, on plain white. Training uses other seeds.
    """

    num_per_class: int = 125
    is_paper: bool = False
    seed: int = 1_000_003

    @property
    def conditions(self) -> Sequence[str]:
        return TABLE_CONDITIONS if self.is_paper else tuple(TEST_INSTRUCTIONS)

    def scenes(self) -> Scenes:
        pairs = [(color, shape) for color in range(4) for shape in range(NUM_SHAPES_KEPT_WHOLE)]
        drawn = sample_classes(pairs, self.num_per_class, self._generator(0))
        return drawn.on_plain_white() if self.is_paper else drawn

    def held_out_scenes(self) -> Scenes:
        grid = [(color, shape) for color in range(len(COLORS)) for shape in range(len(SHAPES))]
        pairs = [pair for pair in grid if bool(is_held_out(torch.tensor(pair[0]), torch.tensor(pair[1])))]
        return sample_classes(pairs, max(2, self.num_per_class // 3), self._generator(1))

    def continuous_scenes(self) -> Scenes:
        if self.is_paper:
            drawn = sample_continuous(6 * self.num_per_class, self._generator(2), NUM_SHAPES_KEPT_WHOLE)
            return drawn.on_plain_white()
        return sample_continuous(6 * self.num_per_class, self._generator(2))

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + stream)


def evaluate_colorshape(embedder: ImageEmbedder, protocol: ColorShapeProtocol) -> ColorShapeResult:
    """Compute an embedder's row of Table 5.1."""

    def images_of(scenes: Scenes, part: str) -> Iterator[Image.Image]:
        return watched(rendered(scenes, embedder.image_size), f"{embedder.name}, {part}", len(scenes))

    def mean_ap(scenes: Scenes, conditions: Iterable[str], part: str) -> dict[str, float]:
        names = list(conditions)
        images = images_of(scenes, part)
        embeddings = embedder.embed_images(images, [TEST_INSTRUCTIONS[name] for name in names])
        return {
            name: 100 * mean_average_precision(cosine_rows(under), labels_of(scenes, name))
            for name, under in zip(names, embeddings, strict=True)
        }

    unseen = {} if protocol.is_paper else mean_ap(protocol.held_out_scenes(), TABLE_CONDITIONS, "held-out combinations")
    continuous = protocol.continuous_scenes()
    (by_color,) = embedder.embed_images(images_of(continuous, "continuous colors"), [TEST_INSTRUCTIONS["color"]])
    return ColorShapeResult(
        embedder=embedder.name,
        by_condition=mean_ap(protocol.scenes(), protocol.conditions, "ColorShape"),
        held_out=unseen,
        continuous=continuous_color_correlation(cosine_rows(by_color), continuous.rgb[:, 0].numpy().astype(np.float64)),
    )


def rendered(scenes: Scenes, side: int) -> Iterator[Image.Image]:
    """Render the scenes as images of `side` pixels, some at a time."""
    for start in range(0, len(scenes), RENDERED_AT_ONCE):
        yield from map(Image.fromarray, render(scenes[start : start + RENDERED_AT_ONCE], side).numpy())


def labels_of(scenes: Scenes, condition: str) -> NDArray[np.int64]:
    """Return the class of each scene under a condition: (N,)."""
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


def summary(result: ColorShapeResult) -> dict[str, float]:
    """Flatten a result into numbers for a manifest."""
    return {
        "average_map": result.average,
        **{f"map_{condition.replace(' ', '_')}": value for condition, value in result.by_condition.items()},
        **{f"held_out_map_{condition}": value for condition, value in result.held_out.items()},
        "continuous_color_spearman": result.continuous,
    }


def print_table(results: list[ColorShapeResult], console: Console) -> None:
    """Print Table 5.1's layout, then the other attributes, the held-out combinations and the continuous colors."""
    others = [condition for condition in results[0].by_condition if condition not in TABLE_CONDITIONS]
    header = ["embedder"]
    header += [f"{name}*" if name in UNSEEN_CONDITIONS else name for name in [*TABLE_CONDITIONS, "average", *others]]
    header += [*(f"held-out {name}" for name in results[0].held_out), "continuous color, ρ"]
    rows = []
    for result in results:
        values = [*(result.by_condition[name] for name in TABLE_CONDITIONS), result.average]
        values += [result.by_condition[name] for name in others]
        values += result.held_out.values()
        rows.append([result.embedder, *(f"{value:.1f}" for value in values), f"{result.continuous:.3f}"])
    title = "ColorShape, mAP in points" + (" (* not part of tuning)" if others else "")
    console.print(Table.of_texts(title, header, rows).to_rich("center"))
