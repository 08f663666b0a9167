"""`/v1/decisions` of the predict service: what students decide, and everything that is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.http.decisions import concentration
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.predict.confidence import Calibration
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import NO_PREFIXES, Task
from tests.predict.served_tiny import PAIR, PROBLEM, QUESTION, publish_tiny, served_tiny
from tests.predict.tiny_students import save_student

TEXT = "what a film"
URGENT = Task("urgent", ("text",), "\n", labels=("yes", "no"))
# Of students with one set of weights: what they hand over to a teacher.
THRESHOLDS = {"tiny-urgent": 0.0, "tiny-doubtful": 0.999, "tiny-helpless": None}
CALIBRATION = Calibration(temperature=2.0, offset=-0.5)
GOOD = {"type": "predicate", "instructions": "good"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("decisions")
    store_url = publish_tiny(folder)
    description = TaskDescription.of(URGENT, NO_PREFIXES, has_rationales=False)
    calibrated = {**description.model_dump(mode="json"), "confidence": vars(CALIBRATION)}
    student = save_student(folder / "urgent", calibrated, spread=1.0)
    for name, threshold in THRESHOLDS.items():
        info = CheckpointInfo(kind="t5-student", metrics={"threshold": threshold})
        Store.open(store_url).publish(name, student, info)
    models = ",".join(("tiny-reviews,tiny-esnli,tiny-cqa,tiny-svamp", *THRESHOLDS))
    with served_tiny(store_url, folder, models=models) as client:
        yield client


def choice(*values: Any, **fields: Any) -> dict[str, Any]:
    options = [value if isinstance(value, dict) else {"value": value} for value in values]
    return {"type": "choice", "instructions": "Which?", "choices": options, **fields}


def levels(*labels: str) -> dict[str, Any]:
    return {"type": "score", "instructions": "How much?", "levels": [{"label": label} for label in labels]}


def ask(client: TestClient, model: str, given: Any, *questions: Any, **fields: Any) -> Any:
    return client.post("/v1/decisions", json={"model": model, "input": given, "questions": questions, **fields})


def decided(client: TestClient, model: str, given: Any, *questions: Any, **fields: Any) -> Any:
    response = ask(client, model, given, *questions, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def predicted(client: TestClient, task: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The service's own answer to the same input."""
    answer = client.post("/predict", json={"task": task, "inputs": [fields], "probabilities": True}).json()
    return {**answer["predictions"][0], "usage": answer["usage"]}


def shares_of(answer: dict[str, Any]) -> list[float]:
    return [one["probability"] for one in answer["probabilities"]]


# --- answers ---


