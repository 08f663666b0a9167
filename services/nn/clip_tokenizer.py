"""CLIP's byte-pair tokenizer, and the Hugging Face tokenizers of other text towers.

Shapes: N texts, W text tokens.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
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
