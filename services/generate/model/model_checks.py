"""Checks that a language model computes correctly, and its outputs for reference texts.

Shapes: V vocabulary.
"""

from typing import Any

import torch

from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.generate.prompts.templates import Piece, tokenise
from services.nn.broken_model import BrokenModel

# Two orders of summation of one logit differ, relative to the largest; a wrong mask or position differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
NUM_REFERENCE_TOKENS = 64


def check_last_token(model: LanguageModel, input_ids: tuple[int, ...]) -> None:
    """Raises BrokenModel unless prefilling, re-running and decoding a prompt's last token give equal logits."""
    cache = model.new_cache(2 * len(input_ids))
    whole, parted = cache.open(len(input_ids)), cache.open(len(input_ids))
    expected = model.prefill([Prefill(whole, input_ids)])[0].logits
    model.prefill([Prefill(parted, input_ids[:-1])])
    last = input_ids[-1:]
    for way, logits in (
        ("decoded", model.decode([Row(parted, last)])[0]),
        ("run again", model.rerun([Row(whole, last)])[0]),
    ):
        difference = float((logits - expected).abs().max() / expected.abs().max())
        # written so that NaN fails
        if not difference <= SELF_CHECK_TOLERANCE[model.dtype]:
            raise BrokenModel(f"logits of a token change by {difference:.3g} when it is {way}")


def reference_token_ids(vocab_size: int) -> range:
    """Return the tokens whose logits are compared, evenly spaced in the vocabulary."""
    return range(0, vocab_size, max(1, vocab_size // NUM_REFERENCE_TOKENS))


def next_logits(model: LanguageModel, tokenizer: Any, text: str, max_tokens: int) -> list[float]:
    """Return some tokens' logits, evenly spaced in V, minus their mean, after at most the first `max_tokens` tokens of
    a text.
    """
    input_ids = tokenise(tokenizer, [Piece(text)]).input_ids[:max_tokens]
    (last,) = model.prefill([Prefill(model.new_cache(len(input_ids)).open(len(input_ids)), input_ids)])
    logits = last.logits.double()[list(reference_token_ids(model.config.vocab_size))]
    return (logits - logits.mean()).tolist()
