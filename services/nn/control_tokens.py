"""Control tokens that a client's text spells: they are broken up, so that the model reads them as text."""

import re
from collections.abc import Iterable
from typing import Any


class ControlTokens:
    """The texts that a tokenizer reads as tokens of its own, such as `<end_of_text>` or `[SEP]`."""

    def __init__(self, spelled: Iterable[str], *, ignores_case: bool = False) -> None:
        longest_first = sorted(filter(str.strip, spelled), key=len, reverse=True)
        flags = re.IGNORECASE if ignores_case else 0
        # what never matches, where there are none
        self._spelled = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", flags)

    @classmethod
    def of(cls, tokenizer: Any) -> "ControlTokens":
        """Return the added tokens of a tokenizer of transformers, white space excepted."""
        return cls(token.content for token in tokenizer.added_tokens_decoder.values())

    def break_up(self, text: str) -> str:
        """Put a space after the first character of each one in a text: `<pad>` becomes `< pad>`."""
        return self._spelled.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
