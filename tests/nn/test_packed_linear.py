"""Weights laid out for the CPU multiply to the same numbers."""

import platform

import pytest
import torch
from torch import nn

from services.nn.packed_linear import PackedLinear, can_pack, pack_linear_layers

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


def test_every_linear_layer_of_a_model_is_packed_and_no_weight_is_kept_twice() -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 3, bias=False))).requires_grad_(False)
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    expected = model(x)
    pack_linear_layers(model)
    torch.testing.assert_close(model(x), expected, atol=1e-6, rtol=0)
    assert not list(model.parameters())


def test_only_single_precision_on_the_cpu_is_packed() -> None:
    assert can_pack(CPU, torch.float32)
    assert not can_pack(CPU, torch.bfloat16)
    assert not can_pack(torch.device("cuda"), torch.float32)
