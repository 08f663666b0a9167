"""Weights laid out for the CPU multiply to the same embeddings."""

import platform
from pathlib import Path

import pytest
import torch
from torch import nn

from services.embed.checkpoint import load_focallens
from services.embed.focallens import Readouts, Visibility
from services.embed.packed_linear import PackedLinear, can_pack, pack_image_tower
from tests.embed.tiny import IMAGE_SIZE, write_tiny_checkpoint

CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="weights are packed for x86 alone"
)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (0, 7), (1, 7)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_packed_layer_multiplies_as_the_dense_one_does(shape: tuple[int, ...], has_bias: bool) -> None:
    dense = nn.Linear(7, 11, bias=has_bias).requires_grad_(False)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(PackedLinear(dense.weight, dense.bias)(x), dense(x), atol=1e-6, rtol=0)


def test_a_part_of_a_tensor_is_multiplied_as_a_copy_of_it_would_be() -> None:
    dense = nn.Linear(7, 11).requires_grad_(False)
    x = torch.randn(4, 3, 7, generator=torch.Generator().manual_seed(0))
    packed = PackedLinear(dense.weight, dense.bias)
    torch.testing.assert_close(packed(x[:, :1]), dense(x[:, :1]), atol=1e-6, rtol=0)
    torch.testing.assert_close(packed(x.transpose(0, 1)), dense(x.transpose(0, 1)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("visibility", ["full", "readout"])
@pytest.mark.parametrize("condition_layer", [0, 1])
def test_a_packed_tower_gives_the_same_embeddings_and_states(
    tmp_path: Path, visibility: Visibility, condition_layer: int
) -> None:
    directory = write_tiny_checkpoint(tmp_path, visibility=visibility, condition_layer=condition_layer)
    dense, packed = load_focallens(directory).model, load_focallens(directory).model
    pack_image_tower(packed.clip.visual)
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
    pack_image_tower(visual)
    assert not [name for name, weight in visual.transformer.named_parameters() if weight.ndim > 1]


def test_only_single_precision_on_the_cpu_is_packed() -> None:
    assert can_pack(CPU, torch.float32)
    assert not can_pack(CPU, torch.bfloat16)
    assert not can_pack(torch.device("cuda"), torch.float32)
