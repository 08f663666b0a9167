"""Measurements for manifests: ColorShape, wordings of tuning and held-out ones, and pictures of any rendering."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image

from services.embed.evaluation.colorshape import (
    TEST_INSTRUCTIONS,
    ColorShapeProtocol,
    evaluate_colorshape,
    labels_of,
    rendered,
    summary,
)
from services.embed.evaluation.embedders import ImageEmbedder, load_embedder
from services.embed.evaluation.metrics import cosine_rows, mean_average_precision
from starters.embed.drawn_pictures import draw_batch
from starters.embed.questions import draw_wording
from starters.embed.wordings import draw_unrelated

ASKED = ("color", "shape")
NUM_WORDINGS = 24
# Training uses other seeds.
SEED = 1_000_003

ImagesPerClass = Annotated[int, typer.Option(min=2, help="ColorShape images per class for the evaluation.")]


def measure_colorshape(directory: Path, images_per_class: int) -> dict[str, float]:
    """Measure a checkpoint folder by ColorShape's protocol."""
    protocol = ColorShapeProtocol(num_per_class=images_per_class)
    return summary(evaluate_colorshape(load_embedder(str(directory)), protocol))


def evaluate_wordings(embedder: ImageEmbedder, *, num_per_class: int) -> dict[str, float]:
    """Measure an embedder of which FocalLens's own conditions are asked, for a manifest.

    `map_color_worded` is the mean over wordings of tuning on ColorShape, `map_color_worded_anew` over patterns that
    tuning left out, `wider_map_color` is of pictures with any rendering, and `unrelated_cosine` compares embeddings
    under conditions about nothing in the picture with those under none.
    """
    random = Random(SEED)
    scenes = ColorShapeProtocol(num_per_class=num_per_class).scenes()
    measured: dict[str, float] = {}
    for name in ASKED:
        for held_out in (False, True):
            wordings = [draw_wording(name, random, held_out=held_out) for _ in range(NUM_WORDINGS)]
            embeddings = embedder.embed_images(rendered(scenes, embedder.image_size), wordings)
            found = [mean_ap(under, labels_of(scenes, name)) for under in embeddings]
            measured[f"map_{name}_worded{'_anew' if held_out else ''}"] = float(np.mean(found))
    unrelated = [draw_unrelated(random, held_out=True) for _ in range(NUM_WORDINGS)]
    plain, *others = embedder.embed_images(rendered(scenes, embedder.image_size), [None, *unrelated])
    measured["unrelated_cosine"] = float(np.mean([(plain * other).sum(axis=1) for other in others]))
    return {**measured, **_wider(embedder, 16 * num_per_class)}


def mean_ap(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Compute leave-one-out mAP in points."""
    return 100 * mean_average_precision(cosine_rows(embeddings), labels)


def _wider(embedder: ImageEmbedder, num_images: int) -> dict[str, float]:
    drawn = draw_batch(SEED, 0, num_images, embedder.image_size, picture_share=1.0)
    images = map(Image.fromarray, drawn.pixels.numpy())
    embeddings = embedder.embed_images(images, [TEST_INSTRUCTIONS[name] for name in ASKED])
    words = {name: [facts.said[name] for facts in drawn.facts] for name in ASKED}
    return {
        f"wider_map_{name}": mean_ap(under, _numbered(words[name]))
        for name, under in zip(ASKED, embeddings, strict=True)
    }


def _numbered(words: Sequence[str]) -> NDArray[np.int64]:
    return np.unique(np.asarray(words), return_inverse=True)[1]
