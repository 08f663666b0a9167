"""Conditions recur: the tokens of those that were asked for lately are remembered."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from services.nn.clip_texts import InputIds

# This many tokens cost a few hundred kilobytes.
MAX_REMEMBERED_CONDITIONS = 256


class ConditionTokens:
    """Remembers what `encode`, the condition tower, made of conditions: token ids (W,) each → (C, D)."""

    def __init__(self, encode: Callable[[Sequence[InputIds]], Tensor]) -> None:
        self._encode = encode
        self._remembered: OrderedDict[str, Tensor] = OrderedDict()

    def of(self, conditions: Mapping[str, InputIds]) -> Tensor:
        """Tokens (C, D) of at least one condition, given by digest; only those that were not asked for lately pass
        the tower."""
        remembered = self._remembered
        new = [digest for digest in conditions if digest not in remembered]
        if new:
            tokens = self._encode([conditions[digest] for digest in new])
            for digest, token in zip(new, tokens, strict=True):
                remembered[digest] = token.clone()  # a view would keep its whole batch in memory
        for digest in conditions:
            remembered.move_to_end(digest)
        chosen = torch.stack([remembered[digest] for digest in conditions])
        while len(remembered) > MAX_REMEMBERED_CONDITIONS:
            remembered.popitem(last=False)
        return chosen
