"""`/v1/decisions` of the generate service: any question, by the probabilities of its options' tokens."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from services import generate
from services.core.http.decisions import concentration
from services.core.store.checkpoint_files import read_description
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.app import create_generate
from services.generate.settings import GenerateSettings
from tests.embed.tiny import wait_until_ready
from tests.generate.served_tiny import CONTEXT, MODEL, served_tiny
from tests.generate.tiny_models import save_tiny, tiny_model, tiny_tokenizer

TEXT = "The keeper of the lighthouse was called Ada."
CHOICE = {
    "type": "choice",
    "name": "who",
    "instructions": "Who kept it?",
    "choices": [{"value": "Ada"}, {"value": True, "description": "Somebody"}, {"value": "none"}],
}
PREDICATE = {"type": "predicate", "instructions": [{"type": "input_text", "text": "Is it old?"}]}
SCORE = {"type": "score", "instructions": "How old is it?", "levels": [{"label": "new"}, {"label": "old"}]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served_tiny(tmp_path_factory.mktemp("decisions")) as client:
        yield client


@pytest.fixture(scope="module")
def uncalibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served_tiny(tmp_path_factory.mktemp("uncalibrated"), None, max_documents=3) as client:
        yield client


@pytest.fixture(scope="module")
def plain_model() -> Any:
    return tiny_model(attention="eager")


def ask(client: TestClient, given: Any, *questions: Any, **fields: Any) -> Any:
    return client.post("/v1/decisions", json={"model": MODEL, "input": given, "questions": questions, **fields})


def answers_to(client: TestClient, given: Any, *questions: Any, **fields: Any) -> list[Any]:
    response = ask(client, given, *questions, **fields)
    assert response.status_code == 200, response.text
    answers: list[Any] = response.json()["answers"]
    return answers


def expected(client: TestClient, plain_model: Any, messages: Sequence[Any], answers: Sequence[str]) -> list[float]:
    """Transformers' probabilities of tokens after a conversation, among each other."""
    input_ids = client.post("/tokenize", json={"model": MODEL, "messages": messages}).json()["tokens"]
    token_ids = [tiny_tokenizer()(answer, add_special_tokens=False).input_ids[0] for answer in answers]
    logits = plain_model(torch.tensor([input_ids])).logits[0, -1, token_ids]
    shares: list[float] = logits.softmax(dim=0).tolist()
    return shares


def shares_of(answer: dict[str, Any]) -> list[float]:
    return [one["probability"] for one in answer["probabilities"]]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


CHOICE_TEXT = "Who kept it?\nA. Ada\nB. true: Somebody\nC. none\nAnswer with the letter of one option."


def test_options_have_the_probabilities_that_transformers_gives_their_letters(
    client: TestClient, plain_model: Any
) -> None:
    choice, predicate, score = answers_to(client, TEXT, CHOICE, PREDICATE, SCORE)

    shares = expected(client, plain_model, [user(f"{TEXT}\n\n{CHOICE_TEXT}")], "ABC")
    assert shares_of(choice) == pytest.approx(shares, abs=1e-5)
    assert sum(shares_of(choice)) == pytest.approx(1)
    assert [one["value"] for one in choice["probabilities"]] == ["Ada", True, "none"]
    assert choice["choice"] == ["Ada", True, "none"][shares.index(max(shares))]
    assert choice["confidence"] == pytest.approx(concentration(shares), abs=1e-4)

    asked = user(f"{TEXT}\n\nIs it old?\nAnswer Yes or No.")
    assert predicate["probability"] == pytest.approx(expected(client, plain_model, [asked], ["Yes", "No"])[0], abs=1e-5)

    asked = user(f"{TEXT}\n\nHow old is it?\nA. new\nB. old\nAnswer with the letter of one option.")
    assert score["score"] == pytest.approx(expected(client, plain_model, [asked], "AB")[1], abs=1e-5)


def test_a_conversation_is_read_in_its_roles_and_the_question_stands_at_its_end(
    client: TestClient, plain_model: Any
) -> None:
    said = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be strict."}]},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": TEXT}, {"type": "input_json", "data": {"age": 90}}],
        },
        {"role": "user", "content": "And then?"},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So."}, {"type": "refusal", "refusal": "No."}],
        },
    ]
    (choice,) = answers_to(client, said, CHOICE)
    read = [
        {"role": "system", "content": "Be strict."},
        user(f'{TEXT}\n{{"age":90}}\nAnd then?'),
        {"role": "assistant", "content": "So.\nNo."},
        user(CHOICE_TEXT),
    ]
    assert shares_of(choice) == pytest.approx(expected(client, plain_model, read, "ABC"), abs=1e-5)


DOCUMENTS = [
    {"id": "l", "title": "The lighthouse", "text": "The keeper of the lighthouse was called Ada."},
    "The harbour was built by the people of the island.",
    {"text": "Ada lived there until the year 1931."},
]
# The prompt of chat over documents.
OVER_DOCUMENTS = """Write a high-quality answer for the given question using only the provided search results (some of \
which might be irrelevant).

Question: {question}

Document [1](Title: The lighthouse) The keeper of the lighthouse was called Ada.
Document [2] The harbour was built by the people of the island.
Document [3] Ada lived there until the year 1931.

Question: {question}
Answer:"""


