"""CLIP's byte-pair tokenizer, custom vocabularies for it, and the Hugging Face tokenizers of other text towers.

Shapes: N texts, W text tokens.
"""

import gzip
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from services.core.refusals import Refused
from services.nn.loading import declare_torchvision_operators, quiet_loading
from services.nn.plain_texts import PlainTexts

# SimpleTokenizer caches every word that it has seen; the cache is cleared at this size.
MAX_REMEMBERED_WORDS = 100_000
# open_clip's options of such a tokenizer; any other would reach transformers.
HUGGING_FACE_OPTIONS = ("clean", "language", "strip_sep_token", "tokenizer_mode")


class Tokenizer:
    """A CLIP tokenizer that can count a text's tokens before truncating it; `wrapped` is open_clip's.

    Control tokens that a text spells are read as text, also those that cleaning makes of `&lt;end_of_text&gt;`.
    """

    def __init__(self, tokenizer: Any, context_length: int) -> None:
        self.wrapped = tokenizer
        self._is_clips_own = hasattr(tokenizer, "encode")
        if self._is_clips_own:
            controls = {tokenizer.decoder[one] for one in tokenizer.all_special_ids}
            plain_texts = PlainTexts(tokenizer.encoder.keys() - controls, controls, ignores_case=True)
        else:
            plain_texts = PlainTexts.of(tokenizer.tokenizer)
        self.plain = plain_texts.characters
        tokenizer.clean_fn = partial(_clean_and_break_up, tokenizer.clean_fn, plain_texts)
        self.context_length = context_length
        # a Hugging Face tokenizer keeps padding and truncation between calls, and fails if two threads change them
        self._one_at_a_time = threading.Lock()

    def num_tokens(self, text: str) -> int:
        """Count the tokens of a text with its start and end, before any truncation."""
        if self._is_clips_own:
            self._forget_words()
            return len(self.wrapped.encode(text)) + 2
        with self._one_at_a_time:
            return len(self.wrapped.tokenizer(self.wrapped.clean_fn(text))["input_ids"])

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Tokenise texts to (N, W) int64, padded to and cut at the model's context length."""
        self._forget_words()
        with self._one_at_a_time:
            input_ids: Tensor = self.wrapped(list(texts), context_length=self.context_length)
        return input_ids

    def decode(self, input_ids: Sequence[int]) -> str:
        """Return the text of tokens; invalid UTF-8 becomes U+FFFD.

        CLIP's own vocabulary has a space after each token that ends a word.
        """
        vocabulary = self.wrapped if hasattr(self.wrapped, "decode") else self.wrapped.tokenizer
        text: str = vocabulary.decode(list(input_ids))
        return text

    def _forget_words(self) -> None:
        words: dict[str, str] = getattr(self.wrapped, "cache", {})
        if len(words) > MAX_REMEMBERED_WORDS:
            words.clear()


def _clean_and_break_up(clean: Callable[[str], str], plain_texts: PlainTexts, text: str) -> str:
    return plain_texts.break_up(clean(text))


def read_hugging_face_tokenizer(directory: Path, context_length: int, options: Mapping[str, Any]) -> Tokenizer:
    """Read a folder's tokenizer as open_clip does, with open_clip's `options`; nothing is downloaded or executed.

    Raises Refused for files that transformers can't read.
    """
    declare_torchvision_operators()
    from open_clip.tokenizer import HFTokenizer

    if unknown := sorted(options.keys() - HUGGING_FACE_OPTIONS):
        raise Refused(
            f"text_cfg.tokenizer_kwargs has {', '.join(unknown)}: known are {', '.join(HUGGING_FACE_OPTIONS)}"
        )
    try:
        with quiet_loading():
            found = HFTokenizer(
                str(directory),
                context_length=context_length,
                **{name: value for name, value in options.items() if value is not None},
                local_files_only=True,
                trust_remote_code=False,
            )
    except ImportError as error:
        raise Refused(f"this model's tokenizer needs the transformers package: {error}") from error
    return Tokenizer(found, context_length)


def learn_merges(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return byte-pair merges that make one token of each lower-case word of `texts`; other words fall into bytes.

    Words are merged from the left, each along the merges learned before it.
    """
    words = sorted({word for text in texts for word in re.findall(r"[a-z]+", text.lower())})
    merges: dict[tuple[str, str], int] = {}
    for word in words:
        symbols = [*word[:-1], word[-1] + "</w>"]
        while len(symbols) > 1:
            pairs = list(itertools.pairwise(symbols))
            best = min(pairs, key=lambda pair: merges.get(pair, len(merges)))
            merges.setdefault(best, len(merges))
            at = pairs.index(best)
            symbols[at : at + 2] = ["".join(best)]
    return list(merges)


def vocabulary_size(merges: Sequence[tuple[str, str]]) -> int:
    """Count a SimpleTokenizer's tokens with these merges: bytes inside and at the end of words, merges, start, end."""
    return 512 + len(merges) + 2


def write_merges(merges: Sequence[tuple[str, str]], path: Path) -> None:
    """Write a BPE vocabulary in the format of open_clip's SimpleTokenizer: a header line, then one merge per line."""
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    # a fixed time in the gzip header makes the bytes, and so the digests, of equal vocabularies equal
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
