"""Long work of one request is done in bounded passes, one per turn: others get their tokens, no answer changes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from services.core.batching import step_runner
from services.core.batching.batches import CostBudget
from services.core.batching.step_queue import Call, Event, StepQueue, Work
from services.core.batching.step_runner import MIN_SLICE_COST, StepRunner
from services.core.errors import TooLarge
from services.core.metrics import Metrics
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions, Generation, Progress, ReorderedGeneration
from services.generate.generation.input_processor import Item
from services.generate.generation.ranking import ItemResult, Ranking, rank, reorder
from services.generate.generation.sampling import Sampling
from services.generate.model.language_model import MAX_PASS_TOKENS, LanguageModel
from services.generate.model.profile import OFF, CalibrationProfile
from services.generate.prompts.ranking import RankMethod
from services.generate.prompts.templates import Document, Prompt
from tests.generate.scarce_memory import ScarceMemory
from tests.generate.test_engine import CPU, OPTIONS, QUERY, SHORT, answer, answer_of, run
from tests.generate.tiny_models import save_tiny, tiny_model, tiny_tokenizer

EXACT = CalibrationProfile(enabled=True, bias="exact", temperature=0.001, layers=(1, 2), rel_layers=(0, 1))
MANY = tuple(Document(f"The keeper number {k} of the lighthouse was called Ada.", title=f"{k}") for k in range(40))
MORE = tuple(replace(document, text=f"{document.text} It was {k}.") for k in range(8) for document in MANY)
LONG = AnswerOptions(6, calibration=EXACT, ignore_eos=True)


@dataclass(frozen=True)
class Watched:
    engine: GenerateEngine

    @classmethod
    def of(cls, **options: Any) -> "Watched":
        model = LanguageModel(tiny_model("llama"), tiny_tokenizer())
        return cls(GenerateEngine(model, EXACT, replace(OPTIONS, **options)))

    def prepare(self, max_cost: int | None = None) -> tuple[float, list[tuple[Item, ItemResult, bool]]]:
        """The tokens that one turn's piece has run, and what came of it."""
        before = self.engine.num_computed
        events = self.engine.prepare(self.engine.preparing[0], max_cost)
        return self.engine.num_computed - before, events


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
    assert item.method != "options"
    documents = MANY if item.method == "calibrated" else MORE
    return told([rank(model, QUERY, documents, item.method, EXACT)])


@pytest.mark.parametrize("name", ["exact", "each alone", "calibrated", "reordered"])
@pytest.mark.slow
def test_long_work_is_done_a_pass_a_turn_while_others_get_their_tokens(watched: Watched, name: str) -> None:
    engine = watched.engine
    item, other = long_items(engine)[name], neighbour(engine)
    engine.admit([other])
    before = engine.num_computed
    assert engine.admit([item]) == [] and engine.num_computed == before
    assert engine.preparing == [[item]] and engine.num_running == 2
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
    engine.prepare(engine.preparing[0])
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
            engine.prepare(engine.preparing[0])
        assert engine.preparing == [[item]], name
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
    assert engine.preparing == [list(choices)]
    engine.prepare(engine.preparing[0])
    engine.cancel(choices[0])
    assert engine.preparing == [list(choices[1:])]
    outcomes: dict[int, list[ItemResult]] = {id(choice): [] for choice in choices}
    while engine.num_running:
        events = [*engine.step(), *(engine.prepare(engine.preparing[0]) if engine.preparing else [])]
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
        engine.prepare(engine.preparing[0])
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


# Pieces, while other clients wait


def asked_in_pieces(engine: GenerateEngine) -> dict[str, Item]:
    processor, few = engine.processor, MANY[:6]
    long_text = " ".join(document.text for document in MANY[:6])
    long_document = (Document(" ".join(document.text for document in MANY[:3])), *MANY[:3])

    def question(documents: Sequence[Document], **profile: Any) -> Generation:
        calibration = EXACT.model_copy(update=profile)
        return processor.prepare_question(QUERY, documents, replace(LONG, calibration=calibration))

    echo = AnswerOptions(4, sampling=Sampling(num_logprobs=2), echo=True, ignore_eos=True)
    return {
        "plain": processor.prepare_completion(long_text, AnswerOptions(6, ignore_eos=True)),
        "scored": processor.prepare_completion(long_text, echo),
        "exact": question(few),
        "single": question(few, bias="single"),
        "query": question(few, bias="query"),
        "tree": question(long_document, bias="tree"),
        "tail": question(few, bias="single", row_scope="tail"),
        "reordered": processor.prepare_question(QUERY, few, replace(LONG, reorder="calibrated")),
        **{method: processor.prepare_ranking(QUERY, few, method) for method in get_args(RankMethod)},
    }


def close_to(outcomes: Sequence[ItemResult]) -> Any:
    """Return the numbers of an item that a client sees, to be compared up to rounding."""
    first = outcomes[0]
    if isinstance(first, Ranking):
        return pytest.approx(first.relevance_scores, abs=1e-5)
    assert first.facts is not None
    logprobs = [token.logprob for token in first.facts.scored if token.logprob is not None]
    numbers = (*(first.facts.relevance or ()), *first.facts.attention, *logprobs)
    return pytest.approx(numbers, abs=1e-5)


