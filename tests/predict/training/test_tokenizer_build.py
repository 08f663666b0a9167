"""The tokenizer of a student from scratch."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.nn.loading import transformers
from services.predict.training.initialisation import MIN_VOCABULARY, build_tokenizer

TEXTS = [
    "predict: Each box holds 12 apples and 7 pears.</s>How many apples are in 3 boxes?",
    "explain: Each box holds 5 apples.\nHow many apples are there?",
    "entailment",
    "neutral",
    "contradiction",
] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(TEXTS, 400)


def test_the_control_tokens_are_t5s_and_an_end_is_behind_every_text(tokenizer: Any) -> None:
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer("apples").input_ids[-1] == 1
    assert tokenizer("").input_ids[-1] == 1
    assert len(tokenizer) <= 400


@given(text=st.text())
def test_any_text_comes_back_as_it_was(tokenizer: Any, text: str) -> None:
    if not any(token in text for token in ("<pad>", "</s>", "<unk>")):
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_digits_stay_apart(tokenizer: Any) -> None:
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("12 apples, 1234").input_ids)
    assert [token for token in tokens if any(sign.isdigit() for sign in token)] == ["Ġ1", "2", "Ġ1", "2", "3", "4"]


def test_a_frequent_word_is_one_token_and_the_same_at_the_beginning(tokenizer: Any) -> None:
    (first, end) = tokenizer("apples").input_ids
    assert tokenizer("Each apples").input_ids[-2:] == [first, end]
    assert tokenizer("Each</s>apples").input_ids[-2:] == [first, end]
    assert len(tokenizer("entailment").input_ids) == 2


def test_the_end_of_sequence_inside_of_a_text_is_one_token_and_in_no_piece(tokenizer: Any) -> None:
    assert tokenizer("a</s>b").input_ids.count(1) == 2
    assert not any("</" in token for token in tokenizer.get_vocab() if token != "</s>")


def test_the_same_texts_give_the_same_tokens() -> None:
    assert build_tokenizer(TEXTS, 400).get_vocab() == build_tokenizer(TEXTS, 400).get_vocab()


def test_it_is_the_same_once_it_is_read_from_a_folder(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    again = transformers().AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    text = "predict: Some other apples.</s>How many? é 12"
    assert again(text).input_ids == tokenizer(text).input_ids
    assert again.decode(again(text).input_ids) == tokenizer.decode(tokenizer(text).input_ids)
    assert (again.pad_token_id, again.eos_token_id, again.unk_token_id) == (0, 1, 2)


def test_a_vocabulary_without_room_for_all_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="259"):
        build_tokenizer(TEXTS, MIN_VOCABULARY - 1)
