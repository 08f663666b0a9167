"""The next token of each sequence of a batch, from its logits: greedy or sampled, with options per row.

Each answer has its own random generator and draws one number per token, so that the random numbers of a seed depend
neither on the rest of the batch nor on the device; the logits do, in their last bits.

Shapes: B rows, V vocabulary, R rows that sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.nn.device_copies import integers, to_device

NUM_SEEDS = 2**63


@dataclass(frozen=True)
class Sampling:
    """Options of drawing tokens, in OpenAI's terms.

    `temperature` 0 takes the most likely token. `top_p` keeps the smallest set of most likely tokens whose
    probabilities reach it. `seed` repeats the random numbers of an answer; None draws new ones each time.
    `num_logprobs` requests the log-probability of each token and of this number of the most likely ones; None requests
    neither. The penalties lower the logits of tokens that are already in the answer: once, and per occurrence.
    `logit_bias` contains pairs of a token id and an addition to its logit. Raises ValueError for a value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    num_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}: it must be finite and not below 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}: it must be above 0 and not above 1")
        if self.num_logprobs is not None and self.num_logprobs < 0:
            raise ValueError(f"num_logprobs is {self.num_logprobs}: it must not be below 0")

    @property
    def changes_logits(self) -> bool:
        """Whether anything is added to the logits before a token is chosen."""
        return bool(self.presence_penalty or self.frequency_penalty or self.logit_bias)


@dataclass(frozen=True)
class TokenChoice:
    """A chosen token and, if requested, its log-probability and the most likely (id, log p).

    Log-probabilities are the model's own (calibrated where the answer is), before temperature, top_p and penalties.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Chooser:
    """The state of one answer from token to token: its random generator, its tokens if they are penalised, and its
    `logit_bias` on the device of its logits."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._counts: dict[int, int] = {}
        self._bias: tuple[Tensor, Tensor] | None = None
        self._generator: torch.Generator | None = None
        if sampling.temperature > 0:
            self._generator = torch.Generator()
            if sampling.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(sampling.seed % NUM_SEEDS)

    def draw(self) -> float:
        """The next number in [0, 1); 0 for an answer that does not sample."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64)) if self._generator else 0.0

    def note(self, token_id: int) -> None:
        """Record a token of the answer."""
        if self.sampling.presence_penalty or self.sampling.frequency_penalty:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def penalties(self) -> dict[int, float]:
        """Return what is added to the logits of this answer's tokens."""
        presence, frequency = self.sampling.presence_penalty, self.sampling.frequency_penalty
        return {token_id: -presence - frequency * count for token_id, count in self._counts.items()}

    def add_bias_to(self, scores: Tensor) -> None:
        """Add the `logit_bias`, if any, to this answer's row (V,) of logits, in place. It is copied to the device once,
        because there may be one for every token."""
        if not self.sampling.logit_bias:
            return
        if self._bias is None:
            ids, values = zip(*self.sampling.logit_bias, strict=True)
            (token_ids,) = integers(ids, device=scores.device)
            self._bias = token_ids, to_device(torch.tensor(values, dtype=scores.dtype), scores.device)
        scores.index_add_(0, *self._bias)


def choose(logits: Tensor, choosers: Sequence[Chooser]) -> list[TokenChoice]:
    """Choose one token for each row of `logits` (B, V) float32 by the B choosers, which record it.

    Raises FloatingPointError for a row with NaN or ∞, or with nothing but −∞, because any choice would be meaningless.
    """
    scores = _with_additions(logits, choosers)
    best, chosen = scores.max(dim=-1)
    sampled = [row for row, chooser in enumerate(choosers) if chooser.sampling.temperature > 0]
    if sampled:
        some = [choosers[row] for row in sampled]
        rows, cut = integers(
            sampled, [row for row, one in enumerate(some) if one.sampling.top_p < 1], device=scores.device
        )
        chosen[rows] = _sample(scores[rows], some, cut)
    bests, ids = _read(best, chosen)
    if not np.isfinite(bests).all():
        raise FloatingPointError("the model's logits are not finite numbers")
    token_ids: list[int] = ids.tolist()
    for token_id, chooser in zip(token_ids, choosers, strict=True):
        chooser.note(token_id)
    return _with_logprobs(logits, token_ids, choosers)


