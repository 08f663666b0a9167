"""The routes of Fovea's generate service over vLLM, against the same service with its own engine."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.generate.calibrate.bench import Bench, VllmBench
from services.generate.data.questions import Example, at_positions
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import write_profile
from services.generate.vllm.client import VllmAddress
from services.generate.vllm.engine import VllmEngine
from starters.generate.questions import GENERATED
from tests.embed.tiny import wait_until_ready
from tests.starters.generate.test_lost_middle import STARTER
from tests.vllm_plugin.calibrated_alike import settings_chosen
from tests.vllm_plugin.engine import free_port, served
from tests.vllm_plugin.own_answers import save
from tests.vllm_plugin.services_over import (
    CPU,
    PROFILE,
    TINY,
    Served,
    answered,
    assert_alike,
    both,
    chat,
    generate_service,
    own_and_vllm,
    publish,
    publish_tiny,
    question,
    streamed,
    wait_for,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_POSITIONED = 8  # questions at each gold position
QUESTIONS = [question(seed) for seed in range(100)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = publish_tiny(folder)
    with (
        served(checkpoint, folder / "vllm.log", "--max-model-len", "1024") as vllm,
        own_and_vllm(folder, TINY, vllm.url) as (own, over_vllm),
    ):
        yield Served(vllm, own, over_vllm, folder)


def test_calibrated_answers_and_reports_are_those_of_the_own_engine(tiny: Served) -> None:
    for found, expected in both(tiny, "/generate", QUESTIONS):
        assert_alike(found, expected)


def test_calibration_changes_answers_over_vllm(tiny: Served) -> None:
    plain = [question(seed, calibration={"enabled": False}) for seed in range(30)]
    changed = 0
    for (found, expected), body in zip(both(tiny, "/generate", plain), QUESTIONS, strict=False):
        assert_alike(found, expected)
        changed += found["answer"] != answered(tiny.over_vllm, "/generate", body)["answer"]
    assert changed > 10


@pytest.mark.parametrize("reorder", ["attention", "calibrated", "query_likelihood", "prompt"])
def test_documents_are_reordered_alike(tiny: Served, reorder: str) -> None:
    for found, expected in both(tiny, "/generate", [question(seed, reorder=reorder) for seed in range(4)]):
        for answer in (found, expected):
            del answer["usage"]["calibration_passes"]  # fewer where an engine remembers an estimate of an earlier test
        assert_alike(found, expected)


def test_chat_over_documents_has_the_same_texts_and_log_probabilities(tiny: Served) -> None:
    bodies = [chat(seed, logprobs=True, top_logprobs=2) for seed in range(8)]
    bodies += [chat(9, n=3), chat(10, documents=None, calibration=None, temperature=0), chat(11, stop=["e", " "])]
    bodies += [chat(12, logit_bias={"70": 30}), chat(13, presence_penalty=1.5, frequency_penalty=0.5)]
    for found, expected in both(tiny, "/v1/chat/completions", bodies):
        assert_alike(found, expected)


def test_streams_of_chat_have_the_same_chunks(tiny: Served) -> None:
    for seed in range(4):
        body = chat(20 + seed, stream_options={"include_usage": True})
        assert_alike(streamed(tiny.over_vllm, body), streamed(tiny.own, body))


def test_completions_echo_and_score_their_prompts_alike(tiny: Served) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": "the keeper of the", "max_tokens": 8, "temperature": 0, "echo": True, "logprobs": 2},
        {"prompt": ["Ada", "the harbour was"], "max_tokens": 0, "echo": True, "logprobs": 1},
        {"prompt": [[70, 71, 72], [80]], "max_tokens": 5, "temperature": 0, "ignore_eos": True, "n": 2},
    ]
    for found, expected in both(tiny, "/v1/completions", bodies):
        assert_alike(found, expected)


@pytest.mark.parametrize(
    "method", ["calibrated", "attention", "query_likelihood", "query_generation", "relevance_prompt"]
)
def test_rankings_have_the_scores_of_the_own_engine(tiny: Served, method: str) -> None:
    for seed in range(6):
        asked = question(seed)
        texts = [one if isinstance(one, str) else one["text"] for one in asked["documents"]]
        body = {"query": asked["query"], "texts": [*texts, texts[0]], "method": method, "raw_scores": True}
        by_index = [
            sorted(client.post("/v1/rerank", json=body).json(), key=lambda one: one["index"])
            for client in (tiny.over_vllm, tiny.own)
        ]
        assert_alike(*by_index)
        first, *_, last = by_index[0]
        assert method in ("calibrated", "attention") or first["score"] == last["score"]


def test_each_head_and_the_whole_tail_can_be_calibrated(tiny: Served, tmp_path: Path) -> None:
    changes = {"rel_scope": "per_head", "row_scope": "tail", "span_rule": "text"}
    checkpoint = save(tmp_path, "llama")
    write_profile(PROFILE.model_copy(update=changes), checkpoint)
    publish(tmp_path, checkpoint, TINY)
    with own_and_vllm(tmp_path, TINY, tiny.vllm.url) as (own, over_vllm):
        case = Served(tiny.vllm, own, over_vllm, tmp_path)
        bodies = [question(seed, calibration=None) for seed in range(10)]
        for found, expected in both(case, "/generate", bodies):
            assert_alike(found, expected)
        # another profile of the same weights is a version of its own, which is served at once
        write_profile(PROFILE.model_copy(update={"enabled": False}), checkpoint)
        publish(tmp_path, checkpoint, TINY)
        before = answered(over_vllm, "/generate", bodies[0])["model"]
        wait_until_ready(lambda: answered(over_vllm, "/generate", bodies[0])["model"] != before)
        assert answered(over_vllm, "/generate", bodies[0])["documents"][0]["relevance"] is None


def test_bad_requests_get_the_same_errors(tiny: Served) -> None:
    for body in (question(1, max_tokens=4097), question(2, calibration={"layers": [9]}), question(3, top_k=1)):
        found, expected = (client.post("/generate", json=body) for client in (tiny.over_vllm, tiny.own))
        assert (found.status_code, found.json()) == (expected.status_code, expected.json())
        assert found.status_code >= 400
    too_long = tiny.over_vllm.post("/generate", json=question(0, documents=["the keeper " * 600]))
    assert too_long.status_code == 413
    assert "the limit is 1024" in too_long.json()["error"]["message"]


def test_an_equal_seed_draws_an_equal_answer(tiny: Served) -> None:
    answers = [
        answered(tiny.over_vllm, "/generate", question(3) | {"temperature": 1.0, "seed": seed})["answer"]
        for seed in (5, 5, -1, -1, 6)
    ]
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert len({answers[0], answers[2], answers[4]}) > 1


def test_a_server_with_other_weights_is_refused_with_a_sentence(tiny: Served, tmp_path: Path) -> None:
    publish(tmp_path, save(tmp_path, "mistral"), TINY)
    with generate_service(tmp_path, TINY, engine="vllm", vllm_url=tiny.vllm.url) as client:
        wait_for(client, f"vLLM serves other weights as {TINY}", 503)
        assert client.post("/generate", json=QUESTIONS[0]).status_code == 503
    with generate_service(tiny.folder, TINY, engine="vllm", vllm_url=tiny.vllm.url, vllm_model="other") as client:
        wait_for(client, "--served-model-name other", 503)


# The tests below end the tiny server, and come last.


def test_while_vllm_is_gone_requests_get_503_and_later_answers_again(tiny: Served) -> None:
    expected = answered(tiny.own, "/generate", QUESTIONS[0])
    client = tiny.over_vllm
    long = question(0, max_tokens=400, calibration=None)
    is_running = re.compile(r"^vllm:num_requests_running\S* [1-9]", re.MULTILINE)
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(client.post, "/generate", json=long) for _ in range(4)]
        wait_until_ready(lambda: is_running.search(tiny.vllm.get("/metrics").text) is not None)
        tiny.vllm.stop()
        assert {one.result().status_code for one in running} <= {200, 503}
    response = client.post("/generate", json=QUESTIONS[0])
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "vllm_unavailable"
    wait_for(client, "vLLM does not answer", 503)
    assert client.get("/livez").status_code == 200
    port = int(tiny.vllm.url.rpartition(":")[2])
    log = tiny.folder / "again.log"
    with served(tiny.folder / TINY, log, "--max-model-len", "1024", port=port):
        wait_for(client)
        assert_alike(answered(client, "/generate", QUESTIONS[0]) | {"usage": 0}, expected | {"usage": 0})


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The packaged starter; its service is there before vLLM is."""
    folder = tmp_path_factory.mktemp("starter")
    publish(folder, STARTER, STARTER.name)
    port = free_port()
    with ExitStack() as stack:
        over_vllm = stack.enter_context(
            generate_service(folder, STARTER.name, engine="vllm", vllm_url=f"http://127.0.0.1:{port}")
        )
        wait_for(over_vllm, "vLLM does not answer", 503)
        vllm = stack.enter_context(served(STARTER, folder / "vllm.log", "--max-model-len", "1024", port=port))
        own = stack.enter_context(generate_service(folder, STARTER.name))
        wait_for(own)
        wait_for(over_vllm)
        yield Served(vllm, own, over_vllm, folder)


