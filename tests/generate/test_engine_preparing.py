"""Long work of one request is done in bounded passes, one per turn: others get their tokens, no answer changes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.core.errors import TooLarge
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions, Generation, Progress, ReorderedGeneration
from services.generate.generation.input_processor import Item
from services.generate.generation.ranking import ItemResult, Ranking, rank, reorder
from services.generate.model.branches import Branch
from services.generate.model.language_model import MAX_PASS_TOKENS, LanguageModel, Prefill, Prefilled
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.templates import Document, Prompt
from tests.generate.scarce_memory import ScarceMemory
from tests.generate.test_engine import CPU, OPTIONS, QUERY, SHORT, answer, answer_of, run
from tests.generate.tiny_models import save_tiny, tiny_model, tiny_tokenizer

EXACT = CalibrationProfile(enabled=True, bias="exact", temperature=0.001, layers=(1, 2), rel_layers=(0, 1))
MANY = tuple(Document(f"The keeper number {k} of the lighthouse was called Ada.", title=f"{k}") for k in range(40))
MORE = tuple(replace(document, text=f"{document.text} It was {k}.") for k in range(8) for document in MANY)
LONG = AnswerOptions(6, calibration=EXACT, ignore_eos=True)


class WatchedModel(LanguageModel):
    """Counts the tokens that are run, except those of decoding."""

    def __init__(self) -> None:
        super().__init__(tiny_model("llama"), tiny_tokenizer())
        self.num_tokens = 0

    def prefill(self, prompts: Sequence[Prefill]) -> list[Prefilled]:
        self.num_tokens += sum(len(prompt.input_ids) for prompt in prompts)
        return super().prefill(prompts)

    def branch(self, branches: Sequence[Branch], *, num_layers: int | None = None) -> list[Tensor]:
        self.num_tokens += sum(branch.num_tokens for branch in branches)
        return super().branch(branches, num_layers=num_layers)


@dataclass(frozen=True)
class Watched:
    model: WatchedModel
    engine: GenerateEngine

    @classmethod
    def of(cls, **options: Any) -> "Watched":
        model = WatchedModel()
        return cls(model, GenerateEngine(model, EXACT, replace(OPTIONS, **options)))

    def prepare(self) -> tuple[int, list[tuple[Item, ItemResult, bool]]]:
        """The tokens that one turn's piece has run, and what came of it."""
        before = self.model.num_tokens
        events = self.engine.prepare()
        return self.model.num_tokens - before, events


@pytest.fixture
def watched() -> Watched:
    return Watched.of()


def neighbour(engine: GenerateEngine, max_tokens: int = 500) -> Generation:
    return engine.processor.prepare_completion("the lighthouse", AnswerOptions(max_tokens, ignore_eos=True))


def long_items(engine: GenerateEngine) -> dict[str, Item]:
    reordering = AnswerOptions(6, calibration=EXACT, reorder="prompt", ignore_eos=True)
    return {
        "exact": engine.processor.prepare_question(QUERY, MANY, LONG),
        "each alone": engine.processor.prepare_ranking(QUERY, MORE, "query_generation"),
        "calibrated": engine.processor.prepare_ranking(QUERY, MANY, "calibrated"),
        "reordered": engine.processor.prepare_question(QUERY, MANY, reordering),
    }


def told(outcomes: Sequence[ItemResult]) -> tuple[Any, tuple[float, ...]]:
    """Return what a client sees of an item: the invariable part, and the part that may differ in its last bits."""
    first = outcomes[0]
    if isinstance(first, Ranking):
        return first.order, first.relevance_scores
    assert first.facts is not None and first.facts.relevance is not None
    facts = replace(first.facts, relevance=None, attention=())
    return (answer_of(outcomes), facts), first.facts.relevance


def is_same(told_so: tuple[Any, tuple[float, ...]], expected: tuple[Any, tuple[float, ...]]) -> bool:
    return told_so[0] == expected[0] and told_so[1] == pytest.approx(expected[1], abs=1e-5)


