"""Tokens that an answer must not contain: the number slots that its input does not have."""

from collections.abc import Iterable, Sequence
from typing import Any

from services.predict.number_slots import RESULTS, SLOTS

BROKEN = "\N{REPLACEMENT CHARACTER}"  # a token that is only some bytes of a character decodes to this


class SlotTokens:
    """The tokens of a vocabulary that write number slots.

    A student that names a slot without a number would leave a gap in its equation, so that such tokens are left out
    when an answer is decoded.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Find the tokens with signs, and those with parts of a character's bytes."""
        texts = {token: tokenizer.decode([token]) for token in range(len(tokenizer))}
        self._signs = {
            token: frozenset(text) & frozenset(SLOTS + RESULTS)
            for token, text in texts.items()
            if not frozenset(text).isdisjoint(SLOTS + RESULTS)
        }
        self._parts = tuple(token for token, text in texts.items() if BROKEN in text)

    def forbidden(self, input_ids: Iterable[int], *, is_label: bool) -> tuple[int, ...]:
        """Tokens that an answer to this input must not contain; a rationale, but no label, may hold results.

        None are forbidden if the input itself has no sign that is a token, as in a text without numbers or with a
        vocabulary that writes signs as bytes.
        """
        own: frozenset[str] = frozenset().union(*(self._signs.get(token, ()) for token in input_ids))
        if not own:
            return ()
        allowed = own if is_label else own | frozenset(RESULTS)
        return (*(token for token, signs in self._signs.items() if not signs <= allowed), *self._parts)


def forbidden_in_labels(tokenizer: Any, inputs: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """List the forbidden tokens of each input's label."""
    slots = SlotTokens(tokenizer)
    return [slots.forbidden(ids, is_label=True) for ids in inputs]