def _with_additions(logits: Tensor, choosers: Sequence[Chooser]) -> Tensor:
    if not any(chooser.sampling.changes_logits for chooser in choosers):
        return logits
    scores = logits.clone()
    for row, chooser in zip(scores, choosers, strict=True):
        chooser.add_bias_to(row)
    penalties = {(row, id_): value for row, one in enumerate(choosers) for id_, value in one.penalties().items()}
    if penalties:
        rows, token_ids = integers(*zip(*penalties, strict=True), device=scores.device)
        scores[rows, token_ids] += to_device(torch.tensor(list(penalties.values()), dtype=scores.dtype), scores.device)
    return scores


def _sample(scores: Tensor, choosers: Sequence[Chooser], cut: Tensor) -> Tensor:
    """Sample token ids (R,) for `scores` (R, V). The rows with top_p, `cut`, and those without it are computed
    separately, so that a row's result does not depend on other rows."""
    options = [(one.sampling.temperature, one.draw(), one.sampling.top_p) for one in choosers]
    copied = to_device(torch.tensor(options, dtype=torch.float64).float(), scores.device)
    # the smallest temperature and top_p are 0 in float32, which would divide by 0 and keep nothing
    tiny = torch.finfo(torch.float32).tiny
    temperatures, draws, top_p = copied[:, :1].clamp_min(tiny), copied[:, 1], copied[:, 2:].clamp_min(tiny)
    # the largest score is subtracted first, so that a tiny temperature does not lead to inf − inf
    scaled = (scores - scores.amax(dim=-1, keepdim=True)) / temperatures
    probabilities = scaled.softmax(dim=-1)
    chosen = _at(probabilities, draws)
    if len(cut):
        ordered, order = probabilities[cut].sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        # the sum before the first is 0, so the most likely token is always kept
        place = _at(torch.where(before < top_p[cut], ordered, 0.0), draws[cut])
        chosen[cut] = order.gather(-1, place[:, None])[:, 0]
    return chosen


def _at(weights: Tensor, draws: Tensor) -> Tensor:
    """Find where draws in [0, 1) fall among weights (R, V) laid end to end: (R,), never on a weight of 0.

    If weights are not numbers, it is the last place.
    """
    cumulated = weights.cumsum(dim=-1)
    total = cumulated[:, -1]
    # rounding may raise draw · total to total itself, beyond the last weight
    aim = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, aim[:, None], right=True)[:, 0].clamp_max_(weights.shape[-1] - 1)


def _with_logprobs(logits: Tensor, token_ids: Sequence[int], choosers: Sequence[Chooser]) -> list[TokenChoice]:
    choices = [TokenChoice(token_id) for token_id in token_ids]
    wanted = [row for row, chooser in enumerate(choosers) if chooser.sampling.num_logprobs is not None]
    if not wanted:
        return choices
    rows, own = integers(wanted, [token_ids[row] for row in wanted], device=logits.device)
    logprobs = logits[rows].log_softmax(dim=-1)
    numbers = [min(choosers[row].sampling.num_logprobs or 0, logits.shape[-1]) for row in wanted]
    best, best_ids = logprobs.topk(max(numbers), dim=-1)
    own_logprobs, best_logprobs, ids = _read(logprobs.gather(-1, own[:, None]), best, best_ids)
    for place, (row, number) in enumerate(zip(wanted, numbers, strict=True)):
        top = zip(ids[place, :number].tolist(), best_logprobs[place, :number].tolist(), strict=True)
        choices[row] = TokenChoice(token_ids[row], float(own_logprobs[place, 0]), tuple(top))
    return choices


def _read(*columns: Tensor) -> list[np.ndarray[Any, Any]]:
    """Copy float32 and integers, (…, n) each, to the host together, since each copy waits for the device."""
    bits = torch.cat([one.view(torch.int32) if one.is_floating_point() else one.int() for one in columns], dim=-1)
    read = np.split(bits.cpu().numpy(), np.cumsum([one.shape[-1] for one in columns[:-1]]), axis=-1)
    return [own.view(np.float32) if one.is_floating_point() else own for own, one in zip(read, columns, strict=True)]
