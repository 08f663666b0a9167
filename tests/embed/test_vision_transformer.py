"""An image tower whose weights are laid out for the CPU makes the same embeddings."""

import platform
from pathlib import Path

import pytest
import torch

from services.embed.focallens import Visibility
from services.embed.model.focallens_engine import load_focallens
from services.embed.visibility import Readouts
from services.nn.vision_transformer import pack_tower
from tests.embed.tiny import IMAGE_SIZE, write_tiny_checkpoint

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="weights are packed for x86 alone"
)


@pytest.mark.parametrize("visibility", ["full", "readout"])
@pytest.mark.parametrize("condition_layer", [0, 1])
def test_a_packed_tower_gives_the_same_embeddings_and_states(
    tmp_path: Path, visibility: Visibility, condition_layer: int
) -> None:
    directory = write_tiny_checkpoint(tmp_path, visibility=visibility, condition_layer=condition_layer)
    dense, packed = load_focallens(directory).model, load_focallens(directory).model
    pack_tower(packed.clip.visual)
    pixels = torch.randn(3, 3, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(1))
    tokens = torch.randn(2, 32, generator=torch.Generator().manual_seed(2))
    readouts = Readouts(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, -1, 1]))
    with torch.inference_mode():
        torch.testing.assert_close(packed.encode_images(pixels), dense.encode_images(pixels), atol=1e-5, rtol=0)
        expected = dense.encode_images(pixels, tokens, readouts)
        torch.testing.assert_close(packed.encode_images(pixels, tokens, readouts), expected, atol=1e-5, rtol=0)
        if dense.state_size is not None:
            _, states = packed.encode_images_and_states(pixels, tokens, readouts, dtype=torch.float32)
            torch.testing.assert_close(packed.read_states(states, tokens, readouts), expected, atol=1e-5, rtol=0)


def test_a_packed_tower_keeps_no_weight_twice(tmp_path: Path) -> None:
    visual = load_focallens(write_tiny_checkpoint(tmp_path)).model.clip.visual
    pack_tower(visual)
    assert not [name for name, weight in visual.transformer.named_parameters() if weight.ndim > 1]
