"""What an image tower's projection is given, for a classifier to be put in the projection's place.

Shapes: N images, T tokens, D width of the tower.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from services.embed.evaluation.embedders import Array32, ClipEmbedder, FocalLensEmbedder, ImageEmbedder


class NoProjection(ValueError):
    """A model's image tower does not end in a linear projection; the message names the model."""


def embed_features(embedder: ImageEmbedder, images: Iterable[Image.Image], instruction: str | None) -> Array32:
    """Pooled features in front of the projection into the shared space: (N, D), not normalised.

    Raises NoProjection for a model whose image tower is no ViT of open_clip's.
    """
    if not isinstance(embedder, FocalLensEmbedder | ClipEmbedder) or not _ends_in_projection(embedder.visual):
        raise NoProjection(f"{embedder.name} has no ViT whose linear projection a classifier could replace")
    with _projected(embedder.visual) as features:
        embedder.embed_images(images, [instruction])
    return np.concatenate(features)


def _ends_in_projection(visual: Any) -> bool:
    return isinstance(getattr(visual, "proj", None), nn.Parameter) and hasattr(visual, "ln_post")


@contextmanager
def _projected(visual: Any) -> Iterator[list[Array32]]:
    """While it lasts, collects the features that the tower projects, one array for each pass."""
    features: list[Array32] = []

    def collect(_module: nn.Module, _inputs: tuple[Tensor, ...], normed: Tensor) -> None:
        features.append(_pooled(visual, normed).float().cpu().numpy())

    hook = visual.ln_post.register_forward_hook(collect)
    try:
        yield features
    finally:
        hook.remove()


def _pooled(visual: Any, normed: Tensor) -> Tensor:
    """The last layer norm's output as the projection gets it: (N, T, D), or pooled already, → (N, D)."""
    if normed.ndim == 2:
        return normed
    return normed[:, 1:].mean(dim=1) if visual.pool_type == "avg" else normed[:, 0]
