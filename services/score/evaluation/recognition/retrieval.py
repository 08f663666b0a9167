"""Retrieval between images and captions: COCO and Flickr30k in Karpathy's test splits, and COCO-Counterfactuals.

Shapes: I images, C captions, E embedding width.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.jobs.published_data import Source
from services.score.evaluation.aggregates import RETRIEVAL
from services.score.evaluation.benchmarks.captions import (
    COCO_2014,
    FLICKR30K,
    CaptionedImage,
    load_coco,
    load_flickr30k,
)
from services.score.evaluation.benchmarks.reading import described
from services.score.evaluation.embeddings import Embedder, Features
from services.score.evaluation.recognition.metrics import best_ranks, recalls

COUNTERFACTUALS = Source("COCO-Counterfactuals", "https://huggingface.co/datasets/Intel/COCO-Counterfactuals")
# FSC-CLIP's authors draw 30 % of the samples, 5,223 of 17,410; which, they do not say.
COUNTERFACTUALS_SHARE = 0.3
SEED = 0
# Queries that are compared with everything at a time.
BLOCK = 512


@dataclass(frozen=True)
class RetrievalSet:
    """Images and their captions, at least one each, to be found among all; `source` is that of the images."""

    name: str
    images: tuple[CaptionedImage, ...]
    source: Source

    def check_images(self) -> None:
        """Raises MissingData if an image is missing."""
        for one in self.images:
            self.source.existing(one.image)


def load_retrieval_set(name: str, data: Path, *, limit: int | None = None) -> RetrievalSet:
    """Load one of RETRIEVAL from the folder of all data; `limit` takes the first images. Raises MissingData."""
    match name:
        case "coco_karpathy":
            found, source = load_coco(data / "coco"), COCO_2014
        case "flickr30k":
            found, source = load_flickr30k(data / "flickr30k"), FLICKR30K
        case "coco_counterfactuals":
            found, source = load_counterfactuals(data / "coco_counterfactuals" / "data"), COUNTERFACTUALS
        case _:
            raise ValueError(f"{name} is none of {', '.join(RETRIEVAL)}")
    retrieval_set = RetrievalSet(name, tuple(found[:limit]), source)
    retrieval_set.check_images()
    return retrieval_set


def load_counterfactuals(folder: Path, *, share: float = COUNTERFACTUALS_SHARE) -> list[CaptionedImage]:
    """Load a share of `examples.jsonl`, drawn by a fixed seed, with `images`: two captions and an image of each.

    Raises MissingData.
    """
    path = COUNTERFACTUALS.existing(folder / "examples.jsonl")
    with described(path, COUNTERFACTUALS.name, "examples"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        drawn = np.random.default_rng(SEED).permutation(len(rows))[: round(share * len(rows))]
        return [
            CaptionedImage(folder / "images" / f"{rows[row][f'image_{one}']}.jpg", (rows[row][f"caption_{one}"],))
            for row in sorted(drawn)
            for one in (0, 1)
        ]


def evaluate_retrieval(embedder: Embedder, retrieval_set: RetrievalSet) -> dict[str, float]:
    """Compute recall at 1, 5 and 10 in percent, as `<set>::i2t/R@1` and so on. Raises CannotJudge."""
    name = retrieval_set.name
    images = embedder.embed_images([one.image for one in retrieval_set.images], f"{name}, images")
    texts = [caption for one in retrieval_set.images for caption in one.captions]
    captions = embedder.embed_texts(texts, f"{name}, captions")
    image_of = np.repeat(np.arange(len(images)), [len(one.captions) for one in retrieval_set.images])
    places = np.arange(len(images))
    ranks = {"i2t": _ranks(images, places, captions, image_of), "t2i": _ranks(captions, image_of, images, places)}
    return {f"{name}::{way}/{at}": value for way, found in ranks.items() for at, value in recalls(found).items()}


def _ranks(
    queries: Features, query_image: NDArray[np.int64], things: Features, thing_image: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rank each query's own things, those of the same image, among all things, in blocks of queries."""
    blocks = [slice(start, start + BLOCK) for start in range(0, len(queries), BLOCK)]
    return np.concatenate(
        [best_ranks(queries[rows] @ things.T, query_image[rows, None] == thing_image[None]) for rows in blocks]
    )
