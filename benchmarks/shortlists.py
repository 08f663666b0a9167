"""Recall of the short list that a search reads under a condition without an index.

python -m benchmarks.shortlists [--images 6000] [--queries 100]

Drawn pictures and the packaged starter, whose embeddings under all conditions are computed once. A short list is chosen
from the unconditional index: by its order alone; by CLAY (https://arxiv.org/abs/2604.11539), in the subspace of texts
that name the condition's true values, which a service does not know; and by a sample that is read under the condition.
Recall is that of the ten nearest under the condition. All lists are equally long; a sample is a part of its list.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from services.embed.collections.indexes import ConditionIndex
from services.embed.collections.reader import Read
from services.embed.collections.search import CANDIDATES, Candidates
from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS, rendered
from services.embed.evaluation.loading import load_embedder
from services.embed.model.items import Embeddings
from services.jobs.colorshape import COLORS, SHAPES, sample_scenes

STARTER = "services/embed/starter/focallens-shapes"
SIZE = 512
VALUES = {
    "color": COLORS,
    "shape": SHAPES,
    "size": ("small", "large", "tiny", "huge"),
    "position": ("left", "right", "top", "bottom", "center"),
    "texture": ("plain", "striped", "dotted", "checked"),
    "background": [f"{color} background" for color in ("white", "black", "gray", *COLORS)],
}


class Held:
    """The unconditional index: every image's vector, the first being that of row 1."""

    def __init__(self, held: Embeddings) -> None:
        self._held = held

    def vectors(self, rows: NDArray[np.int64]) -> tuple[Embeddings, NDArray[np.bool_]]:
        return self._held[np.asarray(rows) - 1], np.ones(len(rows), bool)


def by_clay(plain: Embeddings, texts: Embeddings, query: int) -> Sequence[int]:
    """Order rows by their cosines in the subspace that centred texts span, images being centred, too."""
    _, _, directions = np.linalg.svd(texts - texts.mean(axis=0), full_matrices=False)
    projected = (plain - plain.mean(axis=0)) @ directions[: len(texts) - 1].T
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    order: list[int] = (np.argsort(-projected @ projected[query]) + 1).tolist()
    return order[:SIZE]


def by_sample(plain: Embeddings, under: Embeddings, query: int) -> tuple[Sequence[int], float]:
    """Choose rows as a search does; also return the milliseconds of the choice."""
    order = (np.argsort(-plain @ plain[query]) + 1).tolist()
    guide = ConditionIndex(None, Held(plain))  # type: ignore[arg-type] # only its vectors are asked for
    num_guided = min(CANDIDATES * SIZE, len(order))
    candidates = Candidates(order, dict.fromkeys(order, 1), [guide], num_guided)
    sample = candidates.sample(SIZE)
    reads = [Read(row, under[row - 1][None], None) for row in sample]
    began = time.perf_counter()
    left = candidates.after(reads, under[query])
    milliseconds = 1e3 * (time.perf_counter() - began)
    return [*sample, *left.rows[: SIZE - len(sample)]], milliseconds


def measure(num_images: int, num_queries: int) -> dict[str, Any]:
    embedder = load_embedder(STARTER)
    scenes = sample_scenes(num_images, torch.Generator().manual_seed(7))
    plain, *conditional = embedder.embed_images(
        rendered(scenes, embedder.image_size), [None, *TEST_INSTRUCTIONS.values()]
    )
    queries = np.random.default_rng(0).choice(num_images, num_queries, replace=False)
    recall: dict[str, dict[str, float]] = {}
    choosing: list[float] = []
    for condition, under in zip(TEST_INSTRUCTIONS, conditional, strict=True):
        texts = embedder.embed_texts([f"a {value} object" for value in VALUES.get(condition, ())] or ["an object"])
        found: dict[str, list[float]] = {"order": [], "clay": [], "sample": []}
        for query in queries:
            nearest = set((np.argsort(-under @ under[query])[:10] + 1).tolist())
            chosen, milliseconds = by_sample(plain, under, query)
            choosing.append(milliseconds)
            lists = {"order": (np.argsort(-plain @ plain[query])[:SIZE] + 1).tolist(), "sample": chosen}
            if condition in VALUES:
                lists["clay"] = by_clay(plain, texts, query)
            for name, rows in lists.items():
                found[name].append(len(nearest & set(rows)) / 10)
        recall[condition] = {name: round(float(np.mean(values)), 3) for name, values in found.items() if values}
    return {
        "images": num_images,
        "size": SIZE,
        "queries": num_queries,
        "recall_at_10": recall,
        "choosing_ms": summary(choosing),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=6000, help="Images in the collection.")
    parser.add_argument("--queries", type=int, default=100, help="Queries under each condition.")
    arguments = parser.parse_args()
    result = measure(arguments.images, arguments.queries)
    table = Table("condition", "order", "CLAY", "sample", title=f"Recall@10 of {SIZE} of {arguments.images} images")
    for condition, found in result["recall_at_10"].items():
        table.add_row(
            condition, *(f"{found[name]:.3f}" if name in found else "" for name in ("order", "clay", "sample"))
        )
    Console().print(table)
    record("shortlists", result)


if __name__ == "__main__":
    main()
