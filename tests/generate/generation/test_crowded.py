"""A crowded service: long answers of one client leave room for the short ones of another, and all come whole."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.generate.engine import GenerateEngine
from services.generate.generation.input_processor import InputProcessor
from tests.contract.served_system import wait_until
from tests.generate.served_tiny import served_tiny

HOG, HONEST = {"X-Fovea-Client": "key:hog"}, {"X-Fovea-Client": "key:honest"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served_tiny(tmp_path_factory.mktemp("crowded"), max_cached_tokens=1024, max_running=8) as client:
        yield client


def completed(client: TestClient, headers: dict[str, str], prompt: str, max_tokens: int) -> Any:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.5, "seed": 1, "ignore_eos": True}
    response = client.post("/v1/completions", json=body, headers={**headers, "x-request-timeout": "300"})
    assert response.status_code == 200, response.text
    return response.json()


def gauge(client: TestClient, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"fovea_{name} "))


@pytest.mark.slow
def test_short_answers_come_long_before_the_long_ones_that_had_all_places(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of the long answers fill the cache with what they have at first."""
    num_long, num_tokens = 6, 300
    before = gauge(client, "preemptions_total")
    with ThreadPoolExecutor(num_long + 5) as threads, permitted_steps(monkeypatch) as permits:
        long = [
            threads.submit(completed, client, HOG, f"the harbour {number}", num_tokens) for number in range(num_long)
        ]
        wait_until(lambda: waiting_or_running(client) == num_long)
        while gauge(client, "running_items") < 3:
            assert not any(one.done() for one in long)
            permits.release()
            time.sleep(0.05)  # metrics tell nobody that they changed
        short = [threads.submit(completed, client, HONEST, f"the lighthouse {number}", 4) for number in range(5)]
        wait_until(lambda: waiting_or_running(client) == num_long + 5)
        permits.release(num_tokens + num_tokens // 2)  # the first three may have to end before there is room
        for one in short:
            one.result(timeout=60)
        assert sum(one.done() for one in long) <= num_long // 2
        permits.release(100 * num_tokens)
        answers = [one.result() for one in long]
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [num_tokens] * num_long
    assert gauge(client, "preemptions_total") > before


@contextmanager
def permitted_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Semaphore]:
    """Make the engine take one permit for each step, and as many steps as it wants after the block."""
    permits, step = Semaphore(0), GenerateEngine.step

    def permitted_step(engine: GenerateEngine) -> Any:
        permits.acquire()
        return step(engine)

    with monkeypatch.context() as patch:
        patch.setattr(GenerateEngine, "step", permitted_step)
        try:
            yield permits
        finally:
            permits.release(1_000_000)


def waiting_or_running(client: TestClient) -> float:
    return gauge(client, "queue_depth") + gauge(client, "running_items")


@pytest.mark.slow
def test_answers_that_outgrow_the_cache_together_are_whole(client: TestClient) -> None:
    before = gauge(client, "preemptions_total")
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda number: completed(client, HOG, f"the keeper {number}", 400), range(3)))
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [400] * 3
    assert gauge(client, "preemptions_total") > before, "three times 400 tokens have no room together"


ROUTES: list[tuple[str, Any]] = [
    ("/generate", {"query": "who?", "documents": ["Ada."]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "who?"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "who?"}], "stream": True}),
    ("/v1/completions", {"prompt": "who?"}),
    ("/v1/rerank", {"query": "who?", "documents": ["Ada."]}),
]


@pytest.fixture
def fresh_client(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a service that has not measured its speed yet."""
    with served_tiny(tmp_path, max_cached_tokens=1024, max_running=8, min_concurrency=64, max_wait_s=2) as client:
        yield client


@pytest.mark.slow
def test_who_would_wait_too_long_is_refused_before_anything_is_tokenised(fresh_client: TestClient) -> None:
    client, num_running, num_asked, num_tokens = fresh_client, 8, 48, 100
    step = GenerateEngine.step

    def slow_step(engine: GenerateEngine) -> Any:
        time.sleep(0.02)
        return step(engine)

    def prepared(*arguments: Any) -> None:
        raise AssertionError("the refused request was prepared")

    with ThreadPoolExecutor(num_asked) as threads, pytest.MonkeyPatch.context() as slow:
        slow.setattr(GenerateEngine, "step", slow_step)
        asked = [
            threads.submit(completed, client, HOG, f"the harbour {number}", num_tokens) for number in range(num_asked)
        ]
        while sum(one.done() for one in asked) < num_running:  # from whom the service takes its speed
            time.sleep(0.01)
        for path, body in ROUTES:
            with pytest.MonkeyPatch.context() as patch:
                for name in ("prepare_question", "prepare_chat", "prepare_completion", "prepare_ranking"):
                    patch.setattr(InputProcessor, name, prepared)
                # a deadline that is far away also where a slow machine answers
                response = client.post(path, json=body, headers={**HOG, "X-Request-Timeout": "300"})
            assert response.status_code == 503, response.text
            assert response.json()["error"]["code"] == "queue_full" and int(response.headers["retry-after"]) >= 1
        completed(client, HONEST, "the lighthouse", 2)
        slow.undo()
        assert [one.result()["usage"]["completion_tokens"] for one in asked] == [num_tokens] * num_asked
