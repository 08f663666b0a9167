"""Shorter embeddings, integers and bits, by hand, and as numpy and other servers pack them."""

import numpy as np
import pytest

from services.embed.outputs import Embeddings, quantised, shortened, shorter_widths, trained_widths

# Times 127: 63.5, -63.5, 127, 0, -0.508, 0.508, 12.7, -114.3, 2.54; halves are rounded to even.
ROW = np.array([[0.5, -0.5, 1, 0, -0.004, 0.004, 0.1, -0.9, 0.02]], np.float32)


def unit_vectors(width: int, count: int = 200) -> Embeddings:
    drawn = np.random.default_rng(width).standard_normal((count, width)).astype(np.float32)
    rows: Embeddings = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return rows


def test_int8_is_127_times_a_number_and_uint8_is_128_more() -> None:
    assert quantised(ROW, "int8").tolist() == [[64, -64, 127, 0, -1, 1, 13, -114, 3]]
    assert quantised(ROW, "uint8").tolist() == [[192, 64, 255, 128, 127, 129, 141, 14, 131]]
    assert [quantised(ROW, form).dtype.name for form in ("int8", "uint8")] == ["int8", "uint8"]
    assert quantised(np.array([[1.0000001, -1.0000001]], np.float32), "int8").tolist() == [[127, -127]]


def test_bits_are_signs_with_the_first_number_highest_and_binary_is_128_less() -> None:
    # 1 0 1 0 0 1 1 0 is 128 + 32 + 4 + 2; the ninth number begins a byte of its own, 1 0 0 0 0 0 0 0
    assert quantised(ROW, "ubinary").tolist() == [[166, 128]]
    assert quantised(ROW, "binary").tolist() == [[38, 0]]
    assert quantised(-ROW, "ubinary").tolist() == [[0b01001001, 0]]
    assert quantised(-ROW, "binary").tolist() == [[73 - 128, -128]]
    assert [quantised(ROW, form).dtype.name for form in ("binary", "ubinary")] == ["int8", "uint8"]


@pytest.mark.parametrize("width", [8, 64, 512])
def test_bits_are_those_of_numpys_packbits_over_all_rows_as_sentence_transformers_packs_them(width: int) -> None:
    rows = unit_vectors(width)
    packed = np.packbits(rows > 0).reshape(len(rows), -1)
    assert np.array_equal(quantised(rows, "ubinary"), packed)
    assert np.array_equal(quantised(rows, "binary"), (packed - 128).astype(np.int8))
    assert np.array_equal(np.unpackbits(quantised(rows, "ubinary").astype(np.uint8), axis=1), rows > 0)


@pytest.mark.parametrize("width", [64, 512, 4096])
def test_cosines_of_int8_differ_by_less_than_two_hundredths_at_every_width(width: int) -> None:
    rows = unit_vectors(width)
    for levels in (quantised(rows, "int8").astype(np.float32), quantised(rows, "uint8").astype(np.float32) - 128):
        levels /= np.linalg.norm(levels, axis=1, keepdims=True)
        difference = levels @ levels.T - rows @ rows.T
        assert np.abs(difference).max() < 0.02
        assert difference.std() < 0.004


def test_a_vector_is_cut_to_its_first_numbers_and_has_norm_1_again() -> None:
    rows = np.array([[0.3, 0.4, -0.5, 0.5**0.5], [0, 0, 0.6, 0.8]], np.float32)
    expected = [[0.6, 0.8], [0.0, 0.0]]  # of zeros no direction can be told
    assert np.allclose(shortened(rows, 2), expected, atol=1e-7)
    assert shortened(rows, 2).dtype == np.float32
    assert shortened(rows, None) is rows
    assert shortened(rows, 4) is rows


def test_widths_are_a_list_or_any_from_the_least_up() -> None:
    assert list(shorter_widths("8,16,64", 32)) == [8, 16]
    assert list(shorter_widths("30+", 33)) == [30, 31, 32]
    assert list(shorter_widths(None, 32)) == []
    assert [trained_widths(told) for told in ("8, 16", [8, 16], 8, "8+")] == ["8,16", "8,16", "8", "8+"]
    for other in (None, "", "0+", "8,", "-8", "8+16", "all", [], [8.5], [True], {"8": 1}):
        assert trained_widths(other) is None