@pytest.mark.parametrize("name", list(asked_in_pieces(Watched.of().engine)))
def test_an_item_is_computed_in_pieces_of_any_size_with_the_same_result(name: str) -> None:
    alone = Watched.of().engine
    (expected,) = run(alone, [asked_in_pieces(alone)[name]])
    watched = Watched.of()
    engine = watched.engine
    item, other = asked_in_pieces(engine)[name], neighbour(engine)
    engine.admit([other])
    max_cost = 16 if name == "tail" else 40
    assert engine.admit([item], max_cost) == []
    outcomes: list[ItemResult] = []
    num_pieces = 0
    while engine.num_running > 1:
        outcomes += [outcome for one, outcome, _ in engine.step() if one is item]
        if engine.preparing:
            num_tokens, events = watched.prepare(max_cost)
            num_pieces += 1
            # and the prompt's last row under calibration
            assert num_tokens <= max_cost + 1
            outcomes += [outcome for _, outcome, _ in events]
    assert num_pieces >= 3
    assert close_to(outcomes) == close_to(expected).expected
    if isinstance(item, Generation):
        assert answer_of(outcomes) == answer_of(expected)


def test_an_answer_that_was_paused_goes_on_in_pieces() -> None:
    for calibration in (OFF, EXACT):
        engine = Watched.of(prefix_cache_bytes=0).engine
        options = AnswerOptions(24, calibration=calibration, ignore_eos=True)
        expected = answer(engine, engine.processor.prepare_question(QUERY, MANY[:3], options))
        item = engine.processor.prepare_question(QUERY, MANY[:3], options)
        outcomes = [outcome for _, outcome, _ in engine.admit([item])]
        for _ in range(16):
            outcomes += [outcome for _, outcome, _ in engine.step()]
        engine.pause(item)
        assert engine.admit([item], max_cost=9) == []
        while engine.preparing:
            assert engine.step() == []
            outcomes += [outcome for _, outcome, _ in engine.prepare(engine.preparing[0], 9)]
        while engine.num_running:
            outcomes += [outcome for _, outcome, _ in engine.step()]
        assert answer_of(outcomes) == expected


class Turns:
    """Takes turns on an engine by hand, each with slices of the least size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_runner, "SLICE_S", 0.0)
        monkeypatch.setattr(step_runner, "FIRST_SLICE_COST", MIN_SLICE_COST)
        self.engine = Watched.of().engine
        self._queue: StepQueue[Item, ItemResult] = StepQueue()
        self._runner = StepRunner(
            self.engine, self._queue, CostBudget(10_000), Metrics("test"), lambda error: isinstance(error, MemoryError)
        )

    def ask(self, client: str, item: Item) -> None:
        self._queue.add(Work(item, self.engine.processor.cost(item), Call(None), client))

    def take(self) -> tuple[float, list[Item]]:
        """Return how many tokens one turn has run, and the items whose events it brought."""
        before = self.engine.num_computed
        outcomes = [outcome for some in self._runner.take_turn() for outcome in some]
        assert all(isinstance(event, Event) for _, event in outcomes)
        return self.engine.num_computed - before, [work.item for work, _ in outcomes]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


def test_a_stream_gets_its_token_after_each_slice_of_another_client_s_prompts(turns: Turns) -> None:
    stream = neighbour(turns.engine)
    turns.ask("streaming", stream)
    turns.take()
    asked = asked_in_pieces(turns.engine)
    waiting: list[Item] = [asked[name] for name in ("plain", "single", "query_generation")]
    for item in waiting:
        turns.ask("reading", item)
    num_turns = 0
    while waiting:
        num_tokens, came = turns.take()
        # the tokens of the answers, and the rows that run again
        assert stream in came and num_tokens <= MIN_SLICE_COST + 5
        waiting = [item for item in waiting if item not in came]
        num_turns += 1
    assert num_turns > 6


def test_a_client_alone_has_its_prompt_computed_at_once(turns: Turns) -> None:
    stream = neighbour(turns.engine)
    turns.ask("alone", stream)
    turns.take()
    item = asked_in_pieces(turns.engine)["single"]
    turns.ask("alone", item)
    num_tokens, came = turns.take()
    assert item in came and num_tokens > MIN_SLICE_COST * 2


def test_a_short_prompt_is_not_behind_another_client_s_long_one(turns: Turns) -> None:
    long, short = asked_in_pieces(turns.engine)["exact"], asked_in_pieces(turns.engine)["query"]
    turns.ask("long", long)
    turns.ask("short", neighbour(turns.engine))
    turns.take()
    turns.take()
    assert turns.engine.preparing == [[long]]
    turns.ask("short", short)
    came: list[Item] = []
    while short not in came:
        came += turns.take()[1]
    assert long not in came
    assert turns.engine.preparing == [[long]]


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
