import pytest

from services.core.errors import TooLarge
from services.nn.clip_model import open_clip
from services.nn.clip_texts import MAX_CHARACTERS, tokenise
from services.nn.clip_tokenizer import Tokenizer


class Unread(str):
    """A text that is not to be taken apart as a whole."""

    __slots__ = ()

    def split(self, *arguments: object) -> list[str]:
        raise AssertionError("all of it is looked at")


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(open_clip().tokenizer.SimpleTokenizer(context_length=16), 16)


def test_a_text_far_too_long_is_refused_without_being_taken_apart(tokenizer: Tokenizer) -> None:
    text = Unread("a dog " * MAX_CHARACTERS)
    with pytest.raises(TooLarge, match=f"has {len(text)} characters"):
        tokenise(tokenizer, text)


def test_a_text_far_too_long_is_cut_to_what_is_looked_at(tokenizer: Tokenizer) -> None:
    text = Unread("a dog " * MAX_CHARACTERS)
    cut = tokenise(tokenizer, text, truncate=True)
    assert cut.digest == tokenise(tokenizer, "a dog " * 1000, truncate=True).digest


def test_white_space_between_words_is_not_counted(tokenizer: Tokenizer) -> None:
    spread = "a" + " " * (MAX_CHARACTERS - 4) + "dog"
    assert tokenise(tokenizer, spread).digest == tokenise(tokenizer, "a dog").digest
