"""Requests that score's OpenAPI document allows, and many that it does not, are answered as the document says."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.contract.documented_answers import operations, statuses_of
from tests.contract.score_processes import running_score
from tests.contract.served_system import System
from tests.core.image_files import every_kind
from tests.score.served_tiny import MODEL

REFUSALS = {400, 404, 413, 415, 422}
PHOTO = base64.b64encode(every_kind()["png"]).decode()
CAPTIONS = ["a red square", "a blue circle"]
ANSWERABLE: list[dict[str, Any]] = [
    {"image": PHOTO, "captions": CAPTIONS},
    {"image": PHOTO, "captions": CAPTIONS, "explain": True},
    {"data_1": {"image": PHOTO}, "data_2": CAPTIONS},
]

# What no other service has as well.
OWN = ("/score", "/v1/decisions", "/hard-negatives", "/v1/models")
SEEN = [{"role": "user", "content": [{"type": "input_image", "image_url": PHOTO}]}]
CHOICE = {"type": "choice", "instructions": "What is it?", "choices": [{"value": one} for one in CAPTIONS]}

# Files that decode, files cut short, and anything.
IMAGES = st.sampled_from(sorted(every_kind().values()))
schemathesis.openapi.media_type(
    "image/*", st.one_of(IMAGES, st.builds(lambda image, end: image[:end], IMAGES, st.integers(0, 100)), st.binary())
)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_score(tmp_path_factory.mktemp("score")) as system:
        yield system


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_server_error_and_nothing_that_the_document_omits(system: System, mode: GenerationMode) -> None:
    statuses = {
        operation.label: statuses_of(operation.as_strategy(generation_mode=mode).map(sometimes_answerable))
        for operation in operations(system.service.url, mode)
        if operation.path.startswith(OWN)
    }
    assert statuses["POST /score"] & REFUSALS
    assert statuses["POST /hard-negatives"] & REFUSALS
    assert 200 in statuses["POST /score"]
    if mode == GenerationMode.POSITIVE:
        assert 200 in statuses["POST /v1/decisions"] and statuses["POST /v1/decisions"] & REFUSALS
        assert 200 in statuses["POST /hard-negatives"]


def test_answers_are_documented_as_they_are(system: System) -> None:
    url = system.service.url
    schemas = requests.get(f"{url}/openapi.json", timeout=30).json()["components"]["schemas"]
    answer = requests.post(f"{url}/score", json=ANSWERABLE[1], timeout=30).json()
    # `vqa` and its model are of a second opinion, which nobody asked for, `match` of models trained with a sigmoid
    assert set(schemas["ScoreAnswer"]["properties"]) - {"vqa_model"} == set(answer)
    assert set(schemas["CaptionScore"]["properties"]) - {"match", "vqa"} == set(answer["scores"][0])
    assert set(schemas["Explanation"]["properties"]) == set(answer["explain"][0])
    vllms = requests.post(f"{url}/score", json=ANSWERABLE[2], timeout=30).json()
    assert set(schemas["VllmScoreAnswer"]["properties"]) == set(vllms)
    (model,) = requests.get(f"{url}/v1/models", timeout=30).json()["data"]
    assert set(schemas["Model"]["properties"]) == set(model)


def sometimes_answerable(case: Any) -> Any:
    """Every other time what can be scored, the other options as they were drawn."""
    if case.path == "/v1/decisions" and isinstance(case.body, dict) and (size := len(str(case.body))) % 2:
        case.body |= {"model": MODEL, "input": SEEN} | ({"questions": [CHOICE]} if size // 2 % 2 else {})
    if case.path == "/score" and isinstance(case.body, dict) and (size := len(str(case.body))) % 2:
        if case.media_type == "application/json":
            case.body = {**ANSWERABLE[size // 2 % len(ANSWERABLE)], "explain": case.body.get("explain", False)}
            case.query = {}
        elif case.media_type == "multipart/form-data" and size % 4 == 1:
            case.body = {"file": every_kind()["png"], "captions": CAPTIONS}
    return case