def is_right(client: TestClient, example: Example, calibration: dict[str, Any]) -> bool:
    documents = [{"title": one.title, "text": one.text} for one in example.documents]
    body = {"query": example.question, "documents": documents, "max_tokens": 8, "calibration": calibration}
    questions = GENERATED
    body |= {"max_tokens": questions.max_tokens, "stop": list(questions.stop)}
    return bool(questions.is_right(answered(client, "/generate", body)["answer"], example.answers))


def test_the_table_by_gold_position_is_that_of_the_own_engine(starter: Served) -> None:
    drawn = GENERATED.examples("evaluation", 10, NUM_POSITIONED, seed=3)
    for calibration in ({"enabled": False}, {"bias": "cached"}, {"bias": "exact"}):
        tables = []
        for client in (starter.over_vllm, starter.own):
            with ThreadPoolExecutor(4) as threads:
                placed = [at_positions(drawn, (position,)) for position in (0, 4, 9)]
                ask = [list(threads.map(lambda one: is_right(client, one, calibration), some)) for some in placed]  # noqa: B023
            tables.append(ask)
        assert tables[0] == tables[1]
        assert any(map(any, tables[0]))


def test_calibrate_chooses_the_same_profile(starter: Served) -> None:
    questions = GENERATED
    engine = VllmEngine.load(STARTER, VllmAddress(starter.vllm.url, STARTER.name))
    own = Bench(LanguageModel.load(STARTER, CPU), questions)
    found, expected = settings_chosen(VllmBench(engine, questions)), settings_chosen(own)
    assert found == expected
    assert expected.enabled
