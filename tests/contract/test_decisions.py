"""`/v1/decisions` as the clients of OpenAI and LangChain ask and read it, through the gateway."""

import asyncio
import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.predict.tasks import Task
from tests.contract.generate_processes import running_system
from tests.contract.predict_processes import running_predict
from tests.contract.score_processes import running_score
from tests.contract.served_system import System
from tests.core.image_files import encode, scene
from tests.generate.served_tiny import MODEL as LANGUAGE_MODEL
from tests.predict.served_tiny import PAIR, QUESTION, save_task
from tests.score.served_tiny import MODEL as SCORE_MODEL

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "decide.md"
QUESTIONS: list[Any] = [
    {
        "type": "choice",
        "name": "which",
        "instructions": "How does the hypothesis relate to the premise?",
        "choices": [{"value": one} for one in ("entailment", "neutral", "contradiction")],
    },
    {"type": "predicate", "name": "neutral", "instructions": [{"type": "input_text", "text": "neutral"}]},
    {
        "type": "score",
        "instructions": "How much does it contradict?",
        "levels": [{"label": one} for one in ("entailment", "neutral", "contradiction")],
    },
]
INPUT: list[Any] = [{"role": "user", "content": [{"type": "input_json", "data": PAIR}]}]


@pytest.fixture
def client(predict_system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{predict_system.gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def check_inferences(decision: Any) -> None:
    """Whether it is one answer to each of `QUESTIONS`, in the client's own classes."""
    choice, predicate, score = decision.answers
    assert [one.type for one in decision.answers] == ["choice", "predicate", "score"]
    assert [one.name for one in decision.answers] == ["which", "neutral", None]
    by_value = {one.value: one.probability for one in choice.probabilities}
    assert sum(by_value.values()) == pytest.approx(1)
    assert by_value[choice.choice] == max(by_value.values())
    assert predicate.probability == by_value["neutral"]
    assert score.score == pytest.approx(by_value["neutral"] + 2 * by_value["contradiction"])
    assert [one.label for one in score.probabilities] == list(by_value)
    assert 0 <= choice.confidence <= 1
    assert decision.model.startswith("tiny-esnli@")
    assert decision.usage.total_tokens == decision.usage.input_tokens > 0


def test_openais_client_reads_a_students_decisions(client: openai.OpenAI) -> None:
    check_inferences(
        client.decisions.create(
            model="tiny-esnli",
            input=INPUT,
            questions=QUESTIONS,
            prompt_cache_key="a",
            prompt_cache_options={"mode": "explicit", "ttl": "30m"},
            safety_identifier="b",
        )
    )
    raw = client.decisions.with_raw_response.create(model="tiny-esnli", input=json.dumps(PAIR), questions=QUESTIONS)
    check_inferences(raw.parse())


def test_openais_asynchronous_client_reads_a_students_decisions(predict_system: System) -> None:
    async def decided() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{predict_system.gateway.url}/v1", api_key="none") as client:
            return await client.decisions.create(model="tiny-esnli", input=INPUT, questions=QUESTIONS)

    check_inferences(asyncio.run(decided()))


def test_openais_client_raises_what_a_student_can_not_decide(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="whose labels are good, bad") as refused:
        client.decisions.create(
            model="tiny-reviews", input="what a film", questions=[{"type": "predicate", "instructions": "Is it long?"}]
        )
    assert refused.value.param == "questions.0.instructions"
    with pytest.raises(openai.UnprocessableEntityError, match="temperature: Unknown field"):
        client.decisions.create(
            model="tiny-reviews",
            input="what a film",
            questions=[{"type": "predicate", "instructions": "good"}],
            extra_body={"temperature": 0},
        )


def langchain(system: System, model: str) -> Any:
    from langchain_core._api import suppress_langchain_beta_warning
    from langchain_openai.decisions import OpenAIDecisions

    with suppress_langchain_beta_warning():
        return OpenAIDecisions(model=model, base_url=f"{system.gateway.url}/v1", api_key="none", max_retries=0)


def test_langchain_reads_a_students_decisions(predict_system: System) -> None:
    from langchain_core.messages import HumanMessage
    from langchain_openai.decisions import Choice, Predicate, Score

    labels = ["entailment", "neutral", "contradiction"]
    # LangChain sends a state that is no text as the text of its JSON
    found = langchain(predict_system, "tiny-esnli").invoke(
        {
            "input": dict(PAIR),
            "questions": {
                "which": Choice(instructions="Which?", choices=dict.fromkeys(labels)),
                "neutral": Predicate(instructions="Is it neutral?"),
                "how far": Score(instructions="How far?", levels=labels),
            },
        }
    )
    assert list(found.choices["which"].probabilities) == labels
    assert found.predicates["neutral"].probability == found.choices["which"].probabilities["neutral"]
    assert found.scores["how far"].legend == dict(enumerate(labels))
    assert (found.refusals, found.request_id is not None) == ({}, True)
    assert found.usage.input_tokens

    choices = dict.fromkeys(QUESTION["choices"])
    asked: Any = {
        "input": [HumanMessage(QUESTION["question"])],
        "questions": {"q": Choice(instructions="?", choices=choices)},
    }
    answered = asyncio.run(langchain(predict_system, "tiny-cqa").ainvoke(asked))
    assert answered.choices["q"].choice in choices
    with pytest.raises(openai.UnprocessableEntityError, match="ask a choice"):
        langchain(predict_system, "tiny-cqa").invoke({**asked, "questions": {"q": Predicate(instructions="Is it?")}})


URI = f"data:image/png;base64,{base64.b64encode(encode(scene(), 'PNG')).decode()}"


def test_the_clients_ask_about_an_image(tmp_path_factory: pytest.TempPathFactory) -> None:
    from langchain_core.messages import HumanMessage
    from langchain_openai.decisions import Choice

    captions = ["a red square", "a blue circle", "a dog"]
    with running_score(tmp_path_factory.mktemp("score")) as system:
        url = f"{system.gateway.url}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            asked: Any = {
                "model": SCORE_MODEL,
                "questions": [
                    {"type": "choice", "instructions": "What?", "choices": [{"value": one} for one in captions]}
                ],
            }
            image: Any = {"type": "input_image", "image_url": URI, "detail": "auto"}
            (answer,) = client.decisions.create(input=[{"role": "user", "content": [image]}], **asked).answers
            assert answer.type == "choice"
            with pytest.raises(openai.UnprocessableEntityError, match="reads an image"):
                client.decisions.create(input="a dog", **asked)
        message = HumanMessage([{"type": "image_url", "image_url": {"url": URI}}])
        questions = {"what": Choice(instructions="What?", choices=dict.fromkeys(captions))}
        found = langchain(system, SCORE_MODEL).invoke({"input": message, "questions": questions})
    assert found.choices["what"].choice == answer.choice
    assert list(found.choices["what"].probabilities.values()) == [one.probability for one in answer.probabilities]


def test_the_clients_ask_a_language_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_openai.decisions import Choice, Predicate, Score

    with running_system(tmp_path_factory.mktemp("generate")) as system:
        with openai.OpenAI(base_url=f"{system.gateway.url}/v1", api_key="none", max_retries=0) as client:
            decision = client.decisions.create(
                model=LANGUAGE_MODEL,
                input=[
                    {"role": "system", "content": "Be strict."},
                    {"role": "user", "content": "It has failed again."},
                ],
                questions=[{"type": "predicate", "instructions": "Is it urgent?"}],
            )
            (answer,) = decision.answers
            assert answer.type == "predicate"
            assert 0 < answer.probability < 1
        state: Any = {
            "input": [HumanMessage("It has failed again."), AIMessage("I am sorry.")],
            "questions": {
                "urgent": Predicate(instructions="Is it urgent?"),
                "team": Choice(instructions="Who?", choices={"billing": "Payments.", "technical": None, True: None}),
                "mood": Score(instructions="How is the mood?", levels=["calm", "angry"]),
            },
        }
        found = asyncio.run(langchain(system, LANGUAGE_MODEL).ainvoke(state))
    assert set(found.choices["team"].probabilities) == {"billing", "technical", True}
    assert sum(found.choices["team"].probabilities.values()) == pytest.approx(1)
    assert 0 < found.scores["mood"].score < 1
    assert 0 < found.predicates["urgent"].probability < 1


def test_the_guide_s_client_asks_about_documents(tmp_path: Path) -> None:
    [program] = re.findall(r'^```python title="documents.py"\n(.*?)^```', GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    with running_system(tmp_path) as system:
        program = program.replace("http://127.0.0.1:8080", system.gateway.url).replace("vicuna-7b-v1.5", LANGUAGE_MODEL)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"(yes|no|not told) 0\.\d+\n", done.stdout), done.stdout


def test_the_guide_s_client_is_told_that_the_teacher_has_decided(tmp_path: Path) -> None:
    (program,) = re.findall(r'^```python title="cascade.py"\n(.*?)^```', GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    store_url, task = (tmp_path / "store").as_uri(), Task("team", ("input",), "\n", labels=("billing", "bug"))
    for name, metrics in (("team", {"threshold": None}), ("vicuna-7b-v1.5", {})):
        info = CheckpointInfo(kind="t5-student", metrics=metrics)
        Store.open(store_url).publish(name, save_task(tmp_path / name, task), info)
    with running_predict(tmp_path, FOVEA_STORE_URL=store_url, FOVEA_PREDICT_MODELS="team,vicuna-7b-v1.5") as system:
        program = program.replace("http://127.0.0.1:8080", system.gateway.url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"(billing|bug) by vicuna-7b-v1\.5@\w+\n", done.stdout)