def at_once(item: Item) -> tuple[Any, tuple[float, ...]]:
    """The same, by the parts that know of no turns."""
    model = LanguageModel(tiny_model("llama"), tiny_tokenizer())
    if isinstance(item, Generation):
        order = tuple(range(len(MANY)))
        if isinstance(item, ReorderedGeneration):
            order = reorder(model, QUERY, MANY, item.method, EXACT).order
        plain = GenerateEngine(model, EXACT, OPTIONS)
        progress = plain._batch.admit([plain.processor.prepare_question(QUERY, [MANY[k] for k in order], LONG)])
        while plain._batch.num_running:
            progress += plain._batch.step()
        assert progress[0].facts is not None
        first = replace(progress[0], facts=replace(progress[0].facts, order=order))
        return told([first, *progress[1:]])
    documents = MANY if item.method == "calibrated" else MORE
    return told([rank(model, QUERY, documents, item.method, EXACT)])


@pytest.mark.parametrize("name", ["exact", "each alone", "calibrated", "reordered"])
@pytest.mark.slow
def test_long_work_is_done_a_pass_a_turn_while_others_get_their_tokens(watched: Watched, name: str) -> None:
    engine = watched.engine
    item, other = long_items(engine)[name], neighbour(engine)
    engine.admit([other])
    before = watched.model.num_tokens
    assert engine.admit([item]) == [] and watched.model.num_tokens == before
    assert engine.preparing == [item] and engine.num_running == 2
    outcomes: list[ItemResult] = []
    num_turns = 0
    while engine.preparing:
        assert [one for one, _, _ in engine.step()] == [other]
        num_tokens, events = watched.prepare()
        assert 0 < num_tokens <= MAX_PASS_TOKENS
        outcomes += [outcome for _, outcome, _ in events]
        num_turns += 1
    assert num_turns >= 3
    while isinstance(item, Generation) and engine.num_running > 1:
        outcomes += [outcome for one, outcome, _ in engine.step() if one is item]
    assert is_same(told(outcomes), at_once(item))
    engine.cancel(other)
    assert engine.num_running == 0


def test_a_short_one_that_comes_later_does_not_wait_for_a_long_one(watched: Watched) -> None:
    engine = watched.engine
    engine.admit([engine.processor.prepare_question(QUERY, MANY, LONG)])
    engine.prepare()
    later: list[Item] = [
        neighbour(engine),
        engine.processor.prepare_question(QUERY, MANY[:2], SHORT),
        engine.processor.prepare_ranking(QUERY, MANY[:2], "calibrated"),
    ]
    assert {id(item) for item, _, _ in engine.admit(later)} == {id(item) for item in later}
    assert engine.preparing


@pytest.mark.slow
def test_a_long_one_that_is_cancelled_is_worked_on_no_more_and_holds_nothing() -> None:
    watched = Watched.of(max_cached_tokens=4000, max_running=2)
    engine = watched.engine
    for name, item in long_items(engine).items():
        other = neighbour(engine, 20)
        expected = answer(engine, other)
        began = [outcome for _, outcome, _ in engine.admit([other])]
        engine.admit([item])
        for _ in range(2):
            began += [outcome for _, outcome, _ in engine.step()]
            engine.prepare()
        assert engine.preparing == [item], name
        engine.cancel(item)
        assert engine.preparing == [] and engine.num_running == 1
        while engine.num_running:
            began += [outcome for _, outcome, _ in engine.step()]
        assert answer_of(began) == expected
        assert engine.has_room([neighbour(engine, 1900), neighbour(engine, 1900)])


@pytest.mark.slow
def test_choices_share_their_order_and_estimate_and_one_that_leaves_takes_nothing_along() -> None:
    engine = Watched.of(prefix_cache_bytes=0).engine
    options = AnswerOptions(6, calibration=EXACT, reorder="prompt", ignore_eos=True)
    choices = engine.processor.prepare_question(QUERY, MANY, options).choices(3)
    expected = at_once(choices[0])
    engine.admit(choices)
    assert engine.preparing == list(choices)
    engine.prepare()
    engine.cancel(choices[0])
    assert engine.preparing == list(choices[1:])
    outcomes: dict[int, list[ItemResult]] = {id(choice): [] for choice in choices}
    while engine.num_running:
        events = [*engine.step(), *(engine.prepare() if engine.preparing else [])]
        for item, outcome, _ in events:
            outcomes[id(item)].append(outcome)
    first, second = outcomes[id(choices[1])], outcomes[id(choices[2])]
    assert outcomes[id(choices[0])] == [] and is_same(told(first), expected)
    assert answer_of(second) == answer_of(first)
    passes = [
        one[0].facts.calibration_passes for one in (first, second) if isinstance(one[0], Progress) and one[0].facts
    ]
    assert passes == [len(MANY), 0]


