"""Linear probing with few images (Figure 5.4): a linear classifier replaces the projection of a frozen CLIP.

The classifier is trained on k images of each class, once for each learning rate. The reported learning rate is chosen
on the same images on which the score is reported, as in the dissertation ("the best checkpoint"), so the score is an
upper bound of that of a learning rate fixed in advance.

Shapes: N images, D width of the image tower, C classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from services.core.text_files import BadFile
from services.embed.evaluation.embedders import Array32, EngineEmbedder, ImageEmbedder
from services.embed.evaluation.instructions import type_of
from services.embed.evaluation.metrics import Labels
from services.embed.evaluation.results import DEVIATION
from services.embed.evaluation.same_class import IMAGENET, LabelledImages, load_folders, read_nodes
from services.jobs.progress import watched
from services.jobs.published_data import Source


class NoProjection(ValueError):
    """The image tower of a model does not end in a linear projection; the message names the model."""


def embed_features(embedder: ImageEmbedder, images: Iterable[Image.Image], instruction: str | None) -> Array32:
    """Compute pooled features before the projection into the shared space: (N, D), not normalised.

    Raises NoProjection for a model whose image tower is not an open_clip ViT.
    """
    if not isinstance(embedder, EngineEmbedder) or not _ends_in_projection(embedder.visual):
        raise NoProjection(f"{embedder.name} has no ViT whose linear projection a classifier could replace")
    with _projected(embedder.visual) as features:
        embedder.embed_images(images, [instruction])
    return np.concatenate(features)


def _ends_in_projection(visual: Any) -> bool:
    return isinstance(getattr(visual, "proj", None), nn.Parameter) and hasattr(visual, "ln_post")


@contextmanager
def _projected(visual: Any) -> Iterator[list[Array32]]:
    """Collect the features that the tower projects during the block, one array per pass."""
    features: list[Array32] = []

    def collect(_module: nn.Module, _inputs: tuple[Tensor, ...], normed: Tensor) -> None:
        features.append(_pooled(visual, normed).float().cpu().numpy())

    hook = visual.ln_post.register_forward_hook(collect)
    try:
        yield features
    finally:
        hook.remove()


def _pooled(visual: Any, normed: Tensor) -> Tensor:
    """Pool the last layer norm's output as the projection receives it: (N, T, D), or already pooled, → (N, D)."""
    if normed.ndim == 2:
        return normed
    return normed[:, 1:].mean(dim=1) if visual.pool_type == "avg" else normed[:, 0]


@dataclass(frozen=True)
class ProbeOptions:
    """Options of the classifiers' training: Adam without weight decay, starting at zero, on shuffled batches.

    `shots` are the numbers of images per class; each seed draws its own images and order.
    """

    shots: tuple[int, ...] = (5, 10, 15)
    num_seeds: int = 5
    num_epochs: int = 100
    learning_rates: tuple[float, ...] = (1e-2, 7.5e-3, 5e-3, 2.5e-3, 1e-4)
    batch_size: int = 64


@dataclass(frozen=True)
class ProbeData:
    """Images for training and for testing, of the same classes, and the category of the classes."""

    category: str
    train: LabelledImages
    val: LabelledImages
    num_classes: int


@dataclass(frozen=True)
class ProbeScore:
    """Top-1 accuracy in percent at the best learning rate: mean and standard deviation over the seeds."""

    mean: float
    standard_deviation: float
    learning_rate: float


@dataclass(frozen=True)
class Split:
    """Features (N, D) and their classes (N,)."""

    features: Array32
    labels: Labels


def load_probe(directory: Path, category: str | None, options: ProbeOptions) -> ProbeData:
    """Load `directory/train/<class>/*` and `directory/val/<class>/*` of every class that has a folder in `train`; of
    ImageNet's dogs for None.

    Raises BadFile, also if a class has too few images for training or none for testing.
    """
    if category is None:
        (dog,) = [node for node in read_nodes() if node.node == "Dog"]
        category, classes, source = "dog", dog.classes, IMAGENET
    else:
        source = Source(f"the images of each {category}", "the folder that --data names")
        folders = source.existing(directory / "train").iterdir()
        classes = tuple(sorted(entry.name for entry in folders if entry.is_dir()))
        if len(classes) < 2:
            held = f"{directory / 'train'} holds {len(classes)} folders of images"
            raise BadFile(f"{held}: a classifier needs at least two")
    train = load_folders(directory / "train", classes, source, max(options.shots))
    return ProbeData(category, train, load_folders(directory / "val", classes, source), len(classes))


