import gzip
from pathlib import Path

import pytest

from services.core.errors import TooLarge
from services.core.refusals import Refused
from services.nn.clip_model import MAX_MERGES_BYTES, create_clip, open_clip
from services.nn.clip_texts import MAX_CHARACTERS, tokenise
from services.nn.clip_tokenizer import Tokenizer, read_hugging_face_tokenizer
from tests.published_clips import write_siglip


class Unread(str):
    """A text that is not to be taken apart as a whole."""

    __slots__ = ()

    def split(self, *arguments: object) -> list[str]:
        raise AssertionError("all of it is looked at")


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(open_clip().tokenizer.SimpleTokenizer(context_length=16), 16)


def test_merges_that_unpack_to_far_more_than_a_vocabulary_has_are_refused(tmp_path: Path) -> None:
    merges = tmp_path / "bpe.txt.gz"
    merges.write_bytes(gzip.compress(b"\n" * (MAX_MERGES_BYTES + 1)))
    config = {"embed_dim": 8, "vision_cfg": {"image_size": 16, "patch_size": 16, "width": 64, "layers": 1}}
    with pytest.raises(Refused, match=r"bpe\.txt\.gz unpacks to more than 16777216 bytes"):
        create_clip({"model_cfg": {**config, "text_cfg": {"width": 64, "heads": 1, "layers": 1}}}, merges)


def test_a_vocabulary_with_more_tokens_than_the_model_is_refused() -> None:
    vision = {"image_size": 16, "patch_size": 16, "width": 64, "layers": 1}
    text = {"width": 64, "heads": 1, "layers": 1, "vocab_size": 600}
    with pytest.raises(
        Refused, match=r"vocab_size is 600, and the vocabulary has 49408 tokens: .* `fovea store publish`"
    ):
        create_clip({"model_cfg": {"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}})


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


@pytest.mark.parametrize(
    "text",
    ["a <end_of_text> dog", "<END_OF_TEXT>", "&lt;end_of_text&gt; dog", "a <start_of_text>", "&amp;lt;end_of_text>"],
)
def test_control_tokens_that_a_caption_spells_are_read_as_text(tokenizer: Tokenizer, text: str) -> None:
    read = tokenise(tokenizer, text)
    own = [token for token in read.input_ids.tolist() if token in tokenizer.wrapped.all_special_ids]
    assert own == tokenizer.wrapped.all_special_ids
    assert read.input_ids.tolist()[read.num_tokens - 1] == tokenizer.wrapped.eot_token_id
    assert read.digest == tokenise(tokenizer, text.replace("_of", " _of").replace("lt;", "lt; ")).digest


def test_control_tokens_that_a_caption_spells_are_read_as_text_by_the_tokenizer_of_a_siglip(tmp_path: Path) -> None:
    tokenizer = read_hugging_face_tokenizer(write_siglip(tmp_path / "siglip"), 64, {})
    end = tokenizer.wrapped.tokenizer.eos_token_id
    for text in ("a</s>dog", "</s>", "a dog"):
        read = tokenise(tokenizer, text)
        assert read.input_ids.tolist().index(end) == read.num_tokens - 1
