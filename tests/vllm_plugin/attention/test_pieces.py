"""Pieces cover each token that a row sees once, and never mix two documents."""

import random

import pytest

from fovea_vllm.attention.pieces import CHUNK, OUTSIDE, cut, piece_size
from tests.vllm_plugin.attention.reference import Spans, random_shape


def assert_covers(spans: Spans, first: int, last: int, size: int) -> None:
    pieces = cut(spans, first, last, size)
    seen = set(range(first, last))
    parts: dict[int, list[int]] = {part: [] for part in (*range(len(spans)), OUTSIDE)}
    chunks: dict[int, set[int]] = {part: set() for part in parts}
    for number, (start, end, part) in enumerate(zip(pieces.start, pieces.end, pieces.part, strict=True)):
        assert 0 <= end - start <= piece_size(spans, size)
        parts[int(part)] += range(int(start), int(end))
        chunks[int(part)].add(number // CHUNK)
    for part, span in enumerate(spans):
        assert sorted(parts[part]) == sorted(set(range(*span)) & seen)
        assert len(chunks[part]) <= 1
    assert sorted(parts[OUTSIDE]) == sorted(seen.difference(*(range(*span) for span in spans)))


@pytest.mark.parametrize("size", [1, 7, 48, 256])
def test_pieces_are_the_tokens_that_a_row_sees_by_document(size: int) -> None:
    random_numbers = random.Random(size)
    for _ in range(50):
        shape = random_shape(random_numbers)
        for length, spans in zip(shape.lengths, shape.spans, strict=True):
            first = 0 if shape.window is None else max(0, length - shape.window)
            assert_covers(spans, first, length, size)


def test_the_pieces_of_a_document_are_merged_at_once_however_long_it_is() -> None:
    spans = ((0, 3), (3, 20_000), (20_001, 20_400), (20_400, 90_000))
    assert_covers(spans, 0, 90_100, 256)
    assert piece_size(spans) > 256


def test_a_row_that_grows_has_the_pieces_that_it_would_have_had_from_the_start() -> None:
    spans = ((5, 40), (40, 700))
    grown = cut(spans, 0, 700).with_tail(700, 1000, piece_size(spans))
    whole = cut(spans, 0, 1000)
    for one, other in ((grown.start, whole.start), (grown.end, whole.end), (grown.part, whole.part)):
        assert one.tolist() == other.tolist()