def test_over_documents_options_have_transformers_probabilities_where_nothing_is_calibrated(
    uncalibrated: TestClient, plain_model: Any
) -> None:
    said = [{"role": "system", "content": "Be strict."}, user(TEXT), {"role": "assistant", "content": "So."}]
    for given, before, begin in ((TEXT, [], f"{TEXT}\n\n"), (said, said, "")):
        choice, predicate = answers_to(uncalibrated, given, CHOICE, PREDICATE, documents=DOCUMENTS)
        asked = [*before, user(OVER_DOCUMENTS.format(question=f"{begin}{CHOICE_TEXT}"))]
        shares = expected(uncalibrated, plain_model, asked, "ABC")
        assert shares_of(choice) == pytest.approx(shares, abs=1e-5)
        asked = [*before, user(OVER_DOCUMENTS.format(question=f"{begin}Is it old?\nAnswer Yes or No."))]
        yes, _ = expected(uncalibrated, plain_model, asked, ["Yes", "No"])
        assert predicate["probability"] == pytest.approx(yes, abs=1e-5)


def test_several_documents_are_read_with_calibrated_attention_where_the_model_has_a_profile(
    client: TestClient, uncalibrated: TestClient
) -> None:
    for documents, is_calibrated in ((DOCUMENTS, True), (DOCUMENTS[:1], False), ([], False)):
        own, plain = (answers_to(one, TEXT, CHOICE, documents=documents)[0] for one in (client, uncalibrated))
        assert (shares_of(own) != pytest.approx(shares_of(plain), abs=1e-3)) == is_calibrated


def test_many_questions_are_answered_in_their_order(client: TestClient) -> None:
    questions = [{**PREDICATE, "name": str(place), "instructions": f"Is it {place}?"} for place in range(30)]
    together = answers_to(client, TEXT, *questions)
    assert [one["name"] for one in together] == [str(place) for place in range(30)]
    (alone,) = answers_to(client, TEXT, questions[17])
    assert together[17]["probability"] == pytest.approx(alone["probability"], abs=1e-5)


def test_usage_counts_the_tokens_of_all_prompts(client: TestClient) -> None:
    one, both = (ask(client, TEXT, *some).json()["usage"] for some in ([CHOICE], [CHOICE, CHOICE]))
    assert both["input_tokens"] == 2 * one["input_tokens"] > 0
    assert both["output_tokens"] == 0


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
MANY = {**CHOICE, "choices": [{"value": str(place)} for place in range(21)]}


@pytest.mark.parametrize(
    ("given", "question", "status", "param", "said"),
    [
        ([{"role": "user", "content": [IMAGE]}], CHOICE, 422, "input.0.content.0", "no images"),
        (
            [user("x"), {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}],
            CHOICE,
            422,
            "input.1",
            "calls of tools",
        ),
        (TEXT, MANY, 422, "questions.0.choices", "at most 20 options"),
        ("word " * CONTEXT, CHOICE, 413, "input", str(CONTEXT)),
    ],
)
def test_what_the_model_can_not_read_or_decide_is_refused_by_its_place(
    client: TestClient, given: Any, question: Any, status: int, param: str, said: str
) -> None:
    response = ask(client, given, question)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), response.text
    assert said in error["message"]


@pytest.mark.parametrize(
    ("documents", "status", "param", "said"),
    [
        (["a"] * 4, 413, "documents", "asks for 4 documents; the limit is 3"),
        (["a", "word " * CONTEXT], 413, "documents", str(CONTEXT)),
        (["a", {"title": "b"}], 422, "documents.1.text", "required"),
        ([{"content": "b"}], 422, "documents.0.content", "text"),
    ],
)
def test_documents_that_can_not_be_read_are_refused_by_their_place(
    uncalibrated: TestClient, documents: Any, status: int, param: str, said: str
) -> None:
    response = ask(uncalibrated, TEXT, CHOICE, documents=documents)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), response.text
    assert said in error["message"]


PACKAGED = Path(generate.__file__).parent / "starter"


def test_a_model_that_was_not_taught_to_follow_instructions_decides_nothing(tmp_path: Path) -> None:
    plain = save_tiny(tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    store = Store.open((tmp_path / "store").as_uri())
    store.publish("plain", plain, CheckpointInfo(kind="causal-lm"))
    for name in ("open-facts", "litm-facts"):
        store.publish(name, PACKAGED / name, read_description(PACKAGED / name).info())
    settings = GenerateSettings(
        store_url=(tmp_path / "store").as_uri(),
        checkpoint_cache_dir=tmp_path / "checkpoints",
        models=("plain", "open-facts", "litm-facts"),
        device="cpu",
        num_threads=1,
    )
    with TestClient(create_generate(settings), base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        assert [one["decides"] for one in client.get("/v1/models").json()["data"]] == [False] * 3
        for name in settings.models:
            for question in (CHOICE, PREDICATE, SCORE):
                response = client.post("/v1/decisions", json={"model": name, "input": TEXT, "questions": [question]})
                assert response.status_code == 422, response.text
                error = response.json()["error"]
                assert error["param"] == "model"
                assert error["message"].startswith(f"model: {name} was not taught to follow instructions")
                assert "A language model that was, with a chat template, a student or" in error["message"]
