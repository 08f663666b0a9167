"""Inference with a language model's checkpoint: from generations and rankings to steps of answers."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from services.generate.capacity import DEFAULT_SHARE
from services.generate.generation.generation import AnswerOptions, Generation, Progress, ReorderedGeneration, by_order
from services.generate.generation.input_processor import InputProcessor, Item
from services.generate.generation.passes import Passes, Preparations, finish
from services.generate.generation.ranking import ItemResult, num_ranking_tokens, reordering, running_rankings
from services.generate.generation.running_batch import (
    HEADROOM_TOKENS,
    MAX_PREFILL_TOKENS,
    RunningBatch,
    num_calibration_tokens,
)
from services.generate.model.language_model import (
    MAX_PASS_TOKENS,
    LanguageModel,
    check_last_token,
    fitting_tokens,
    next_logits,
)
from services.generate.model.profile import OFF, CalibrationProfile, read_profile
from services.generate.prompts.ranking import RankingJob
from services.generate.prompts.templates import Document
from services.nn.devices import DeviceOptions
from services.nn.reference_outputs import OutputRow, check_checkpoint

SAMPLE_QUESTION = "What is written on the second page?"
SAMPLE_DOCUMENTS = (Document("There is one word on it.", title="The first page"), Document("There are two words."))
ItemEvent = tuple[Item, ItemResult, bool]  # whether it is the item's last


@dataclass(frozen=True)
class EngineOptions:
    """The device of a checkpoint, and the limits of its running batch (`RunningBatch` explains each).

    `max_cached_tokens` None means as many as fit into `memory_share` of the device's memory beside the weights, on a
    CPU at most CPU_CACHED_TOKENS.
    """

    device: DeviceOptions = field(default_factory=DeviceOptions)
    max_cached_tokens: int | None = None
    memory_share: float = DEFAULT_SHARE
    max_running: int = 64
    prefix_cache_bytes: int = 2**29
    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    headroom_tokens: int = HEADROOM_TOKENS


class GenerateEngine:
    """Runs one checkpoint, on one thread at a time; `processor` creates its items, on any thread.

    Implements SteppingEngine (`services.core.batching`). A generation's results are Progress, a job's is one Ranking.
    """

    def __init__(self, model: LanguageModel, profile: CalibrationProfile, options: EngineOptions) -> None:
        """Raises BadProfile for a profile with layers that the model does not have, and ValueError if no token fits
        into the device's memory.
        """
        max_cached_tokens = options.max_cached_tokens or fitting_tokens(model, options.memory_share)
        context_length = min(model.config.max_model_len, max_cached_tokens)
        self.processor = InputProcessor(model.tokenizer, model.config, profile, context_length)
        self._model = model
        self._directory: Path | None = None
        self.computes_in = str(model.dtype).removeprefix("torch.")
        self._max_running = options.max_running
        self._batch = RunningBatch(
            model,
            max_cached_tokens=max_cached_tokens,
            max_running=options.max_running,
            prefix_cache_bytes=options.prefix_cache_bytes,
            max_prefill_tokens=options.max_prefill_tokens,
            headroom_tokens=options.headroom_tokens,
        )
        self._preparations: Preparations[Item, list[ItemEvent]] = Preparations()
        self._max_tokens: int | None = None  # of the piece that is being run
        # The substitutes that run for reordered generations, by identity, and the reverse mapping with the order.
        self._stand_ins: dict[int, Item] = {}
        self._reordered: dict[int, tuple[Generation, tuple[int, ...]]] = {}

    @classmethod
    def load(cls, directory: Path, options: EngineOptions) -> "GenerateEngine":
        """Read a Hugging Face directory with its calibration profile; calibration is off without one.

        Raises what `LanguageModel.load` does, and BadProfile.
        """
        profile = read_profile(directory) or OFF
        engine = cls(LanguageModel.load(directory, options.device), profile, options)
        engine._directory = directory
        return engine

    @property
    def num_running(self) -> int:
        """Number of items that have not ended."""
        return self._batch.num_running + len(self._without_slot())

    @property
    def cache_share(self) -> float:
        """Share of the cache's tokens that answers hold; may be read on any thread."""
        return self._batch.cache_share

    @property
    def num_computed(self) -> float:
        """Number of tokens run so far."""
        return self._model.num_computed

    @property
    def preparing(self) -> list[list[Item]]:
        """The items that wait for `prepare`, with those of one work together."""
        return [[self._given(item) for item in items] for items in self._preparations.works]

    def has_room(self, items: Sequence[Item], without: Sequence[Item] = ()) -> bool:
        """Whether the running batch has room for all of these now, in addition to those being prepared.

        A ranking takes no place in the batch, but the number of rankings has the same limit.
        """
        leaving = set(map(id, without))
        everything = [item for item in self._without_slot() if id(self._given(item)) not in leaving]
        everything += map(self._standing_in, items)
        generations = [item for item in everything if isinstance(item, Generation)]
        stopping = [one for one in map(self._standing_in, without) if isinstance(one, Generation)]
        is_within_limit = len(everything) - len(generations) <= self._max_running
        return is_within_limit and self._batch.has_room(*generations, without=stopping)

    def room_share(self, items: Sequence[Item]) -> float:
        """Return the share of the running batch that these need together with everything that is running."""
        everyone = (*self._without_slot(), *map(self._standing_in, items))
        return self._batch.room_share(*(item for item in everyone if isinstance(item, Generation)))

    def lacking_room(self) -> list[Item]:
        """Answers that must wait until others have left; the slots of all others grow as needed."""
        waiting = [item for item in self._without_slot() if isinstance(item, Generation)]
        return [self._given(one) for one in self._batch.grow(waiting)]

    def admit(self, items: Sequence[Item], max_cost: int | None = None) -> list[ItemEvent]:
        """Admit rankings and generations; returns complete rankings and first tokens.

        Results that need many passes, or more tokens than `max_cost`, come later, from `prepare`.
        """
        self._max_tokens = max_cost
        max_tokens = MAX_PASS_TOKENS if max_cost is None else min(max_cost, MAX_PASS_TOKENS)
        jobs = [item for item in items if isinstance(item, RankingJob)]
        is_long = [num_ranking_tokens(job, self.processor.profile) > max_tokens for job in jobs]
        events = finish(self._ranking([job for job, is_prepared in zip(jobs, is_long, strict=True) if not is_prepared]))
        for job in itertools.compress(jobs, is_long):
            self._preparations.add([job], self._ranking([job]))
        generations = [item for item in map(self._standing_in, items) if isinstance(item, Generation)]
        running = [item for item in generations if self._batch.is_paused(item)]
        for group in by_order([item for item in generations if not self._batch.is_paused(item)]):
            if not isinstance(group[0], ReorderedGeneration):
                running += group
            elif self.processor.cost(group[0]) <= max_tokens:
                running += self._in_order(group, finish(self._ordering(group[0])))
            else:
                waiting: list[Item] = list(group)
                self._preparations.add(waiting, self._answering_in_order(waiting))
        return [*events, *self._run(running)]

    def step(self) -> list[ItemEvent]:
        """Generate one more token for each generation that has its first."""
        return self._told(self._batch.step())

    def prepare(self, items: Sequence[Item], max_cost: int | None = None) -> list[ItemEvent]:
        """Run one pass of a work of the `preparing` ones, of about `max_cost` tokens at most."""
        self._max_tokens = max_cost
        return self._preparations.advance(self._standing_in(items[0]), max_cost) or []

    def pause(self, item: Item) -> None:
        """Free an item's room now. When admitted again, an answer continues where it was; anything else starts over."""
        running = self._standing_in(item)
        self._preparations.cancel(running)
        if not (isinstance(running, Generation) and self._batch.pause(running)):
            self.cancel(item)

    def cancel(self, item: Item) -> None:
        """Free an item's resources now."""
        running = self._stand_ins.pop(id(item), item)
        self._reordered.pop(id(running), None)
        self._preparations.cancel(running)
        if isinstance(running, Generation):
            self._batch.cancel(running)

    def warm_up(self) -> None:
        """Answer with and without calibration, alone and together, so that no request pays for first calls."""
        plain = self._sample(OFF)
        for generations in ([plain], [self._sample(self.processor.profile), self._sample(OFF)]):
            self._batch.admit(generations)
            while self._batch.num_running:
                self._batch.step()
        self._batch.forget_prompts()

    def self_check(self) -> None:
        """Raises BrokenModel as `check_last_token` and `check_checkpoint` do."""
        check_checkpoint(self, self._directory)
        check_last_token(self._model, self._sample(OFF).prompt.input_ids)

    def reference_inputs(self) -> list[JsonValue]:
        """Return texts to be continued."""
        return ["The first page tells who lit the lighthouse in", "Water boils at a hundred"]

    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Return `next_logits` after each input."""
        return [
            next_logits(self._model, self.processor.tokenizer, text, self.processor.context_length) for text in inputs
        ]

    def _sample(self, profile: CalibrationProfile) -> Generation:
        options = AnswerOptions(max_tokens=2, calibration=profile, ignore_eos=True)
        return self.processor.prepare_question(SAMPLE_QUESTION, SAMPLE_DOCUMENTS, options)

    # Running

    def _without_slot(self) -> list[Item]:
        """Return the items that are being prepared and have no place in the running batch yet."""
        waiting = self._preparations.items
        return [item for item in waiting if not (isinstance(item, Generation) and self._batch.holds(item))]

    def _run(self, generations: Sequence[Generation], *, is_next: bool = False) -> list[ItemEvent]:
        """Return first tokens of those that need few passes; prepare the others, with `is_next` before waiting ones."""
        long = [one for one in generations if self._is_long(one)]
        events = self._told(self._batch.admit([one for one in generations if one not in long]))
        for one in reversed(long) if is_next else long:
            passes = self._answering(one)
            next(passes)  # from now on, estimates that it may share are kept
            self._preparations.add([one], passes, is_next=is_next, has_begun=True)
        return events

    def _is_long(self, generation: Generation) -> bool:
        if self._max_tokens is not None and self._batch.num_first_tokens(generation) > self._max_tokens:
            return True
        return num_calibration_tokens(generation) > MAX_PASS_TOKENS and not self._batch.is_paused(generation)

    def _standing_in(self, item: Item) -> Item:
        """Return the substitute that runs for an item, or the item itself."""
        return self._stand_ins.get(id(item), item)

    def _given(self, running: Item) -> Item:
        """The original item of a running one."""
        return self._reordered.get(id(running), (running,))[0]

    def _answering(self, generation: Generation) -> Passes[list[ItemEvent]]:
        return self._told((yield from self._batch.admitting([generation])))

    def _ranking(self, jobs: Sequence[RankingJob]) -> Passes[list[ItemEvent]]:
        rankings = yield from self._batch.giving_back(running_rankings(self._model, jobs, self.processor.profile))
        return [(job, ranking, True) for job, ranking in zip(jobs, rankings, strict=True)]

    # Reordering

    def _ordering(self, generation: ReorderedGeneration) -> Passes[tuple[int, ...]]:
        profile = generation.calibration or self.processor.profile
        asked = generation.query, generation.documents, generation.method
        return (yield from self._batch.giving_back(reordering(self._model, *asked, profile))).order

    def _answering_in_order(self, group: Sequence[Item]) -> Passes[list[ItemEvent]]:
        """Answer the still waiting items of a group once the order is known."""
        first = group[0]
        assert isinstance(first, ReorderedGeneration)
        order = yield from self._ordering(first)
        waiting = [item for item in group if isinstance(item, Generation)]
        return self._run(self._in_order(waiting, order), is_next=True)

    def _in_order(self, group: Sequence[Generation], order: tuple[int, ...]) -> list[Generation]:
        """Make the substitute for each of these. Raises TooLarge if an order leaves no room for an answer."""
        stand_ins = [one.in_order(order) if isinstance(one, ReorderedGeneration) else one for one in group]
        for generation, stand_in in zip(group, stand_ins, strict=True):
            self._stand_ins[id(generation)] = stand_in
            self._reordered[id(stand_in)] = generation, order
        return stand_ins

    def _told(self, came: Sequence[Progress]) -> list[ItemEvent]:
        """Convert progress of running generations to events of the original ones."""
        events: list[ItemEvent] = []
        for progress in came:
            running = progress.generation
            is_last = progress.finish_reason is not None
            if id(running) in self._reordered:
                generation, order = self._reordered[id(running)]
                facts = replace(progress.facts, order=order) if progress.facts is not None else None
                progress = replace(progress, generation=generation, facts=facts)
                if is_last:
                    del self._reordered[id(running)], self._stand_ins[id(generation)]
            events.append((progress.generation, progress, is_last))
        return events