def evaluate_linear_probe(embedder: ImageEmbedder, data: ProbeData, options: ProbeOptions) -> dict[int, ProbeScore]:
    """Compute scores by the number of images per class. Raises BadFile, or NoProjection."""
    draws = [draw_shots(data.train.labels, max(options.shots), seed) for seed in range(options.num_seeds)]
    used = np.unique(np.concatenate([draw.ravel() for draw in draws]))
    subset = LabelledImages(data.train.source, tuple(data.train.paths[i] for i in used), data.train.labels[used])
    train, val = (_split(embedder, images, data.category) for images in (subset, data.val))
    return {
        shots: best_score(
            [
                _accuracies(train, np.searchsorted(used, draw[:, :shots].ravel()), val, seed, options)
                for seed, draw in enumerate(watched(draws, f"{embedder.name}, {shots} images a class", len(draws)))
            ],
            options.learning_rates,
        )
        for shots in options.shots
    }


def best_score(accuracies: Sequence[Sequence[float]], learning_rates: Sequence[float]) -> ProbeScore:
    """Choose the learning rate with the best mean, from the accuracies of each seed at each rate; ties go to the first.

    The deviation is the sample's, 0 for a single seed.
    """
    percent = 100 * np.array(accuracies)
    best = int(percent.mean(axis=0).argmax())
    deviation = float(percent[:, best].std(ddof=1)) if len(percent) > 1 else 0.0
    return ProbeScore(float(percent[:, best].mean()), deviation, learning_rates[best])


def points(scores: dict[int, ProbeScore]) -> dict[str, float]:
    """Return scores by the tables' keys: k, and a key for its standard deviation."""
    return {
        key: value
        for shots, score in scores.items()
        for key, value in ((str(shots), score.mean), (f"{shots}{DEVIATION}", score.standard_deviation))
    }


def draw_shots(labels: Labels, num_shots: int, seed: int) -> NDArray[np.int64]:
    """Draw the places of `num_shots` images of each class, (C, shots). The first k columns equal a draw of k."""
    return np.stack(
        [
            np.random.default_rng([seed, int(label)]).permutation(np.flatnonzero(labels == label))[:num_shots]
            for label in np.unique(labels)
        ]
    )


def fit_probe(train: Split, learning_rate: float, seed: int, options: ProbeOptions) -> torch.nn.Linear:
    """Train a classifier of features with softmax cross-entropy."""
    generator = torch.Generator().manual_seed(seed)
    features, labels = torch.from_numpy(train.features), torch.from_numpy(train.labels)
    probe = torch.nn.Linear(features.shape[1], int(labels.max()) + 1)
    # the problem is convex: all starting points give the same result, and zero needs no randomness
    torch.nn.init.zeros_(probe.weight)
    torch.nn.init.zeros_(probe.bias)
    optimizer = torch.optim.Adam(probe.parameters(), lr=learning_rate)
    for _ in range(options.num_epochs):
        order = torch.randperm(len(labels), generator=generator)
        for start in range(0, len(order), options.batch_size):
            batch = order[start : start + options.batch_size]
            optimizer.zero_grad()
            F.cross_entropy(probe(features[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return probe


@torch.inference_mode()
def top1_accuracy(probe: torch.nn.Linear, test: Split) -> float:
    """Compute the fraction of features whose own class has the strictly highest logit."""
    logits, labels = probe(torch.from_numpy(test.features)), torch.from_numpy(test.labels)[:, None]
    own = logits.gather(1, labels)
    others = logits.scatter(1, labels, -torch.inf).amax(dim=1, keepdim=True)
    return float((own > others).float().mean())


def _accuracies(train: Split, some: NDArray[np.int64], val: Split, seed: int, options: ProbeOptions) -> list[float]:
    drawn = Split(train.features[some], train.labels[some])
    return [top1_accuracy(fit_probe(drawn, rate, seed, options), val) for rate in options.learning_rates]


def _split(embedder: ImageEmbedder, images: LabelledImages, category: str) -> Split:
    pictures = images.source.images(images.paths, f"{embedder.name}, {category}")
    return Split(embed_features(embedder, pictures, type_of(category)), images.labels)
