"""Several answers to one request: what they are charged in the queue, and what no queue could hold."""

from pathlib import Path
from typing import Any

import pytest

from services.core.errors import TooLarge
from services.generate.http.openai_routes import charges
from tests.generate.served_tiny import served_tiny

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "who built the harbour? " * 10}]
DOCUMENTS = [f"The harbour was built by the people of island {number}." for number in range(12)]


@pytest.mark.slow
def test_an_idle_service_takes_all_choices_of_a_prompt_however_much_it_costs(tmp_path: Path) -> None:
    with served_tiny(tmp_path, max_choices=16, max_queue_cost=300) as client:
        for documents in ([], DOCUMENTS):
            # sixteen times the prompt would be more than the queue holds, its documents' bias alone too
            body = {"messages": QUESTION, "documents": documents, "n": 16, "max_tokens": 1}
            response = client.post(CHAT, json=body)
            assert response.status_code == 200, response.text
            assert len(response.json()["choices"]) == 16


@pytest.mark.slow
def test_what_no_queue_could_hold_is_too_large_and_not_to_be_tried_again(tmp_path: Path) -> None:
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"prompt": ["a"] * 11, "n": 2}, "n: The request asks for 22 answers; the limit is 20."),
        ({"prompt": ["a"] * 21}, "prompt: The request asks for 21 answers; the limit is 20."),
        (
            {"prompt": [[5] * 150, [6] * 151]},
            "prompt: The request's prompts have 301 tokens together; the limit is 300.",
        ),
    ]
    with served_tiny(tmp_path, max_waiting=20, max_queue_cost=300) as client:
        for body, told in bodies:
            response = client.post(COMPLETIONS, json=body)
            assert (response.status_code, response.json()["error"]["message"]) == (413, told)
            assert response.headers["x-should-retry"] == "false"


def test_the_choices_of_a_prompt_are_charged_its_computation_once() -> None:
    queue = {"max_waiting": 10, "max_queue_cost": 100}
    assert charges([30, 40], 3, **queue) == [30, 1, 1, 40, 1, 1]
    assert charges([1000], 1, **queue) == [100]
    assert charges([1000], 3, **queue) == [98, 1, 1]
    assert charges([48, 48], 3, **queue) == [48, 1, 1, 48, 1, 1]
    with pytest.raises(TooLarge, match="101 tokens together; the limit is 100"):
        charges([49, 48], 3, **queue)
    with pytest.raises(TooLarge, match="12 answers; the limit is 10"):
        charges([1], 12, **queue)
