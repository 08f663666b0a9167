"""Input texts of a CLIP text tower or a language model: tokenised once, and rejected if they are too long.

Shapes: W text tokens.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from services.core.errors import InvalidField, TooLarge
from services.nn.plain_texts import is_blank

InputIds = np.ndarray[Any, np.dtype[np.int64]]

# No vocabulary has more characters per token on average; longer texts are rejected before tokenization, whose time
# grows with the square of a word's length.
MAX_CHARACTERS_PER_TOKEN = 16
# White space is not counted, but a longer text is rejected or cut before it is examined.
MAX_CHARACTERS = 2**18


class TextTokenizer(Protocol):
    """Splits texts into tokens: CLIP's tokenizer, or a language model's for instructions."""

    context_length: int

    @property
    def plain(self) -> Callable[[str], str]:
        """The function that returns the form of a client's text that it reads best."""

    def num_tokens(self, text: str) -> int:
        """Count the tokens of a text before any truncation."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Tokenise texts to (N, W) int64, padded and cut at `context_length`."""


@dataclass(frozen=True, eq=False)
class Text:
    """A tokenised text, as an input of its own or as a condition: `input_ids` is (W,) int64, padded.

    `digest` is equal for texts that the model can't tell apart, whatever their spelling.
    """

    text: str
    input_ids: InputIds
    num_tokens: int
    digest: str


def tokenise(tokenizer: TextTokenizer, text: str, *, truncate: bool = False, keeps_spaces: bool = False) -> Text:
    """Tokenise a text in its plain form, with runs of spaces collapsed unless `keeps_spaces`.

    Raises TooLarge for more tokens than the context takes, unless `truncate` cuts them off, and
    InvalidField for a text without a character that can be seen.
    """
    max_characters = MAX_CHARACTERS_PER_TOKEN * tokenizer.context_length
    if len(text) <= MAX_CHARACTERS or truncate:
        text = tokenizer.plain(text[:MAX_CHARACTERS])
        text = text.strip() if keeps_spaces else " ".join(text.split())
    if is_blank(text):
        raise InvalidField("the text is empty: it needs at least one character that can be seen")
    if len(text) > max_characters:
        if not truncate:
            raise TooLarge(
                f"the text has {len(text)} characters: this model accepts at most {tokenizer.context_length} tokens, "
                f"so at most {max_characters} characters"
            )
        text = text[:max_characters]
    num_tokens = tokenizer.num_tokens(text)
    if num_tokens > tokenizer.context_length and not truncate:
        raise TooLarge(f"the text has {num_tokens} tokens: this model accepts at most {tokenizer.context_length}")
    input_ids = tokenizer([text])[0].numpy()
    digest = hashlib.sha256(input_ids.tobytes()).hexdigest()
    return Text(text, input_ids, min(num_tokens, tokenizer.context_length), digest)
