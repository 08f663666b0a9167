"""Heatmaps: tokens as a reader knows them, attention where the patches lie."""

import numpy as np
import pytest

from services.nn.clip_texts import Text, tokenise
from services.nn.clip_tokenizer import Tokenizer
from services.score.model.features import as_heatmaps, readable_pieces
from tests.score.tiny import tiny_clip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_clip().tokenizer


def ids_of(text: Text) -> list[int]:
    """Without the start."""
    return [int(token) for token in text.input_ids[1 : text.num_tokens]]


@pytest.mark.parametrize(
    ("caption", "pieces"),
    [
        ("a red square", ["a", "red", "square"]),
        ("An UNKNOWABLE\tdog's toy!", ["an", "un", "##know", "##able", "dog", "'s", "toy", "!"]),
        ("42 cats", ["4", "2", "cats"]),
        ("über", ["ü", "##ber"]),
        ("日", ["日"]),
    ],
)
def test_pieces_read_as_the_caption_and_the_end_has_a_name(
    tokenizer: Tokenizer, caption: str, pieces: list[str]
) -> None:
    assert readable_pieces(tokenizer, ids_of(tokenise(tokenizer, caption))) == [*pieces, "<end_of_text>"]


def test_a_byte_that_is_no_character_has_a_piece_of_its_own(tokenizer: Tokenizer) -> None:
    text = tokenise(tokenizer, "日本")
    pieces = readable_pieces(tokenizer, ids_of(text))
    assert len(pieces) == text.num_tokens - 1
    assert "�" in "".join(pieces)


def test_a_cut_caption_ends_with_the_end_too(tokenizer: Tokenizer) -> None:
    text = tokenise(tokenizer, "red " * 100, truncate=True)
    assert readable_pieces(tokenizer, ids_of(text)) == ["red"] * (tokenizer.context_length - 2) + ["<end_of_text>"]


def test_patches_stand_row_by_row() -> None:
    weights = np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 6)
    heatmaps = as_heatmaps(weights, (2, 3))
    assert heatmaps.shape == (2, 2, 3)
    np.testing.assert_allclose(heatmaps[1, 0], weights[1, :3], atol=1e-4)
    assert (heatmaps[0, 0, 0], heatmaps[1, 1, 2]) == (0, 1)