def test_questions_of_all_types_are_answered_by_the_probabilities_of_predict(client: TestClient) -> None:
    own = predicted(client, "reviews", {"text": TEXT})
    good, bad = own["probabilities"]["good"], own["probabilities"]["bad"]
    answer = decided(client, "tiny-reviews", TEXT, choice("bad", "good", name="which"), GOOD, levels("bad", "good"))

    assert answer["model"].startswith("tiny-reviews@")
    first, second, third = answer["answers"]
    best = "good" if good > bad else "bad"
    assert (first["type"], first["name"], first["choice"]) == ("choice", "which", best)
    assert first["probabilities"] == [
        {"value": "bad", "probability": pytest.approx(bad)},
        {"value": "good", "probability": pytest.approx(good)},
    ]
    assert first["confidence"] == pytest.approx(concentration([good, bad]))
    assert second == {"type": "predicate", "name": None, "probability": pytest.approx(good)}
    assert third["score"] == pytest.approx(good)
    assert [(one["value"], one["label"]) for one in third["probabilities"]] == [(0, "bad"), (1, "good")]
    assert sum(shares_of(first)) == pytest.approx(1)
    assert answer["usage"] == {
        "input_tokens": own["usage"]["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": own["usage"]["prompt_tokens"],
    }


def test_the_confidence_of_a_calibrated_student_is_the_fitted_one(client: TestClient) -> None:
    (answer,) = decided(client, "tiny-urgent", TEXT, choice("yes", "no"))["answers"]
    assert answer["confidence"] == pytest.approx(CALIBRATION.confidence(max(shares_of(answer))))


@pytest.mark.parametrize(
    ("model", "is_certain"), [("tiny-urgent", True), ("tiny-doubtful", False), ("tiny-helpless", False)]
)
def test_beside_a_teacher_a_student_decides_from_its_threshold_on(
    client: TestClient, model: str, is_certain: bool
) -> None:
    asked = (choice("yes", "no"), {"type": "predicate", "instructions": "yes"})
    alone, beside = decided(client, model, TEXT, *asked), decided(client, model, TEXT, *asked, teacher="large")
    own = alone["model"] if is_certain else None
    assert beside["answers"] == [{**one, "model": own} for one in alone["answers"]]


def test_a_student_decides_without_documents(client: TestClient) -> None:
    refused = ask(client, "tiny-reviews", TEXT, GOOD, documents=["what a film"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "documents")
    assert "Only language models of generate decide over documents" in refused.json()["error"]["message"]


def test_a_student_without_a_threshold_hands_nothing_over(client: TestClient) -> None:
    refused = ask(client, "tiny-reviews", TEXT, GOOD, teacher="large")
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "teacher")
    assert "tiny-reviews has no threshold in its manifest" in refused.json()["error"]["message"]


@pytest.mark.parametrize("model", ["tiny-urgent", "tiny-urgent@latest"])
@pytest.mark.parametrize("teacher", ["tiny-urgent", "tiny-urgent@latest"])
def test_a_student_is_not_its_own_teacher(client: TestClient, model: str, teacher: str) -> None:
    refused = ask(client, model, TEXT, choice("yes", "no"), teacher=teacher)
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "teacher")
    assert refused.json()["error"]["message"] == "teacher: A model can't be its own teacher; name another model."


@pytest.mark.parametrize(
    "question",
    [
        choice({"value": "a", "description": "GOOD"}, "bad"),
        choice("Good ", "bad"),
        choice("good", "bad", instructions=[{"type": "input_text", "text": "Which?"}]),
    ],
)
def test_an_option_is_a_label_by_its_value_or_its_description(client: TestClient, question: dict[str, Any]) -> None:
    own = predicted(client, "reviews", {"text": TEXT})["probabilities"]
    (answer,) = decided(client, "tiny-reviews", TEXT, question)["answers"]
    assert shares_of(answer) == pytest.approx([own["good"], own["bad"]])


