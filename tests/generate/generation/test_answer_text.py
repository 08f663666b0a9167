"""Tokens to text: nothing that was given away is ever taken back, and the pieces are the whole."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from services.generate.generation.answer_text import AnswerText, Detokenizer, Piece, StopStrings, TokenOut, Vocabulary
from services.generate.generation.sampling import TokenChoice
from tests.generate.small_tokenizers import TOKENIZERS, byte_level, prepended

TEXTS = (
    "Answer: three brothers",
    " a space in front, two  inside, one behind ",
    "Käthe's café façade — naïve jalapeño, 1.5 °C",
    "東京 is a city 🗼👩‍👩‍👧 é 日本",
    "line\n\n\nbreaks\n",
    "",
)


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def pieces_of(tokenizer: Any, ids: Sequence[int], context: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(Vocabulary(tokenizer).decode, context)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def cut(text: str, stops: Sequence[str], sizes: Sequence[int]) -> str:
    """Return the rest of a text that arrives in parts of these sizes."""
    stop = StopStrings(stops)
    given, at = "", 0
    for size in itertools.chain(sizes, itertools.repeat(len(text))):
        given += stop.push(text[at : at + size])
        at += size
        if at >= len(text) or stop.found is not None:
            break
    return given + stop.flush()


# Detokenizing


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_text_are_the_whole(tokenizer: Any, text: str) -> None:
    ids = ids_of(tokenizer, text)
    assert "".join(pieces_of(tokenizer, ids)) == decoded(tokenizer, ids)


def test_pieces_of_a_text_with_control_tokens_are_the_whole(tokenizer: Any) -> None:
    eos = tokenizer.eos_token_id
    ids = [eos, *ids_of(tokenizer, "one"), eos, eos, *ids_of(tokenizer, " two 東"), eos, *ids_of(tokenizer, "京")]
    assert "".join(pieces_of(tokenizer, ids)) == decoded(tokenizer, ids)


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_holds_half_a_character(tokenizer: Any, text: str) -> None:
    assert not any("\ufffd" in piece for piece in pieces_of(tokenizer, ids_of(tokenizer, text)))


def test_every_piece_comes_as_soon_as_it_is_certain(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "the oldest lighthouse of the northern coast")
    pieces = pieces_of(tokenizer, ids)
    assert all(pieces[1:-1]) and not pieces[-1]


def test_bytes_that_never_become_text_come_as_the_whole_has_them() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    byte_ids = {vocabulary.utf8(i): i for i in range(len(tokenizer)) if len(vocabulary.utf8(i)) == 1}
    generator = random.Random(0)
    for _ in range(200):
        ids = [byte_ids[bytes([generator.choice([0x61, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0xFF])])] for _ in range(12)]
        assert "".join(pieces_of(tokenizer, ids)) == decoded(tokenizer, ids)


def test_bytes_that_never_become_text_are_not_held_for_ever() -> None:
    tokenizer = prepended()
    invalid = tokenizer.convert_tokens_to_ids("<0xFF>")
    pieces = pieces_of(tokenizer, [invalid] * 500)
    assert "".join(pieces) == "\ufffd" * 500
    assert sum(map(bool, pieces)) > 1


def test_what_was_given_away_stands_when_the_bytes_behind_it_are_no_text() -> None:
    tokenizer = prepended()
    ids = tokenizer.convert_tokens_to_ids(["▁", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "a"])
    assert "".join(pieces_of(tokenizer, ids)) == "€\ufffda"


def test_a_continued_text_keeps_the_space_that_it_goes_on_with() -> None:
    tokenizer = prepended()
    prompt, rest = "the oldest lighthouse", " of the northern coast"
    ids = ids_of(tokenizer, prompt + rest)
    context = ids[: len(ids_of(tokenizer, prompt))]
    assert "".join(pieces_of(tokenizer, ids[len(context) :], context)) == rest
    assert "".join(pieces_of(tokenizer, ids[len(context) :])) == rest.removeprefix(" ")


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_a_texts_tokens_are_its_own(tokenizer: Any, text: str) -> None:
    vocabulary = Vocabulary(tokenizer)
    joined = b"".join(vocabulary.utf8(token_id) for token_id in ids_of(tokenizer, text)).decode()
    assert joined in (text, f" {text}")  # the space that some tokenizers put in front


def test_a_token_has_its_bytes_where_log_probabilities_were_asked_for() -> None:
    tokenizer = byte_level()
    (token_id,) = ids_of(tokenizer, " the")
    bos = tokenizer.bos_token_id
    token = Vocabulary(tokenizer).token(TokenChoice(token_id, -0.5, ((token_id, -0.5), (bos, -1.0), (10**6, -2.0))))
    assert (token.text, token.utf8, token.logprob) == (" the", b" the", -0.5)
    assert [(other.text, other.logprob) for other in token.top] == [(" the", -0.5), ("<bos>", -1.0), ("", -2.0)]
    assert Vocabulary(tokenizer).token(TokenChoice(token_id)) == TokenOut(token_id)


# Stop strings

ALPHABET_TEXTS = ["".join(letters) for n in range(7) for letters in itertools.product("ab", repeat=n)]


@pytest.mark.parametrize("stops", [["ab"], ["aab", "ba"], ["a", "aa"], ["abab", "bb"], ["bab", "ab", "abb"]])
def test_where_a_text_is_cut_does_not_depend_on_how_it_is_divided(stops: list[str]) -> None:
    for text in ALPHABET_TEXTS:
        ends = sorted((i + len(stop), i) for stop in stops for i in range(len(text)) if text.startswith(stop, i))
        expected = text if not ends else text[: ends[0][1]]
        for size in (1, 2, 3, 7):
            assert cut(text, stops, itertools.repeat(size, 10)) == expected  # type: ignore[arg-type]


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    stop = StopStrings(["\n\n", "Question:"])
    assert [stop.push(text) for text in ("Ada", ".\n", "Ques", "tion", "s")] == ["Ada", ".", "\n", "", "Questions"]
    assert stop.push(" Qu") == " " and stop.flush() == "Qu"


def test_empty_stop_strings_stop_nothing() -> None:
    assert cut("some text", ["", ""], [3, 3]) == "some text"


# Both together


def answer(tokenizer: Any, stops: Sequence[str] = ()) -> AnswerText:
    return AnswerText(Detokenizer(Vocabulary(tokenizer).decode), StopStrings(stops))


def run(text: AnswerText, ids: Sequence[int]) -> list[Piece]:
    pieces = []
    for token_id in ids:
        pieces.append(text.push(TokenOut(token_id)))
        if text.is_stopped:
            return pieces
    return [*pieces, text.finish()]


def test_a_stop_string_that_spans_tokens_ends_the_answer_before_it(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "three brothers lit it in 1789. Question: who")
    whole = decoded(tokenizer, ids)
    for stop in (" lit it", "rothers", "1789. Q"):
        kept = whole[: whole.index(stop)]
        text = answer(tokenizer, [stop])
        assert "".join(piece.text for piece in run(text, ids)) == kept
        assert text.is_stopped


def test_tokens_come_with_their_text_and_those_of_the_stop_string_never() -> None:
    tokenizer = byte_level()
    ids = ids_of(tokenizer, "three brothers lit")
    text = answer(tokenizer, [" lit"])
    pieces = run(text, ids)
    given = [token.token_id for piece in pieces for token in piece.tokens]
    assert decoded(tokenizer, given) == "".join(piece.text for piece in pieces) == "three brothers"
    assert [decoded(tokenizer, [token.token_id for token in piece.tokens]) for piece in pieces] == [
        piece.text for piece in pieces
    ]


def test_every_token_of_an_answer_that_is_not_stopped_comes_once(tokenizer: Any) -> None:
    ids = [*ids_of(tokenizer, "東京 is\n"), tokenizer.eos_token_id, *ids_of(tokenizer, "a city\n")]
    pieces = run(answer(tokenizer, ["\n\n"]), ids)
    assert [token.token_id for piece in pieces for token in piece.tokens] == ids


def test_a_stop_string_that_half_a_character_completes_is_found_at_the_end() -> None:
    tokenizer = prepended()
    ids = [*ids_of(tokenizer, "one"), tokenizer.convert_tokens_to_ids("<0xE2>")]
    text = answer(tokenizer, ["\ufffd"])
    assert "".join(piece.text for piece in run(text, ids)) == "one"
    assert text.is_stopped
