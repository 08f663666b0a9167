"""Retrieval of images of the same class, the task of ImageNet-Subset and of the fine-grained data sets."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.embed.evaluation.embedders import ImageEmbedder
from services.embed.evaluation.instructions import type_of
from services.embed.evaluation.metrics import Labels, cosine_rows, mean_average_precision
from services.jobs.published_data import Source


@dataclass(frozen=True)
class LabelledImages:
    """Files and their classes (N,)."""

    source: Source
    paths: tuple[Path, ...]
    labels: Labels

    def first_of_each_class(self, num_images: int | None) -> "LabelledImages":
        """At most so many images a class, the first ones; all of them for None."""
        if num_images is None:
            return self
        kept = np.sort(np.concatenate([np.flatnonzero(self.labels == c)[:num_images] for c in np.unique(self.labels)]))
        return LabelledImages(self.source, tuple(self.paths[i] for i in kept), self.labels[kept])


def evaluate_category(embedder: ImageEmbedder, images: LabelledImages, category: str) -> float:
    """mAP in points of retrieving images of the same class, asked for the type of the category. Raises MissingData."""
    pictures = images.source.images(images.paths, f"{embedder.name}, {category}")
    (embeddings,) = embedder.embed_images(pictures, [type_of(category)])
    return 100 * mean_average_precision(cosine_rows(embeddings), images.labels)