def test_booleans_are_the_labels_yes_and_no(client: TestClient) -> None:
    own = predicted(client, "tiny-urgent", {"text": TEXT})["probabilities"]
    of_boolean, of_name = decided(
        client,
        "tiny-urgent",
        TEXT,
        choice(False, True),
        {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
    )["answers"]
    assert [one["value"] for one in of_boolean["probabilities"]] == [False, True]
    assert shares_of(of_boolean) == pytest.approx([own["no"], own["yes"]])
    assert of_name["probability"] == pytest.approx(own["yes"])


def test_a_predicate_is_the_label_that_its_name_is(client: TestClient) -> None:
    by_text, by_name = decided(client, "tiny-reviews", TEXT, GOOD, {**GOOD, "name": "good", "instructions": "Is it?"})[
        "answers"
    ]
    assert by_text["probability"] == by_name["probability"]


@pytest.mark.parametrize(
    "given",
    [
        json.dumps(PAIR),
        [{"role": "user", "content": json.dumps(PAIR)}],
        [{"type": "message", "role": "user", "content": [{"type": "input_json", "data": PAIR}]}],
    ],
)
def test_the_fields_of_a_task_are_those_of_a_json_object(client: TestClient, given: Any) -> None:
    own = predicted(client, "esnli", PAIR)["probabilities"]
    (answer,) = decided(client, "tiny-esnli", given, {"type": "predicate", "instructions": "neutral"})["answers"]
    assert answer["probability"] == pytest.approx(own["neutral"])


def test_several_texts_of_the_user_are_joined_by_line_breaks(client: TestClient) -> None:
    own = predicted(client, "reviews", {"text": "what\na\nfilm"})["probabilities"]
    parts = [{"type": "input_text", "text": text} for text in ("a", "film")]
    given = [{"role": "user", "content": "what"}, {"role": "user", "content": parts}]
    (answer,) = decided(client, "tiny-reviews", given, GOOD)["answers"]
    assert answer["probability"] == pytest.approx(own["good"])


def test_the_options_of_a_question_are_the_choices_of_a_task_that_has_them(client: TestClient) -> None:
    own = predicted(client, "cqa", QUESTION)["probabilities"]
    asked = choice(*QUESTION["choices"])
    first, second, third = decided(client, "tiny-cqa", QUESTION["question"], asked, choice("sea", "sky"), asked)[
        "answers"
    ]
    assert shares_of(first) == shares_of(third) == pytest.approx([own[one] for one in QUESTION["choices"]])
    assert sum(shares_of(second)) == pytest.approx(1)


def test_hints_for_caches_and_moderation_change_nothing(client: TestClient) -> None:
    plain = decided(client, "tiny-reviews", TEXT, GOOD)
    hints = {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit"}, "safety_identifier": "u" * 64}
    part = {"type": "input_text", "text": TEXT, "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert decided(client, "tiny-reviews", [{"role": "user", "content": [part]}], GOOD, **hints) == plain


def test_equal_probabilities_have_no_confidence_and_certain_ones_have_all() -> None:
    assert concentration([0.25] * 4) == pytest.approx(0, abs=1e-12)
    assert concentration([0.0, 1.0]) == 1
    assert 0 < concentration([0.7, 0.2, 0.1]) < concentration([0.9, 0.05, 0.05]) < 1


# --- refusals ---


@pytest.mark.parametrize(
    ("model", "given", "question", "param", "said"),
    [
        ("reviews", TEXT, choice("good", "so-so"), "questions.0.choices.1", "labels are good, bad"),
        ("reviews", TEXT, choice("good", "Good"), "questions.0.choices.1", "label of an earlier option"),
        ("esnli", json.dumps(PAIR), choice("neutral", "entailment"), "questions.0", "'contradiction'"),
        ("reviews", TEXT, levels("good", "better"), "questions.0.levels.1", "labels are good, bad"),
        ("reviews", TEXT, {**GOOD, "instructions": "Is it long?"}, "questions.0.instructions", "good, bad"),
        ("reviews", TEXT, {**GOOD, "name": "reviews", "instructions": "?"}, "questions.0.instructions", "good, bad"),
        ("cqa", QUESTION["question"], GOOD, "questions.0", "ask a choice"),
        ("cqa", QUESTION["question"], choice(True, "true"), "questions.0.choices", "twice"),
        ("svamp", json.dumps(PROBLEM), GOOD, "questions.0", "free text"),
        ("esnli", TEXT, GOOD, "input", "premise, hypothesis"),
        ("esnli", json.dumps({**PAIR, "more": ""}), GOOD, "input", "premise, hypothesis"),
        ("esnli", json.dumps({**PAIR, "premise": 1}), GOOD, "input", "premise must be a string"),
        ("reviews", "", GOOD, "input", "no text"),
    ],
)
def test_what_the_student_has_not_learnt_is_refused_with_what_it_has(
    client: TestClient, model: str, given: Any, question: Any, param: str, said: str
) -> None:
    response = ask(client, f"tiny-{model}", given, question)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (422, param), response.text
    assert said in error["message"]


def item(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": TEXT}, fields]


CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (item(role="system", content="Be brief."), "input.1"),
        (item(role="assistant", content=[{"type": "output_text", "text": "Yes."}], phase="commentary"), "input.1"),
        (item(**CALL), "input.1"),
        ([CALL, {"type": "function_call_output", "call_id": "1", "output": "x"}], "input.0"),
        ([{"type": "function_call_output", "call_id": "1", "output": "x"}], "input.0.call_id"),
        ([CALL, {"type": "custom_tool_call_output", "call_id": "1", "output": "x"}], "input.1.call_id"),
        (item(role="owner", content="x"), "input.1"),
        ([1], "input.0"),
        ([], "input"),
        (item(role="user", content=[IMAGE]), "input.1.content.0"),
        (item(role="user", content=[{**IMAGE, "detail": "high"}]), "input.1.content.0.detail"),
        (item(role="user", content=[{"type": "input_file"}]), "input.1.content.0"),
        (item(role="user", content=[{"type": "input_text", "text": "x", "txet": "x"}]), "input.1.content.0.txet"),
        (item(role="user", content=[{"type": "input_json", "data": [1]}]), "input.1.content.0.data.0"),
        (item(role="user", content=[{"type": "input_json", "data": {"a": [0] * 10_000}}]), "input.1.content.0.data"),
        (item(role="user", content=[{"type": "input_json", "data": {"a": "x" * 300_000}}]), "input.1.content.0.data"),
    ],
)
def test_what_the_student_can_not_read_is_refused_by_its_place(client: TestClient, given: Any, param: str) -> None:
    response = ask(client, "tiny-reviews", given, GOOD)
    assert (response.status_code, response.json()["error"]["param"]) == (422, param), response.text


def test_json_that_is_nested_too_deeply_is_refused(client: TestClient) -> None:
    nested: Any = {}
    for _ in range(32):
        nested = {"a": nested}
    response = ask(client, "tiny-reviews", item(role="user", content=[{"type": "input_json", "data": nested}]), GOOD)
    assert (response.status_code, response.json()["error"]["param"]) == (422, "input.1.content.0.data")
    assert "32 levels" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("questions", "param"),
    [
        ([], "questions"),
        ([GOOD] * 401, "questions"),
        ([choice()], "questions.0.choices"),
        ([choice("good")], "questions.0.choices"),
        ([choice(*map(str, range(256)))], "questions.0.choices"),
        ([choice("good", "")], "questions.0.choices.1.value"),
        ([choice("good", 1)], "questions.0.choices.1.value"),
        ([choice("good", "bad", "good")], "questions.0.choices.2"),
        ([GOOD, levels("low", "high", "low")], "questions.1.levels.2"),
        ([levels("low")], "questions.0.levels"),
        ([levels("low", "")], "questions.0.levels.1.label"),
        ([{**GOOD, "type": "ranking"}], "questions.0"),
        ([{**GOOD, "instructions": ""}], "questions.0.instructions"),
        ([{**GOOD, "instructions": [IMAGE]}], "questions.0.instructions.0"),
        ([{**GOOD, "weight": 1}], "questions.0.weight"),
    ],
)
def test_questions_beyond_the_limits_are_refused_by_their_field(
    client: TestClient, questions: list[Any], param: str
) -> None:
    response = ask(client, "tiny-reviews", TEXT, *questions)
    assert (response.status_code, response.json()["error"]["param"]) == (422, param), response.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0}, "temperature"),
        ({"safety_identifer": "x"}, "safety_identifer"),
        ({"safety_identifier": "x" * 65}, "safety_identifier"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"mode": "never"}}, "prompt_cache_options.mode"),
    ],
)
def test_fields_that_are_unknown_or_wrong_are_refused_by_name(
    client: TestClient, fields: dict[str, Any], param: str
) -> None:
    response = ask(client, "tiny-reviews", TEXT, GOOD, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (422, param), response.text


def test_an_input_that_is_too_long_is_refused_with_its_tokens(client: TestClient) -> None:
    response = ask(client, "tiny-reviews", "word " * 200, GOOD)
    assert (response.status_code, response.json()["error"]["param"]) == (413, "input")


def test_four_hundred_questions_are_one_computation(client: TestClient) -> None:
    answer = decided(client, "tiny-reviews", TEXT, *[GOOD] * 400)
    assert len(answer["answers"]) == 400
    assert answer["usage"] == decided(client, "tiny-reviews", TEXT, GOOD)["usage"]
