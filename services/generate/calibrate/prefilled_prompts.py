"""Prompts that are prefilled once and answered many times, each time under a different calibration.

Calibration changes nothing before the calibrated prompt rows, so a search among hundreds of settings needs only one
prefill and one estimate of the bias: a setting costs a re-run of a prompt's last rows and its answer.

Shapes: L layers, H heads, K documents.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generate.calibration import Calibration
from services.generate.generation.bias import BiasEstimate, BiasJob, DummyOptions, EstimateKind, estimate_bias
from services.generate.generation.relevance import calibration_of, document_relevance
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.generate.model.profile import CalibrationProfile, RowScope
from services.generate.prompts.templates import Prompt, filler_ids

# Tells whether an answer of these tokens is complete.
IsComplete = Callable[[tuple[int, ...]], bool]


@dataclass(eq=False)
class PrefilledPrompts:
    """Prompts with room for `max_tokens` of an answer, one cache slot each; `attention` is (L, H, K) per prompt."""

    model: LanguageModel
    prompts: tuple[Prompt, ...]
    slots: tuple[Slot, ...]
    attention: tuple[Tensor, ...]
    max_tokens: int

    def estimate(self, kind: EstimateKind, options: DummyOptions | None = None) -> list[BiasEstimate]:
        """Estimate Attn(dummy, k) of each prompt, over all layers."""
        filler = filler_ids(self.model.tokenizer)
        jobs = [BiasJob(slot, prompt, filler) for slot, prompt in zip(self.slots, self.prompts, strict=True)]
        return estimate_bias(self.model, jobs, kind, options=options)

    def calibrations(
        self, profile: CalibrationProfile, estimates: Sequence[BiasEstimate] | None
    ) -> list[Calibration | None]:
        """Make each prompt's calibration by a profile; None for one without documents. `cached` needs no estimates.

        Raises BadProfile if a cached bias has no table for a prompt's documents.
        """
        return [
            self._calibration(profile, place, None if estimates is None else estimates[place].attention)
            if prompt.spans
            else None
            for place, prompt in enumerate(self.prompts)
        ]

    def answers(
        self, calibrations: Sequence[Calibration | None], row_scope: RowScope, is_complete: IsComplete
    ) -> list[tuple[int, ...]]:
        """Answer greedily, without the end-of-text token; later answers are not affected."""
        lengths = [len(prompt.input_ids) for prompt in self.prompts]
        logits = self.first_logits(calibrations, row_scope)
        answers = self._decoded(logits, calibrations, is_complete)
        for slot, length in zip(self.slots, lengths, strict=True):
            slot.length = length
        if row_scope == "tail":
            # later answers read these rows as keys, but each re-runs only the last row
            self.first_logits([None] * len(self.slots), row_scope)
        return answers

    def first_logits(self, calibrations: Sequence[Calibration | None], row_scope: RowScope) -> Tensor:
        """Run the prompts' last rows once more, which keep their places only with `tail`: (B, V)."""
        rows = zip(self.slots, self.prompts, calibrations, strict=True)
        if row_scope == "tail":
            return self.model.rerun(
                [Row(slot, prompt.input_ids[prompt.tail_start :], calibration) for slot, prompt, calibration in rows]
            )
        # one row of each: decoding runs them as a batch, whereas a re-run would run one prompt after the other
        for slot in self.slots:
            slot.length -= 1
        return self.model.decode([Row(slot, prompt.input_ids[-1:], calibration) for slot, prompt, calibration in rows])

    def _decoded(
        self, logits: Tensor, calibrations: Sequence[Calibration | None], is_complete: IsComplete
    ) -> list[tuple[int, ...]]:
        answers: list[tuple[int, ...]] = [() for _ in self.slots]
        running = list(range(len(self.slots)))
        for step in range(self.max_tokens):
            tokens = logits.argmax(dim=-1).tolist()
            going_on = []
            for place, token in zip(running, tokens, strict=True):
                if token in self.model.config.eos_token_ids:
                    continue
                answers[place] += (token,)
                if not is_complete(answers[place]):
                    going_on.append(place)
            running = going_on
            if not running or step + 1 == self.max_tokens:
                break
            logits = self.model.decode(
                [Row(self.slots[place], answers[place][-1:], calibrations[place]) for place in running]
            )
        return answers

    def _calibration(self, profile: CalibrationProfile, place: int, bias: Tensor | None) -> Calibration:
        attention, prompt = self.attention[place].cpu(), self.prompts[place]
        rel = document_relevance(profile, prompt, attention, None if bias is None else bias.cpu())
        return calibration_of(profile, prompt, rel, len(attention))


@contextmanager
def prefilled(model: LanguageModel, prompts: Sequence[Prompt], max_tokens: int) -> Iterator[PrefilledPrompts]:
    """Prefill prompts side by side in their own cache, which is discarded afterwards."""
    capacity = max((len(prompt.input_ids) for prompt in prompts), default=0) + max_tokens
    cache = model.new_cache(capacity * len(prompts))
    slots = tuple(cache.open(capacity) for _ in prompts)
    done = model.prefill(
        [Prefill(slot, prompt.input_ids, prompt.spans) for slot, prompt in zip(slots, prompts, strict=True)]
    )
    without = torch.zeros(model.config.num_layers, model.config.num_heads, 0)
    attention = tuple(without if one.attention is None else one.attention for one in done)
    yield PrefilledPrompts(model, tuple(prompts), slots, attention, max_tokens)


def in_batches(prompts: Sequence[Prompt], max_tokens: int, max_cached_tokens: int) -> Iterator[range]:
    """Yield ranges of prompts that fit into `max_cached_tokens` with their answers, at least one prompt each."""
    start, longest = 0, 0
    for place, prompt in enumerate(prompts):
        longest = max(longest, len(prompt.input_ids) + max_tokens)
        if place > start and (place + 1 - start) * longest > max_cached_tokens:
            yield range(start, place)
            start, longest = place, len(prompt.input_ids) + max_tokens
    if start < len(prompts):
        yield range(start, len(prompts))
