"""A sequence of the running batch: as it arrives, while it runs, and while it has given its place away.

Shapes: L layers, H heads, K documents.
"""

from dataclasses import dataclass

from torch import Tensor

from services.generate.calibration import Calibration
from services.generate.generation.answer_text import AnswerText
from services.generate.generation.generation import Generation, PromptFacts
from services.generate.generation.prefix_cache import MIN_REUSED_TOKENS, Prefix, TokenIds, num_shared
from services.generate.generation.relevance import PromptCalibration
from services.generate.generation.sampling import Chooser
from services.generate.model.kv_cache import Slot


@dataclass(eq=False)
class RunningSequence:
    """A generation in its slot. `input_ids` are prompt and answer; the last one is not cached yet.

    `prefilled_ids` are those that its first pass computes: the prompt, and of an answer that goes on without
    calibration its generated tokens.
    """

    generation: Generation
    slot: Slot
    prefilled_ids: TokenIds
    cached_tokens: int
    chooser: Chooser
    text: AnswerText
    input_ids: list[int]
    calibration: Calibration | None = None
    is_prefilled: bool = False
    num_generated: int = 0

    @property
    def num_reusable(self) -> int:
        """Tokens whose keys and values are what the model computes by itself."""
        if not self.is_prefilled:
            return 0
        num_rerun = self.generation.num_rerun
        return len(self.prefilled_ids) - num_rerun if num_rerun else self.slot.length

    @property
    def is_full(self) -> bool:
        """Whether its slot has no room for another token."""
        return self.slot.length == self.slot.capacity

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Documents that its first pass measures; none for an answer that goes on, of which that is known."""
        return () if self.num_generated else self.generation.prompt.spans


@dataclass(frozen=True, eq=False)
class Arrival:
    """A generation that is about to run, and where the first of its tokens are already cached, if anywhere.

    `input_ids` are its `prefilled_ids`; `paused` is what it was before it gave its place away, if it did.
    """

    generation: Generation
    input_ids: TokenIds
    num_reused: int = 0
    source: RunningSequence | Prefix | None = None
    paused: RunningSequence | None = None

    @property
    def num_new(self) -> int:
        """Tokens to prefill, the last one always: it is the one that is measured."""
        return len(self.input_ids) - self.num_reused


def is_worth_waiting(arrival: Arrival, other: Arrival) -> bool:
    """Whether most of what one would compute could be copied once the other is prefilled."""
    if arrival.generation.tenant != other.generation.tenant:
        return False
    reusable = len(other.input_ids) - other.generation.num_rerun
    shared = min(num_shared(arrival.input_ids, other.input_ids), reusable, len(arrival.input_ids) - 1)
    return shared - arrival.num_reused >= max(MIN_REUSED_TOKENS, arrival.num_new / 2)


def facts_of(running: RunningSequence, attention: Tensor | None, calibration: PromptCalibration | None) -> PromptFacts:
    """Collect the results of the prompt's pass; `attention` (L, H, K) is that of its last row to each document."""
    generation = running.generation
    layers = generation.calibration.rel_layers if generation.calibration is not None else ()
    means: list[float] = []
    if attention is not None:
        means = (attention[list(layers)] if layers else attention).mean(dim=(0, 1)).tolist()
    return PromptFacts(
        prompt_tokens=len(generation.prompt.input_ids),
        cached_tokens=running.cached_tokens,
        attention=tuple(means),
        relevance=calibration.relevance if calibration is not None else None,
        calibration_passes=calibration.num_passes if calibration is not None else 0,
        order=tuple(range(len(generation.prompt.spans))),
    )
