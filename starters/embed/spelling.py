"""Texts with a word spelled in bytes, so that a tower learns to read words that are not in its vocabulary."""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from services.nn.clip_tokenizer import Tokenizer


def spelled(tokenizer: Tokenizer, texts: Sequence[str], random: Random, share: float) -> Tensor:
    """Tokenise texts → (N, W), but with probability `share` spell one word of a text: each of its bytes is a token.

    This is a simple form of subword regularization (Kudo 2018). A tokenizer other than CLIP's own spells nothing.
    """
    input_ids = tokenizer(texts)
    known = tokenizer.wrapped
    if not hasattr(known, "byte_encoder"):
        return input_ids
    start, end = known.all_special_ids[:2]
    for row, text in enumerate(texts):
        if random.random() >= share:
            continue
        tokens = [start, *_spell_one_word(known, text, random), end][: tokenizer.context_length]
        tokens[-1] = end
        input_ids[row] = 0
        input_ids[row, : len(tokens)] = torch.tensor(tokens)
    return input_ids


def _spell_one_word(known: Any, text: str, random: Random) -> list[int]:
    words = known.pat.findall(known.clean_fn(text))
    chosen = random.randrange(len(words)) if words else -1
    tokens: list[int] = []
    for place, word in enumerate(words):
        letters = "".join(known.byte_encoder[byte] for byte in word.encode())
        pieces = [*letters[:-1], letters[-1] + "</w>"] if place == chosen else known.bpe(letters).split(" ")
        tokens += [known.encoder[piece] for piece in pieces]
    return tokens
