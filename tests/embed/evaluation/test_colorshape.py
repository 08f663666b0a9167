"""ColorShape's protocol asks what training never saw, and ranks by what it says."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from services.embed.evaluation.colorshape import ColorShapeProtocol, evaluate_colorshape, labels_of
from services.jobs.colorshape import is_held_out


def test_held_out_combinations_are_never_among_the_sixteen_classes() -> None:
    protocol = ColorShapeProtocol(num_per_class=1)
    scenes, held_out = protocol.scenes(), protocol.held_out_scenes()
    assert not is_held_out(scenes.color[:, 0], scenes.shape[:, 0]).any()
    assert is_held_out(held_out.color[:, 0], held_out.shape[:, 0]).all()
    assert len(np.unique(labels_of(scenes, "both"))) == 16


def test_the_protocol_draws_the_same_scenes_every_time() -> None:
    one, other = ColorShapeProtocol().scenes(), ColorShapeProtocol().scenes()
    assert torch.equal(one.rgb, other.rgb)


def test_the_papers_scenes_are_its_sixteen_classes_and_four_shapes_in_any_color_on_plain_white() -> None:
    protocol = ColorShapeProtocol(500, is_paper=True)
    scenes, continuous = protocol.scenes(), protocol.continuous_scenes()
    assert np.unique(labels_of(scenes, "both"), return_counts=True)[1].tolist() == [500] * 16
    for drawn in (scenes, continuous):
        assert not drawn.background.any() and not drawn.texture.any()
        assert set(drawn.shape[:, 0].tolist()) == {0, 1, 2, 3}
    assert set(ColorShapeProtocol().continuous_scenes().texture.tolist()) == {0, 1, 2, 3}


class ByColor:
    """An embedder that sees nothing but the mean colour of what is not grey."""

    name = "by colour"
    image_size = 32

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> NDArray[np.float32]:
        means = np.stack([self._mean_color(np.asarray(image, np.float32)) for image in images])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return np.broadcast_to(means, (len(instructions), *means.shape))

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise ValueError("no text side")

    def _mean_color(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        saturation = np.ptp(pixels, axis=2, keepdims=True) ** 2
        mean: NDArray[np.float32] = (saturation * pixels).sum(axis=(0, 1)) / saturation.sum() - 100
        return mean


def test_an_embedder_of_colours_retrieves_colours_and_not_shapes() -> None:
    result = evaluate_colorshape(ByColor(), ColorShapeProtocol(num_per_class=8, is_paper=True))
    assert (set(result.by_condition), result.held_out) == ({"color", "shape", "both"}, {})
    assert result.by_condition["color"] > 90 > 40 > result.by_condition["shape"]
    assert result.continuous > 0.3
    assert result.average == pytest.approx(np.mean([result.by_condition[name] for name in ("color", "shape", "both")]))
