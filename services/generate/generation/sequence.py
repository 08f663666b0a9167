"""A sequence of the running batch: on arrival, while running, and while paused.

Shapes: L layers, H heads, K documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from services.generate.calibration import Calibration
from services.generate.generation.answer_text import AnswerText, Detokenizer, StopStrings, TokenOut, Vocabulary
from services.generate.generation.generation import Generation, PromptFacts
from services.generate.generation.prefix_cache import MIN_REUSED_TOKENS, Prefix, TokenIds, num_shared
from services.generate.generation.prompt_calibration import (
    PromptCalibration,
    answerable,
    applied,
    layer_means,
    mean_attention,
)
from services.generate.generation.sampling import Chooser, TokenChoice
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import Prefill, Prefilled, TokenScores


@dataclass(eq=False)
class RunningSequence:
    """A generation in its slot. `input_ids` are prompt and answer; the last one is not cached yet.

    `prefilled_ids` are those that its first pass computes: the prompt and, for an answer that continues without
    calibration, its generated tokens.
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
        """Number of tokens whose keys and values are those of the plain model."""
        if not self.is_prefilled:
            return 0
        num_rerun = self.generation.num_rerun
        return len(self.prefilled_ids) - num_rerun if num_rerun else self.slot.length

    @property
    def is_full(self) -> bool:
        """Whether the slot has no room for another token."""
        return self.slot.length == self.slot.capacity

    @property
    def prefill(self) -> Prefill:
        """Return the input of its first pass."""
        is_scored = self.generation.scores_prompt and not self.num_generated
        return Prefill(
            self.slot,
            tuple(self.prefilled_ids[self.cached_tokens :].tolist()),
            spans=self.spans,
            scores_all=is_scored,
            num_top=(self.generation.sampling.num_logprobs or 0) if is_scored else 0,
        )

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Documents that the first pass measures; none for a continued answer, which has been measured."""
        return () if self.num_generated else self.generation.prompt.spans


@dataclass(frozen=True, eq=False)
class Arrival:
    """A generation that is about to run, and the source of its first tokens that are already cached, if any.

    `input_ids` are its `prefilled_ids`; `paused` is its earlier sequence if it was paused.
    """

    generation: Generation
    input_ids: TokenIds
    num_reused: int = 0
    source: RunningSequence | Prefix | None = None
    paused: RunningSequence | None = None

    @property
    def may_reuse(self) -> bool:
        """Whether tokens may be copied; what is scored has to be computed."""
        return not self.generation.scores_prompt or self.paused is not None

    @property
    def num_new(self) -> int:
        """Number of tokens to prefill, always including the last one, which is measured."""
        return len(self.input_ids) - self.num_reused


def new_text(generation: Generation, vocabulary: Vocabulary) -> AnswerText:
    """Make the text of an answer that has no tokens yet."""
    context = generation.prompt.input_ids if generation.continues_prompt else ()
    stops = StopStrings(generation.stop, is_kept=generation.include_stop)
    return AnswerText(Detokenizer(vocabulary.decode, context), stops)


def is_worth_waiting(arrival: Arrival, other: Arrival) -> bool:
    """Whether most of an arrival's computation could be replaced by copying once the other is prefilled."""
    if arrival.generation.tenant != other.generation.tenant or not arrival.may_reuse:
        return False
    reusable = len(other.input_ids) - other.generation.num_rerun
    shared = min(num_shared(arrival.input_ids, other.input_ids), reusable, len(arrival.input_ids) - 1)
    return shared - arrival.num_reused >= max(MIN_REUSED_TOKENS, arrival.num_new / 2)


def facts_of(
    running: RunningSequence,
    prefilled: Prefilled,
    calibration: PromptCalibration | None,
    first_logits: Tensor,
    vocabulary: Vocabulary,
) -> PromptFacts:
    """Collect the results of the prompt's pass; `first_logits` (V,) are those of the answer's first token."""
    generation = running.generation
    return PromptFacts(
        prompt_tokens=len(generation.prompt.input_ids),
        cached_tokens=running.cached_tokens,
        attention=mean_attention(generation.calibration, prefilled.attention),
        relevance=calibration.relevance if calibration is not None else None,
        calibration_passes=calibration.num_passes if calibration is not None else 0,
        applied=applied(generation.calibration, calibration),
        order=tuple(range(len(generation.prompt.spans))),
        echo=generation.echo,
        scored=_scored(generation, prefilled.scores, vocabulary),
        answerable=answerable(generation.calibration, first_logits, is_calibrated=calibration is not None),
        by_layer=layer_means(generation, prefilled.attention, calibration),
    )


def _scored(generation: Generation, scores: TokenScores | None, vocabulary: Vocabulary) -> tuple[TokenOut, ...]:
    if scores is None:
        return ()
    following = generation.prompt.input_ids[1:]
    tops = zip(scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)
    choices = [
        TokenChoice(token_id, logprob, tuple(zip(*top, strict=True)))
        for token_id, logprob, top in zip(following, scores.logprobs.tolist(), tops, strict=True)
    ]
    return scored_tokens(generation, choices, vocabulary)


def scored_tokens(
    generation: Generation, following: Sequence[TokenChoice], vocabulary: Vocabulary
) -> tuple[TokenOut, ...]:
    """Return the prompt's tokens; the first has no log-probability, `following` are those after it."""
    first = generation.prompt.input_ids[0]
    return (TokenOut(first, vocabulary.utf8(first)), *map(vocabulary.token, following))
