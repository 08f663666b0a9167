"""Texts cut after so many tokens, where a request asks for it. Torch-free."""

from typing import Any

# What is read of a text at first, and how many tokens its unread rest could change at the end of what was read.
CHARACTERS_PER_TOKEN = 8
NUM_UNCERTAIN_TOKENS = 16


def shorten(tokenizer: Any, text: str, max_tokens: int) -> str | None:
    """`text` without what begins after its first `max_tokens` tokens; None where it has no more than these.

    `tokenizer` is a fast tokenizer of transformers; special tokens do not count. A character that takes several
    tokens is kept or left out whole, so fewer tokens may be left. Takes time for what is kept, not for what is not.
    """
    num_characters = CHARACTERS_PER_TOKEN * (max_tokens + NUM_UNCERTAIN_TOKENS)
    while True:
        encoded = tokenizer(text[:num_characters], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = encoded["offset_mapping"]
        is_whole = num_characters >= len(text)
        if len(offsets) > max_tokens and (is_whole or len(offsets) >= max_tokens + NUM_UNCERTAIN_TOKENS):
            return text[: offsets[max_tokens][0]]
        if is_whole:
            return None
        num_characters *= 2
