"""Texts cut after so many tokens, where a request asks for it. Torch-free."""

from typing import Any


def shorten(tokenizer: Any, text: str, max_tokens: int) -> str | None:
    """`text` without what begins after its first `max_tokens` tokens; None where it has no more than these.

    `tokenizer` is a fast tokenizer of transformers; special tokens do not count. A character that takes several
    tokens is kept or left out whole, so fewer tokens may be left.
    """
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = encoded["offset_mapping"]
    if len(offsets) <= max_tokens:
        return None
    return text[: offsets[max_tokens][0]]