def test_what_is_prepared_keeps_its_place_in_the_batch() -> None:
    engine = Watched.of(max_running=1).engine
    item = engine.processor.prepare_question(QUERY, MANY, LONG)
    assert engine.has_room([item])
    engine.admit([item])
    for _ in range(2):
        assert not engine.has_room([neighbour(engine)])
        engine.prepare()
    engine.cancel(item)
    assert engine.has_room([neighbour(engine)])


@pytest.mark.slow
def test_rankings_beyond_the_limit_wait_in_the_queue() -> None:
    engine = Watched.of(max_running=2).engine
    jobs = [engine.processor.prepare_ranking(QUERY, MORE, "relevance_prompt") for _ in range(3)]
    assert engine.has_room(jobs[:2]) and not engine.has_room(jobs)
    engine.admit(jobs[:1])
    assert engine.has_room(jobs[1:2]) and not engine.has_room(jobs[1:])
    assert engine.has_room([neighbour(engine)])


def test_a_ranking_without_memory_gives_back_what_is_kept_of_prompts(watched: Watched) -> None:
    engine = watched.engine
    question = engine.processor.prepare_question(QUERY, MANY[:3], SHORT)
    run(engine, [question])
    job = engine.processor.prepare_ranking(QUERY, MANY[:3], "query_likelihood")
    with ScarceMemory("new_zeros"), pytest.raises(torch.OutOfMemoryError):
        engine.admit([job])
    engine.cancel(job)
    ((first, *_),) = run(engine, [replace(question)])
    assert isinstance(first, Progress) and first.facts is not None and first.facts.cached_tokens == 0


# Orders that change how many tokens a prompt has


def reordered(engine: GenerateEngine, max_tokens: int | None, num_more: int) -> ReorderedGeneration:
    """Return a question whose prompt has this number of tokens more in another order."""
    options = AnswerOptions(max_tokens, reorder="attention", ignore_eos=True)
    generation = engine.processor.prepare_question(QUERY, MANY[:3], options)
    assert isinstance(generation, ReorderedGeneration)
    longer = Prompt((5,) * num_more + generation.prompt.input_ids, (), 0)

    def render(documents: Sequence[Document]) -> Prompt:
        return longer

    return replace(generation, render=render)


def test_a_few_tokens_more_in_another_order_find_their_room_in_a_full_batch() -> None:
    num_tokens = reordered(Watched.of().engine, 50, 2).num_tokens
    engine = Watched.of(max_cached_tokens=2 * num_tokens).engine
    items = [reordered(engine, 50, 2) for _ in range(2)]
    assert engine.has_room(items) and not engine.has_room([*items, neighbour(engine, 1)])
    assert [len(answer_of(outcomes)) for outcomes in run(engine, items)] == [50, 50]


def test_where_another_order_fills_the_context_the_answer_is_shorter_or_refused(watched: Watched) -> None:
    engine = watched.engine
    left = engine.processor.context_length - len(reordered(engine, 1, 0).prompt.input_ids)
    (outcomes,) = run(engine, [reordered(engine, None, left - 2)])
    assert len(answer_of(outcomes)) == 2
    with pytest.raises(TooLarge, match=f"{engine.processor.context_length} tokens") as caught:
        engine.admit([reordered(engine, left, left)])
    assert caught.value.code == "context_length_exceeded"


def test_estimates_are_kept_within_their_bytes(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path)
    for num_bytes, num_passes in ((10**6, 0), (300, 3)):
        options = EngineOptions(CPU, max_cached_tokens=20_000, max_running=32, prefix_cache_bytes=num_bytes)
        engine = GenerateEngine.load(directory, options)
        asked = [engine.processor.prepare_question(QUERY, MANY[:3], LONG) for _ in range(2)]
        _, (again, *_) = [run(engine, [one])[0] for one in asked]
        assert isinstance(again, Progress) and again.facts is not None
        assert again.facts.calibration_passes == num_passes
