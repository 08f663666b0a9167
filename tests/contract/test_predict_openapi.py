"""Requests that predict's OpenAPI document allows, and many that it does not, are answered as the document says."""

from typing import Any

import pytest
import requests
from schemathesis import GenerationMode

from tests.contract.documented_answers import operations, statuses_of
from tests.contract.served_system import System
from tests.predict.served_tiny import PAIR, QUESTION

REFUSALS = {400, 404, 413, 422}
DECIDABLE = {"model": "tiny-reviews", "input": "what a film"}
GOOD = {"type": "predicate", "instructions": "good"}
ANSWERABLE = [{"task": "esnli", "inputs": [PAIR]}, {"task": "cqa", "inputs": [QUESTION, QUESTION]}]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_server_error_and_nothing_that_the_document_omits(predict_system: System, mode: GenerationMode) -> None:
    statuses = {
        operation.label: statuses_of(operation.as_strategy(generation_mode=mode).map(sometimes_answerable))
        for operation in operations(predict_system.service.url, mode)
    }
    assert statuses["POST /predict"] & REFUSALS
    if mode == GenerationMode.POSITIVE:
        assert 200 in statuses["POST /predict"]
        assert 200 in statuses["POST /v1/decisions"] and statuses["POST /v1/decisions"] & REFUSALS
        assert statuses["GET /tasks"] == {200}


def test_tasks_and_predictions_are_documented_as_they_are(predict_system: System) -> None:
    document = requests.get(f"{predict_system.service.url}/openapi.json", timeout=30).json()
    schemas = document["components"]["schemas"]
    [task, *_] = requests.get(f"{predict_system.service.url}/tasks", timeout=30).json()["data"]
    assert set(schemas["TaskObject"]["properties"]) == set(task)
    answer = requests.post(f"{predict_system.service.url}/predict", json=ANSWERABLE[0], timeout=30).json()
    assert set(schemas["PredictAnswer"]["properties"]) == set(answer)
    assert set(schemas["Prediction"]["properties"]) == set(answer["predictions"][0])


def sometimes_answerable(case: Any) -> Any:
    """Every other time a task or model that exists with inputs of its fields, the other options as they were drawn."""
    if case.path == "/predict" and isinstance(case.body, dict) and (size := len(str(case.body))) % 2:
        case.body.update(ANSWERABLE[size // 2 % 2])
        case.body.pop("model", None)
    if case.path == "/v1/decisions" and isinstance(case.body, dict) and (size := len(str(case.body))) % 2:
        case.body.update(DECIDABLE)
        case.body.update({"questions": [GOOD]} if size // 2 % 2 else {})
    return case
