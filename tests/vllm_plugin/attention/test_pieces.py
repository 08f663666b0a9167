"""Pieces cover each token that a row sees once, and never mix two documents."""

import random

import pytest
import torch

from fovea_vllm.attention.rows import DocumentRows, cut
from tests.vllm_plugin.attention.reference import random_shape


@pytest.mark.parametrize("size", [1, 7, 48, 256])
def test_pieces_are_the_tokens_that_a_row_sees_by_document(size: int) -> None:
    random_numbers = random.Random(size)
    for _ in range(50):
        shape = random_shape(random_numbers)
        table = torch.zeros(len(shape.lengths), 1, dtype=torch.int32)
        rows = DocumentRows.of(table, shape.lengths, shape.spans)
        pieces = cut(rows.starts, rows.ends, rows.seq_lens, shape.window, size)
        assert pieces.first.shape == (len(shape.lengths), shape.num_documents + 2)
        assert int(pieces.first[-1, -1]) == len(pieces.row) == len(pieces.part)
        for row, (length, spans) in enumerate(zip(shape.lengths, shape.spans, strict=True)):
            seen = set(range(0 if shape.window is None else max(0, length - shape.window), length))
            parts = [set(range(*span)) & seen for span in spans]
            parts += [set() for _ in range(shape.num_documents - len(spans))]
            parts.append(seen.difference(*parts))
            for part, expected in enumerate(parts):
                tokens: list[int] = []
                for piece in range(int(pieces.first[row, part]), int(pieces.first[row, part + 1])):
                    assert (int(pieces.row[piece]), int(pieces.part[piece])) == (row, part)
                    start, end = int(pieces.start[piece]), int(pieces.end[piece])
                    assert 0 < end - start <= size
                    tokens += range(start, end)
                assert sorted(tokens) == sorted(expected)
