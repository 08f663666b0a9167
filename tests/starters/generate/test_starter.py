"""The packaged reader: it says what it is, answers about names that nobody trained it on, and refuses the rest."""

import random
from pathlib import Path

import pytest

from services.core.store.checkpoint_files import packaged_starters, read_description
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions, Progress
from services.generate.prompts.templates import Document
from services.generate.settings import GenerateSettings
from services.nn.devices import DeviceOptions
from starters.generate.questions import OPEN
from starters.generate.world.documents import REFUSAL, Scope, draw_world

STARTER = Path(__file__).parents[3] / "services" / "generate" / "starter" / "open-facts"
NUM_QUESTIONS = 60


@pytest.fixture(scope="module")
def engine() -> GenerateEngine:
    return GenerateEngine.load(STARTER, EngineOptions(device=DeviceOptions(device="cpu", dtype="float32")))


def answer(engine: GenerateEngine, query: str, documents: list[Document]) -> tuple[str, float | None]:
    options = AnswerOptions(max_tokens=32, calibration=engine.processor.profile)
    generation = engine.processor.prepare_question(query, documents, options)
    events = engine.admit([generation])
    text, relevance = "", None
    while events:
        for _, progress, _ in events:
            assert isinstance(progress, Progress)
            text += progress.text
            relevance = progress.facts.answerable if progress.facts is not None else relevance
        events = engine.step()
    return text.strip(), relevance


def test_the_served_model_is_packaged_with_a_description() -> None:
    assert STARTER in packaged_starters()
    assert GenerateSettings().models == (STARTER.name,)
    description = read_description(STARTER)
    assert (description.name, description.kind, description.licence) == ("open-facts", "causal-lm", "MIT")
    assert "copies its answers" in str(description.statement)
    assert sum(path.stat().st_size for path in STARTER.iterdir()) < 25_000_000


def test_the_starter_checks_itself(engine: GenerateEngine) -> None:
    engine.self_check()
    assert engine.processor.is_greedy


def test_a_name_that_nobody_has_is_copied(engine: GenerateEngine) -> None:
    documents = [Document("Bruntle Vekko lives in Rome."), Document("Tamsi Orlubek lives in Bergen.")]
    found, relevance = answer(engine, "Where does Tamsi Orlubek live?", documents)
    assert found == "Bergen"
    assert relevance is not None
    assert relevance > 0.5


def test_without_documents_the_starter_refuses(engine: GenerateEngine) -> None:
    found, relevance = answer(engine, "Where does Tamsi Orlubek live?", [])
    assert found == REFUSAL
    assert relevance is not None
    assert relevance < 0.5


@pytest.mark.slow
def test_the_starter_answers_as_well_as_its_description_says(engine: GenerateEngine) -> None:
    questions = OPEN
    right = 0
    for example in questions.examples("evaluation", 3, NUM_QUESTIONS):
        documents = list(example.documents)
        right += answer(engine, example.question, documents)[0] == example.answers[0]
    metrics = read_description(STARTER).metrics["few_documents"]
    assert isinstance(metrics, dict)
    assert right / NUM_QUESTIONS == pytest.approx(metrics["answered"], abs=0.2)


@pytest.mark.slow
def test_the_starter_refuses_more_of_what_it_cannot_answer(engine: GenerateEngine) -> None:
    generator = random.Random(99)
    refused = {True: 0, False: 0}
    for number in range(NUM_QUESTIONS):
        world = draw_world(generator, Scope((3, 3), 1, mixed=0.0))
        asked = world.ask(generator, is_answerable=number % 2 == 0)
        found, _ = answer(engine, asked.question, list(world.documents))
        refused[asked.gold is not None] += found == REFUSAL
    assert refused[False] > 2 * refused[True]
