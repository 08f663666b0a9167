"""The engine: items that fit are answered, others are refused before they wait, and no state is left behind."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.core.batching.compute_thread import ComputeThread
from services.core.batching.step_runner import SteppingEngine
from services.core.batching.stepper import StepLimits, Stepper
from services.core.metrics import Metrics
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions, Generation, Progress
from services.generate.generation.input_processor import Item
from services.generate.generation.ranking import ItemResult, Ranking, rank, reorder
from services.generate.generation.sampling import Sampling
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import OFF, BadProfile, CalibrationProfile, paper_profile, write_profile
from services.generate.prompts.templates import Document
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions, is_out_of_memory
from tests.generate.tiny_models import save_tiny

CPU = DeviceOptions(device="cpu", dtype="float32")
OPTIONS = EngineOptions(CPU, max_cached_tokens=20_000, max_running=32, prefix_cache_bytes=10**6)
PROFILE = CalibrationProfile(enabled=True, bias="tree", temperature=0.001, layers=(1, 2), rel_layers=(0, 1, 2, 3))
QUERY = "who kept the lighthouse"
DOCUMENTS = (
    Document("The keeper of the lighthouse was called Ada.", title="The lighthouse"),
    Document("The harbour was built by the people of the island, who fished.", title="The harbour"),
    Document("Many traded with the mainland."),
)
SHORT = AnswerOptions(max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_tiny(tmp_path_factory.mktemp("checkpoint"))
    write_profile(PROFILE, directory)
    return directory


@pytest.fixture
def engine(directory: Path) -> GenerateEngine:
    return GenerateEngine.load(directory, OPTIONS)


def run(engine: GenerateEngine, items: Sequence[Item]) -> list[list[ItemResult]]:
    """The outcomes of each item; each has one last."""
    came: dict[int, list[ItemResult]] = {id(item): [] for item in items}
    ended: list[Item] = []
    events = engine.admit(items)
    while True:
        for item, outcome, is_last in events:
            assert item not in ended
            came[id(item)].append(outcome)
            if is_last:
                ended.append(item)
        if not engine.num_running:
            break
        events = [*engine.step(), *(engine.prepare(engine.preparing[0]) if engine.preparing else [])]
    assert len(ended) == len(items)
    return [came[id(item)] for item in items]


def answer_of(outcomes: Sequence[ItemResult]) -> list[int]:
    return [token.token_id for one in outcomes if isinstance(one, Progress) for token in one.tokens]


def answer(engine: GenerateEngine, generation: Generation) -> list[int]:
    return answer_of(run(engine, [generation])[0])


# Loading


def test_a_checkpoint_brings_its_profile_or_none(directory: Path, tmp_path: Path) -> None:
    assert GenerateEngine.load(directory, OPTIONS).processor.profile == PROFILE
    paper_off = paper_profile(4).model_copy(update={"enabled": False})
    assert GenerateEngine.load(save_tiny(tmp_path), OPTIONS).processor.profile == paper_off


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    write_profile(PROFILE.model_copy(update={"layers": (7,)}), save_tiny(tmp_path))
    with pytest.raises(BadProfile, match="layer 7"):
        GenerateEngine.load(tmp_path, OPTIONS)


@pytest.mark.slow
def test_a_sound_checkpoint_passes_its_checks_and_they_leave_nothing(engine: GenerateEngine) -> None:
    engine.warm_up()
    engine.self_check()
    assert engine.num_running == 0
    ((first, *_),) = run(engine, [engine.processor.prepare_question(QUERY, DOCUMENTS, SHORT)])
    assert isinstance(first, Progress) and first.facts is not None
    assert first.facts.cached_tokens == 0


def test_a_checkpoint_that_computes_no_numbers_is_refused(directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.2.self_attn.o_proj.weight"][0, 0] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BrokenModel):
        GenerateEngine.load(tmp_path, OPTIONS).self_check()


def test_a_cache_smaller_than_the_models_context_is_the_limit(directory: Path) -> None:
    small = GenerateEngine.load(directory, EngineOptions(CPU, max_cached_tokens=200))
    assert small.processor.context_length == 200
    fitting = small.processor.prepare_completion("the lighthouse", AnswerOptions())
    assert fitting.num_tokens == 200 and small.has_room([fitting])


# Running


@pytest.mark.slow
def test_questions_conversations_and_completions_are_answered_beside_rankings(engine: GenerateEngine) -> None:
    items: list[Item] = [
        engine.processor.prepare_question(QUERY, DOCUMENTS, SHORT),
        engine.processor.prepare_ranking(QUERY, DOCUMENTS, "calibrated"),
        engine.processor.prepare_chat([{"role": "user", "content": QUERY}], DOCUMENTS, SHORT),
        engine.processor.prepare_chat([{"role": "user", "content": QUERY}], (), SHORT),
        engine.processor.prepare_completion("the lighthouse", SHORT),
        engine.processor.prepare_ranking(QUERY, DOCUMENTS, "query_likelihood"),
    ]
    assert engine.has_room(items)
    together = run(engine, items)
    for item, outcomes in zip(items, together, strict=True):
        if isinstance(item, Generation):
            assert len(answer_of(outcomes)) == 6 and answer_of(outcomes) == answer(engine, item)
    assert [isinstance(outcomes[0], Ranking) for outcomes in together] == [False, True, False, False, False, True]


def test_a_ranking_is_that_of_the_profile(engine: GenerateEngine, directory: Path) -> None:
    ((outcome,),) = run(engine, [engine.processor.prepare_ranking(QUERY, DOCUMENTS, "calibrated")])
    expected = rank(LanguageModel.load(directory, CPU), QUERY, DOCUMENTS, "calibrated", PROFILE)
    assert isinstance(outcome, Ranking)
    assert outcome.order == expected.order
    assert outcome.relevance_scores == pytest.approx(expected.relevance_scores, abs=1e-5)


def test_the_profile_is_the_checkpoints_unless_another_is_asked_for(engine: GenerateEngine) -> None:
    own = engine.processor.prepare_question(QUERY, DOCUMENTS, SHORT)
    assert own.calibration == PROFILE
    off = engine.processor.prepare_question(QUERY, DOCUMENTS, AnswerOptions(6, calibration=OFF, ignore_eos=True))
    assert off.calibration == OFF
    facts = [outcomes[0].facts for outcomes in run(engine, [own, off]) if isinstance(outcomes[0], Progress)]
    assert [one.relevance is not None for one in facts if one is not None] == [True, False]


@pytest.mark.parametrize("method", ["attention", "calibrated", "query_likelihood", "prompt"])
@pytest.mark.slow
def test_documents_are_reordered_before_they_are_answered_on(
    engine: GenerateEngine, directory: Path, method: Any
) -> None:
    generation = engine.processor.prepare_question(QUERY, DOCUMENTS, AnswerOptions(6, reorder=method, ignore_eos=True))
    (outcomes,) = run(engine, [generation])
    order = reorder(LanguageModel.load(directory, CPU), QUERY, DOCUMENTS, method, PROFILE).order
    expected = engine.processor.prepare_question(QUERY, [DOCUMENTS[k] for k in order], SHORT)
    assert answer_of(outcomes) == answer(engine, expected)
    assert isinstance(outcomes[0], Progress) and outcomes[0].facts is not None
    assert outcomes[0].facts.order == order
    assert engine.processor.cost(generation) > engine.processor.cost(expected)


@pytest.mark.slow
def test_several_answers_to_a_reordered_question_are_told_apart(engine: GenerateEngine) -> None:
    options = AnswerOptions(8, Sampling(1.0, seed=3), reorder="calibrated", ignore_eos=True)
    choices = engine.processor.prepare_question(QUERY, DOCUMENTS, options).choices(3)
    together = run(engine, choices)
    assert len({tuple(answer_of(outcomes)) for outcomes in together}) == 3
    for choice, outcomes in zip(choices, together, strict=True):
        assert all(isinstance(one, Progress) and one.generation is choice for one in outcomes)
        assert answer_of(outcomes) == answer(engine, choice)


@pytest.mark.parametrize("reorder", ["none", "calibrated"])
@pytest.mark.slow
def test_a_cancelled_answer_makes_room_and_says_no_more(directory: Path, reorder: Any) -> None:
    engine = GenerateEngine.load(directory, EngineOptions(CPU, max_cached_tokens=4096, max_running=1))
    first, second = (
        engine.processor.prepare_question(QUERY, DOCUMENTS, AnswerOptions(6, reorder=reorder, ignore_eos=True))
        for _ in range(2)
    )
    assert not engine.has_room([first, second])
    engine.admit([first])
    assert not engine.has_room([second])
    engine.cancel(first)
    assert engine.num_running == 0 and engine.has_room([second]) and engine.step() == []
    assert len(answer(engine, second)) == 6


# Under the Stepper


class Service:
    """An engine under a Stepper, as the service runs it."""

    def __init__(self, engine: GenerateEngine) -> None:
        stepping: SteppingEngine[Item, ItemResult] = engine
        self.engine = engine
        self.thread = ComputeThread("test")
        self.thread.start()
        self.stepper: Stepper[Item, ItemResult] = Stepper(
            stepping,
            thread=self.thread,
            limits=StepLimits(max_admit_cost=2000, max_queue_cost=10**6, max_queue_size=1000),
            metrics=Metrics("test"),
            is_out_of_memory=is_out_of_memory,
        )

    async def close(self) -> None:
        await self.stepper.close()
        await self.thread.close()

    async def answer(self, generation: Generation) -> list[int]:
        outcomes: list[ItemResult] = []
        async with aclosing(self.stepper.submit(generation, cost=self.engine.processor.cost(generation))) as stream:
            async for event in stream:
                outcomes.append(event.value)
        return answer_of(outcomes)


@pytest.mark.slow
async def test_many_streams_at_once_all_end_correct_and_complete(engine: GenerateEngine) -> None:
    generations = [
        engine.processor.prepare_question(
            f"{QUERY} {number % 5}",
            DOCUMENTS[: number % 4],
            AnswerOptions(2 + number % 7, Sampling(number % 2, seed=number), ignore_eos=True),
        )
        for number in range(60)
    ]
    expected = [answer(engine, generation) for generation in generations]
    service = Service(engine)
    try:
        assert await asyncio.gather(*map(service.answer, generations)) == expected
    finally:
        await service.close()
    assert engine.num_running == 0


async def test_a_stream_that_is_closed_frees_its_place_for_the_next(directory: Path) -> None:
    engine = GenerateEngine.load(directory, EngineOptions(CPU, max_cached_tokens=4096, max_running=1))
    endless = engine.processor.prepare_completion("the lighthouse", AnswerOptions(ignore_eos=True))
    assert endless.max_tokens > 4000
    following = engine.processor.prepare_question(QUERY, DOCUMENTS, SHORT)
    service = Service(engine)
    try:
        async with aclosing(service.stepper.submit(endless, cost=1)) as stream:
            await anext(stream)
            waiting = asyncio.create_task(service.answer(following))
            await anext(stream)
        assert len(await waiting) == 6
    finally:
        await service.close()
