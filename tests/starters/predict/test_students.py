"""The students that come with the service: they load, answer as well as their description says, and give reasons."""

import re
from pathlib import Path

import pytest

from services.core.store.checkpoint_files import packaged_starters, read_description
from services.nn.devices import DeviceOptions
from services.predict.arithmetic import evaluate
from services.predict.engine import PredictEngine, Prediction
from starters.predict.generated import GENERATED_TASKS, GeneratedSource, generated_splits

SERVICES = Path(__file__).parents[3] / "services"
STARTERS = ("word-problems", "inferences")
NUM_ROWS = 200
README_QUESTION = "How many spoons are in each bag of Dora?"


@pytest.fixture(scope="module", params=STARTERS)
def starter(request: pytest.FixtureRequest) -> Path:
    return SERVICES / "predict" / "starter" / str(request.param)


@pytest.fixture(scope="module")
def predictions(starter: Path) -> list[tuple[Prediction, str]]:
    """Return predictions of test rows, with reasons, and the labels."""
    engine = PredictEngine.load(starter, DeviceOptions(device="cpu", dtype="float32"))
    engine.self_check()
    task = GENERATED_TASKS[starter.name]
    rows = generated_splits(task.name, num_train=0, num_valid=0, num_test=NUM_ROWS).test
    answers = []
    for start in range(0, NUM_ROWS, 50):
        some = rows[start : start + 50]
        fields = [dict(zip(task.fields, row.input.split(task.separator), strict=True)) for row in some]
        found = engine.run_batch([engine.prepare(values, rationale=True) for values in fields])
        answers += list(zip(found, [row.label for row in some], strict=True))
    return answers


def test_a_starter_is_packaged_with_a_description_that_says_what_it_is(starter: Path) -> None:
    assert starter in packaged_starters()
    description = read_description(starter)
    assert (description.name, description.kind, description.licence) == (starter.name, "t5-student", "MIT")
    assert description.training["method"] == "step-by-step"
    assert description.statement is not None and "generated" in description.statement
    assert sum(path.stat().st_size for path in starter.iterdir()) < 25_000_000


@pytest.mark.slow
def test_a_starter_answers_as_well_as_its_description_says(
    starter: Path, predictions: list[tuple[Prediction, str]]
) -> None:
    task = GENERATED_TASKS[starter.name]
    right = sum(task.is_right(found.label, label) for found, label in predictions)
    # of the first of the test rows, whose share may differ from that of all by chance
    assert right / NUM_ROWS == pytest.approx(read_description(starter).metrics["test_accuracy"], abs=0.1)
    assert GeneratedSource.num_test >= NUM_ROWS


def test_reasons_are_sentences_and_equations_have_values(
    starter: Path, predictions: list[tuple[Prediction, str]]
) -> None:
    for found, _ in predictions:
        assert found.rationale is not None
        assert 0 < found.probability <= 1
    whole = [found for found, _ in predictions if re.fullmatch(r"([A-Z0-9][^.]*\. ?)+", found.rationale or "")]
    assert len(whole) > 0.9 * NUM_ROWS
    assert all(found.confidence is not None and 0 < found.confidence < 1 for found, _ in predictions)
    if starter.name == "word-problems":
        assert sum(evaluate(found.label) is not None for found, _ in predictions) > 0.95 * NUM_ROWS


@pytest.mark.parametrize(
    ("task", "values", "answer"),
    [
        ("word-problems", {"body": "Dora split 63 spoons evenly into 9 bags.", "question": README_QUESTION}, 7),
        ("word-problems", {"body": "Leo has 1,250 stamps and buys 75 more.", "question": "How many has he now?"}, 1325),
        ("word-problems", {"body": "I had £20 and spent half of it.", "question": "How much is left?"}, 10),
    ],
)
def test_what_the_readme_shows_survives_a_visitor_s_first_change(
    task: str, values: dict[str, str], answer: object
) -> None:
    engine = PredictEngine.load(SERVICES / "predict" / "starter" / task, DeviceOptions(device="cpu", dtype="float32"))
    (found,) = engine.run_batch([engine.prepare(values)])
    assert answer in (found.value, found.label)
