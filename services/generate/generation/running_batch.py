"""The running batch: answers that join and leave at every step, with one token per step.

An answer is calibrated as follows: its prompt is prefilled by the plain model, which measures the last row's attention;
the bias of the documents' places is estimated; the prompt's last rows are run once more under calibration, and so is
every token of the answer. This module does not depend on time, queues or HTTP.

Shapes: B answers, T tokens, V vocabulary, L layers, H heads, K documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from services.generate.calibration import Calibration
from services.generate.generation.answer_text import AnswerText, Detokenizer, StopStrings, TokenOut, Vocabulary
from services.generate.generation.bias import num_estimate_tokens
from services.generate.generation.generation import Generation, Progress, PromptFacts
from services.generate.generation.passes import Passes, finish
from services.generate.generation.prefilling import prefilling, rerunning
from services.generate.generation.prefix_cache import (
    MIN_REUSED_TOKENS,
    Prefix,
    PrefixCache,
    TokenIds,
    as_token_ids,
    num_shared,
)
from services.generate.generation.prompt_calibration import (
    MeasuredPrompt,
    PromptCalibration,
    PromptCalibrator,
    answer_attention,
    answerable,
    applied,
    layer_means,
    mean_attention,
    needed_estimate,
    refusal_of,
)
from services.generate.generation.sampling import Chooser, TokenChoice, choose
from services.generate.model.kv_cache import KeyValues, Slot
from services.generate.model.language_model import LanguageModel, Prefill, Prefilled, Row, TokenScores
from services.nn.devices import is_out_of_memory

T = TypeVar("T")

# Tokens of different prompts that are prefilled together; a longer prompt is prefilled alone.
MAX_PREFILL_TOKENS = 4096
# Tokens for which an answer gets room when it joins, and again whenever these are used up.
HEADROOM_TOKENS = 256
# Share of the bytes for prefixes that is used for estimates of the bias.
ESTIMATES_SHARE = 0.25
# Tokens of an answer whose attention is measured at once where it cites, so that no step takes long for it.
CITED_ROWS = 64
# Rows of an answer that are run again at once when it continues; their weights on all tokens are in memory together.
REPLAYED_ROWS = 256


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
    is_ready: bool = False  # for steps: it has had a token since it has its slot
    num_generated: int = 0
    num_measured: int = 0  # of the generated tokens, those whose attention is known

    @property
    def num_reusable(self) -> int:
        """Number of tokens whose keys and values are those of the plain model."""
        num_rerun = self.generation.num_rerun
        return min(self.slot.length, len(self.prefilled_ids) - num_rerun) if num_rerun else self.slot.length

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
    return AnswerText(Detokenizer(vocabulary.decode, context), StopStrings(generation.stop))


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
        refusal=refusal_of(generation.calibration),
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


class RunningBatch:
    """Answers generations on one model, on one thread at a time.

    At most `max_running` sequences run, each in a slot as large as the largest one's; all slots have room for
    `max_cached_tokens`. A slot has room for `headroom_tokens` more than its sequence, and grows by the same number.
    `prefix_cache_bytes` limits the keys and values kept for prompts with the same beginning.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_cached_tokens: int,
        max_running: int,
        prefix_cache_bytes: int,
        max_prefill_tokens: int = MAX_PREFILL_TOKENS,
        headroom_tokens: int = HEADROOM_TOKENS,
    ) -> None:
        self._model = model
        self._max_running = max_running
        self._max_prefill_tokens = max_prefill_tokens
        self._headroom_tokens = headroom_tokens
        self._cache = model.new_cache(max_cached_tokens)
        estimate_bytes = int(prefix_cache_bytes * ESTIMATES_SHARE)
        self._prefixes = PrefixCache(prefix_cache_bytes - estimate_bytes)
        self._calibrator = PromptCalibrator(model, max_bytes=estimate_bytes)
        self._vocabulary = Vocabulary(model.tokenizer)
        # Both by the identity of their generations; paused sequences have no slot.
        self._running: dict[int, RunningSequence] = {}
        self._paused: dict[int, RunningSequence] = {}
        self._num_admitting = 0

    @property
    def num_running(self) -> int:
        """Number of generations that have not ended."""
        return len(self._running)

    @property
    def cache_share(self) -> float:
        """Share of the cache's tokens for which the open slots have room."""
        return self._cache.num_reserved / self._cache.max_tokens

    def holds(self, generation: Generation) -> bool:
        """Whether a generation has a slot."""
        return id(generation) in self._running

    def is_paused(self, generation: Generation) -> bool:
        """Whether a generation is paused: it has no slot, and continues once it is admitted again."""
        return id(generation) in self._paused

    def has_room(self, *generations: Generation, without: Sequence[Generation] = ()) -> bool:
        """Whether all of these fit beside the running ones that are not in `without`.

        Each needs room for its current length and a little more; its maximum length must fit when it is alone.
        """
        return self.room_share(*generations, without=without) <= 1 and all(
            one.num_tokens <= self._cache.max_tokens for one in generations
        )

    def room_share(self, *generations: Generation, without: Sequence[Generation] = ()) -> float:
        """Return the share of places or of memory, whichever is larger, needed by these and the running ones."""
        leaving = set(map(id, without))
        capacities = [one.slot.capacity for key, one in self._running.items() if key not in leaving]
        capacities += map(self._reserved, generations)
        num_tokens = len(capacities) * max(capacities, default=0)
        return max(len(capacities) / self._max_running, num_tokens / self._cache.max_tokens)

    def grow(self, waiting: Sequence[Generation] = ()) -> list[Generation]:
        """Enlarge the slots of sequences that fill them; returns those for which there is no room.

        These take no step until others have left. `waiting` have reserved room, but no slot yet.
        """
        full = [one for one in self._running.values() if one.is_full]
        if not full:
            return []
        num_slots = len(self._running) + len(waiting)
        longest = max([one.slot.capacity for one in self._running.values()] + [*map(self._reserved, waiting)])
        lacking = []
        for one in full:
            capacity = min(one.slot.capacity + self._headroom_tokens, one.generation.num_tokens)
            if num_slots * max(capacity, longest) <= self._cache.max_tokens and self._has_grown(one.slot, capacity):
                longest = max(capacity, longest)
            else:
                lacking.append(one.generation)
        return lacking

    def admit(self, generations: Sequence[Generation]) -> list[Progress]:
        """Prefill and calibrate; returns the first token of each, or the next one of a paused generation.

        Raises ValueError if there is no room. After any exception, `cancel` all of them. If memory runs out, kept
        prompts are dropped first, so that another attempt may succeed.
        """
        return finish(self.admitting(generations))

    def admitting(self, generations: Sequence[Generation]) -> Passes[list[Progress]]:
        """Run `admit` one pass at a time; others may be admitted, step and leave in between.

        It takes no room before its first pass. To cancel any generation, close the iterator, then cancel all of them.
        """
        self._num_admitting += 1
        try:
            return (yield from self.giving_back(self._admit(generations)))
        finally:
            self._num_admitting -= 1
            self._calibrator.trim(is_shared=self._num_admitting > 0)

    def giving_back(self, passes: Passes[T]) -> Passes[T]:
        """Run passes; if they run out of memory, drop the kept prompts, so that another attempt may succeed."""
        try:
            return (yield from passes)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                self.forget_prompts()
            raise

    def step(self) -> list[Progress]:
        """Generate one more token for each generation that has its first."""
        running = [one for one in self._running.values() if one.is_ready and not one.is_full]
        if not running:
            return []
        logits = self._model.decode([Row(one.slot, (one.input_ids[-1],), one.calibration) for one in running])
        return self._advance(running, logits, [None] * len(running))

    def pause(self, generation: Generation) -> bool:
        """Free the slot of an answer that has its first token; once admitted again, it continues where it was.

        Returns whether it is paused now; does nothing for one that has no token yet, or is not running.
        """
        running = self._running.get(id(generation))
        if running is not None and running.num_generated:
            self._leave(running)
            self._paused[id(generation)] = running
        return self.is_paused(generation)

    def cancel(self, generation: Generation) -> None:
        """Free a generation's slot and forget it; does nothing if it is neither running nor paused."""
        self._paused.pop(id(generation), None)
        if (running := self._running.pop(id(generation), None)) is not None:
            self._cache.close(running.slot)

    def forget_prompts(self) -> None:
        """Drop the keys and values kept of finished prompts."""
        self._prefixes.clear()
        self._calibrator.clear()

    # Joining

    def _admit(self, generations: Sequence[Generation]) -> Passes[list[Progress]]:
        waiting = [self._arrival(one) for one in generations]
        progress = []
        while waiting:
            max_tokens = yield
            wave, waiting = self._next_wave(waiting)
            progress += yield from self._start(wave, max_tokens)
        return progress

    def _arrival(self, generation: Generation) -> Arrival:
        paused = self._paused.get(id(generation))
        # under calibration, an answer's own tokens can only run after its prompt
        is_whole = paused is not None and not generation.num_rerun
        input_ids = paused.input_ids if paused is not None and is_whole else generation.prompt.input_ids
        return Arrival(generation, as_token_ids(input_ids), paused=paused)

    def _reserved(self, generation: Generation) -> int:
        """Number of tokens of an arrival's slot."""
        paused = self._paused.get(id(generation))
        known = generation.num_tokens - generation.max_tokens if paused is None else len(paused.input_ids)
        return min(generation.num_tokens, known + self._headroom_tokens)

    def num_first_tokens(self, generation: Generation) -> int:
        """Return about how many tokens run until the next token of one that is not running."""
        arrival = self._arrival(generation)
        num_tokens = self._with_source(arrival).num_new
        paused = arrival.paused
        if generation.num_rerun and paused is not None:
            num_tokens += len(paused.input_ids) - len(arrival.input_ids)
        return num_tokens + num_calibration_tokens(generation)

    def _has_grown(self, slot: Slot, capacity: int) -> bool:
        for _ in range(2):
            try:
                self._cache.grow(slot, capacity)
                return True
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.forget_prompts()
        return False

    def _next_wave(self, waiting: Sequence[Arrival]) -> tuple[list[Arrival], list[Arrival]]:
        """Choose those to prefill together now, and those for later: if the pass is full, or another one in it does
        most of their computation."""
        wave: list[Arrival] = []
        later: list[Arrival] = []
        num_tokens = 0
        for place, arrival in enumerate(waiting):
            found = self._with_source(arrival)
            if wave and num_tokens + found.num_new > self._max_prefill_tokens:
                return wave, [*later, *waiting[place:]]
            if any(is_worth_waiting(found, other) for other in wave):
                later.append(arrival)
            else:
                wave.append(found)
                num_tokens += found.num_new
        return wave, later

    def _with_source(self, arrival: Arrival) -> Arrival:
        """Find the source of most of an arrival's tokens: a running answer, or a kept prompt."""
        if not arrival.may_reuse:
            return arrival
        input_ids = arrival.input_ids
        tenant = arrival.generation.tenant
        num_shared_kept, prefix = self._prefixes.longest(input_ids, tenant)
        best: tuple[int, RunningSequence | Prefix | None] = (num_shared_kept, prefix)
        for running in (one for one in self._running.values() if one.generation.tenant == tenant):
            shared = min(num_shared(input_ids, running.prefilled_ids), running.num_reusable)
            if shared > best[0]:
                best = (shared, running)
        num_reused = min(best[0], len(input_ids) - 1)
        if num_reused < MIN_REUSED_TOKENS:
            return arrival
        return replace(arrival, num_reused=num_reused, source=best[1])

    def _start(self, wave: Sequence[Arrival], max_tokens: int | None) -> Passes[list[Progress]]:
        running = [self._open(arrival) for arrival in wave]
        prefilled = yield from prefilling(self._model, [one.prefill for one in running], max_tokens)
        calibrations = yield from self._calibrate(running, prefilled)
        logits = yield from self._first_logits(running, prefilled, max_tokens)
        facts = [
            None if one.num_generated else facts_of(one, own, calibrations.get(id(one)), row, self._vocabulary)
            for one, own, row in zip(running, prefilled, logits, strict=True)
        ]
        read = [self._read(one, own) for one, own in zip(running, facts, strict=True) if not one.generation.max_tokens]
        places = [place for place, one in enumerate(running) if one.generation.max_tokens]
        answering = [running[place] for place in places]
        return [*read, *self._advance(answering, logits[places], [facts[place] for place in places])]

    def _open(self, arrival: Arrival) -> RunningSequence:
        generation = arrival.generation
        capacity = self._reserved(generation)
        if not self._cache.can_open(capacity):
            # a reordered prompt may be a little longer than reserved
            capacity = len(arrival.input_ids) + 1
        slot = self._cache.open(capacity)
        running = arrival.paused
        if running is None:
            running = self._new(arrival, slot)
        else:
            running.slot, running.prefilled_ids = slot, arrival.input_ids
            running.cached_tokens, running.is_ready = arrival.num_reused, False
        self._paused.pop(id(generation), None)
        self._running[id(generation)] = running
        if arrival.source is not None:
            self._cache.copy_in(running.slot, self._copy_of(arrival.source, arrival.num_reused))
        return running

    def _new(self, arrival: Arrival, slot: Slot) -> RunningSequence:
        generation, ids = arrival.generation, arrival.input_ids
        text, chooser = new_text(generation, self._vocabulary), Chooser(generation.sampling)
        prompt_ids = list(generation.prompt.input_ids)
        return RunningSequence(generation, slot, ids, arrival.num_reused, chooser, text, prompt_ids)

    def _copy_of(self, source: RunningSequence | Prefix, num_tokens: int) -> KeyValues:
        if isinstance(source, Prefix):
            return source.first(num_tokens)
        return self._cache.copy_out(source.slot, num_tokens)

    def _calibrate(
        self, running: Sequence[RunningSequence], prefilled: Sequence[Prefilled]
    ) -> Passes[dict[int, PromptCalibration]]:
        """Return the calibrations of calibrated answers, by the identity of the running sequence."""
        measured: dict[int, MeasuredPrompt] = {}
        for one, own in zip(running, prefilled, strict=True):
            profile, prompt = one.generation.calibration, one.generation.prompt
            if one.generation.num_rerun and profile is not None and own.attention is not None:
                measured[id(one)] = MeasuredPrompt(one.slot, prompt, own.attention, profile, one.generation.tenant)
        calibrated = yield from self._calibrator.calibrating(list(measured.values()))
        found = dict(zip(measured, calibrated, strict=True))
        for one in running:
            if id(one) in found:
                one.calibration = found[id(one)].calibration
        return found

    def _first_logits(
        self, running: Sequence[RunningSequence], prefilled: Sequence[Prefilled], max_tokens: int | None
    ) -> Passes[Tensor]:
        """Return logits (B, V); for calibrated answers, the prompts' last rows and generated tokens run once more."""
        logits = torch.stack([one.logits for one in prefilled])
        again = [place for place, one in enumerate(running) if one.calibration is not None]
        rows = [
            Row(one.slot, one.generation.prompt.input_ids[-one.generation.num_rerun :], one.calibration)
            for one in (running[place] for place in again)
        ]
        if rows:
            if max_tokens is not None and sum(len(row.input_ids) for row in rows) > len(rows):
                for place, row in zip(again, rows, strict=True):
                    logits[place] = yield from rerunning(self._model, row)
            else:
                logits[again] = self._model.rerun(rows)
        for place in again:
            if running[place].num_generated:
                logits[place] = yield from self._replayed(running[place])
        return logits

    def _replayed(self, running: RunningSequence) -> Passes[Tensor]:
        """Return the logits (V,) after the tokens that a calibrated answer had generated when it was paused."""
        done = len(running.generation.prompt.input_ids)
        while done < len(running.input_ids):
            rows = tuple(running.input_ids[done : done + min(REPLAYED_ROWS, (yield) or REPLAYED_ROWS)])
            self._model.prefill([Prefill(running.slot, rows)])
            logits = self._model.rerun([Row(running.slot, rows, running.calibration)])
            done += len(rows)
        return logits[0]

    # Continuing and leaving

    def _advance(
        self, running: Sequence[RunningSequence], logits: Tensor, facts: Sequence[PromptFacts | None]
    ) -> list[Progress]:
        choices = choose(logits, [one.chooser for one in running])
        return [self._take(one, choice, own) for one, choice, own in zip(running, choices, facts, strict=True)]

    def _take(self, running: RunningSequence, choice: TokenChoice, facts: PromptFacts | None) -> Progress:
        generation = running.generation
        running.input_ids.append(choice.token_id)
        running.num_generated += 1
        running.is_ready = True
        is_end = choice.token_id in self._model.config.eos_token_ids and not generation.ignore_eos
        is_last = running.num_generated == generation.max_tokens
        piece, finish_reason = running.text.take(self._vocabulary.token(choice), is_end=is_end, is_last=is_last)
        attention = self._attention(running, is_last=finish_reason is not None)
        if finish_reason is not None:
            self._leave(running)
        said = (piece.text, piece.tokens, running.num_generated, finish_reason, facts)
        return Progress(generation, *said, attention=attention, stop_string=running.text.stop_string)

    def _attention(self, running: RunningSequence, *, is_last: bool) -> tuple[tuple[float, ...], ...]:
        """Measure the rows of tokens that were generated since the last time, once they are enough or the last."""
        generation, done = running.generation, running.num_measured
        num_due = running.num_generated - done
        if not generation.cites or not (is_last or num_due == CITED_ROWS):
            return ()
        first = len(generation.prompt.input_ids) - 1 + done  # the row before a token generates it
        row = Row(running.slot, tuple(running.input_ids[first : first + num_due]), running.calibration)
        running.num_measured += num_due
        return answer_attention(self._model, row, generation.prompt.spans, generation.calibration)

    def _read(self, running: RunningSequence, facts: PromptFacts | None) -> Progress:
        """End a generation of no tokens, whose prompt is read."""
        self._leave(running)
        return Progress(running.generation, "", (), 0, "length", facts)

    def _leave(self, running: RunningSequence) -> None:
        """Keep the tokens that another prompt may begin with, and free the slot."""
        kept, tenant = as_token_ids(running.input_ids[: running.num_reusable]), running.generation.tenant
        try:
            if self._prefixes.max_bytes and len(kept) >= MIN_REUSED_TOKENS and not self._prefixes.covers(kept, tenant):
                self._prefixes.put(Prefix(kept, self._cache.copy_out(running.slot, len(kept)), tenant))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.forget_prompts()  # kept prompts are optional, and running answers must not fail because of them
        self.cancel(running.generation)


def num_calibration_tokens(generation: Generation) -> int:
    """Return the number of tokens of the estimate for a generation's calibration, and of the rows that run again."""
    if generation.calibration is None or not generation.num_rerun:
        return 0
    needed = needed_estimate(generation.calibration, generation.prompt)
    return generation.num_rerun + (num_estimate_tokens(generation.prompt, *needed) if needed is not None else 0)
