import math

import pytest
import torch

from services.nn.int8_linear import Int8Linear, can_quantise


def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


@pytest.mark.parametrize("num_rows", [1, 3, 17, 200])
def test_products_are_within_a_hundredth_of_the_exact_ones(num_rows: int) -> None:
    draw = torch.Generator().manual_seed(num_rows)
    x, weight = torch.randn(num_rows, 96, generator=draw), torch.randn(40, 96, generator=draw)
    product = Int8Linear(weight)(x)
    assert product.shape == (num_rows, 40)
    assert float((product - exact(x, weight)).norm() / exact(x, weight).norm()) < 0.02


def test_what_fits_into_the_levels_is_exact() -> None:
    weight = torch.tensor([[127.0, -64.0, 1.0], [0.0, 0.0, -2.0]])
    x = torch.tensor([[63.0, -21.0, 1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(Int8Linear(weight)(x)[0, 0], torch.tensor(127 * 63.0 + 64 * 21 + 1), rtol=5e-3, atol=0)
    assert Int8Linear(weight)(x)[1].tolist() == [0.0, 0.0]


def test_a_row_does_not_depend_on_its_neighbours_even_on_one_much_larger() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 64, generator=draw), torch.randn(32, 64, generator=draw)
    linear = Int8Linear(weight)
    with_giant = linear(torch.cat([x, 1e4 * x[:1]]))
    torch.testing.assert_close(with_giant[:5], linear(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(with_giant[5], 1e4 * with_giant[0], rtol=1e-5, atol=1e-2)


def test_outputs_of_very_different_size_keep_their_own_precision() -> None:
    draw = torch.Generator().manual_seed(1)
    x, weight = torch.randn(8, 64, generator=draw), torch.randn(2, 64, generator=draw)
    weight[1] *= 1e-4
    product, expected = Int8Linear(weight)(x), exact(x, weight)
    for output in range(2):
        assert float((product - expected)[:, output].norm() / expected[:, output].norm()) < 0.02


def test_the_largest_activations_and_weights_do_not_overflow() -> None:
    weight, x = torch.ones(8, 4096), torch.ones(2, 4096)
    torch.testing.assert_close(Int8Linear(weight)(x), torch.full((2, 8), 4096.0))
    torch.testing.assert_close(Int8Linear(weight)(-x), torch.full((2, 8), -4096.0))


def test_a_batch_of_rows_keeps_its_shape() -> None:
    assert Int8Linear(torch.randn(6, 8))(torch.randn(2, 3, 8)).shape == (2, 3, 6)


def test_a_row_that_is_not_a_number_does_not_look_like_one() -> None:
    x = torch.randn(3, 8)
    x[1, 2] = math.nan
    product = Int8Linear(torch.randn(6, 8))(x)
    assert product[1].isnan().all()
    assert product[[0, 2]].isfinite().all()


def test_only_float32_on_a_cpu_may_use_it() -> None:
    assert can_quantise(torch.device("cpu"), torch.float32)
    assert not can_quantise(torch.device("cpu"), torch.bfloat16)
    assert not can_quantise(torch.device("cuda"), torch.float32)
