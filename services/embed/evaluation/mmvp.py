"""MMVP-VLM (Table 5.6): pairs of images that CLIP confuses, with a statement that is true of each.

Nine visual patterns with fifteen pairs each. For each of a pair's two statements the model chooses an image; the pair
is correct if both choices are, and a tie counts as wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.core.text_files import BadFile, read_rows
from services.embed.evaluation.embedders import ImageEmbedder
from services.embed.evaluation.instructions import MMVP
from services.jobs.published_data import Source, described

SOURCE = Source("MMVP-VLM", "https://huggingface.co/datasets/MMVP/MMVP_VLM")
PAIRS_PER_PATTERN = 15
PROMPT = "a photo of "


@dataclass(frozen=True)
class Pair:
    """Two images and two statements; the first statement is true of the first image."""

    images: tuple[Path, Path]
    statements: tuple[str, str]


def load_mmvp(directory: Path) -> dict[str, list[Pair]]:
    """Load the pairs of each pattern: `Questions.csv` (id, folder, statement) and `MLLM_VLM Images/<folder>/<id>.jpg`.

    As in the authors' script, two rows make a pair and fifteen pairs a pattern, in the order of the file. Raises
    BadFile, also if the file has another number of rows.
    """
    path = SOURCE.existing(directory / "Questions.csv")
    rows = [row for _, row in read_rows(path)][1:]
    num_rows = 2 * PAIRS_PER_PATTERN * len(MMVP)
    if len(rows) != num_rows:
        raise BadFile(f"{path} holds {len(rows)} statements, not {num_rows}. It comes from {SOURCE.address}")
    with described(path, SOURCE.name, "statements"):
        pairs = [_pair(directory, *both) for both in list(pairwise(rows))[::2]]
    return {
        pattern: pairs[number * PAIRS_PER_PATTERN : (number + 1) * PAIRS_PER_PATTERN]
        for number, pattern in enumerate(MMVP)
    }


def evaluate_mmvp(embedder: ImageEmbedder, patterns: dict[str, list[Pair]]) -> dict[str, float]:
    """Compute the percentage of correct pairs by pattern.

    Raises BadFile before the first image is read if any is missing, and NoTextSide for a model without texts.
    """
    images = {
        pattern: SOURCE.images([path for pair in pairs for path in pair.images], f"{embedder.name}, {pattern}")
        for pattern, pairs in patterns.items()
    }
    statements = [PROMPT + statement for pairs in patterns.values() for pair in pairs for statement in pair.statements]
    texts = dict(zip(patterns, np.split(embedder.embed_texts(statements), len(patterns)), strict=True))
    scores = {}
    for pattern, pairs in patterns.items():
        (embeddings,) = embedder.embed_images(images[pattern], [MMVP[pattern]])
        both = embeddings.reshape(len(pairs), 2, -1), texts[pattern].reshape(len(pairs), 2, -1)
        scores[pattern] = 100 * float(np.mean(are_right(np.einsum("pie,pte->pit", *both))))
    return scores


def are_right(similarity: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Tell which pairs are correct: (P, image, text) → (P,). Each text must be strictly nearer to its own image."""
    own = np.diagonal(similarity, axis1=1, axis2=2)
    other = np.diagonal(similarity[:, ::-1], axis1=1, axis2=2)
    return np.asarray((own > other).all(axis=1))


def _pair(directory: Path, first: Sequence[str], second: Sequence[str]) -> Pair:
    folder = directory / "MLLM_VLM Images" / first[1]
    return Pair((folder / f"{int(first[0])}.jpg", folder / f"{int(second[0])}.jpg"), (first[2], second[2]))
