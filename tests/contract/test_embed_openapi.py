"""Requests that embed's OpenAPI document allows, and many that it does not, are answered as the document says."""

import base64
import json
from typing import Any

import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.contract.curl import curl
from tests.contract.documented_answers import operations, statuses_of
from tests.contract.processes import Process
from tests.core.image_files import every_kind
from tests.embed.tiny import wait_until_ready

COLLECTION, IMAGE_ID = "documented", "a.png"

# Files that decode, files cut short, and anything.
IMAGES = st.sampled_from(sorted(every_kind().values()))
schemathesis.openapi.media_type(
    "image/*", st.one_of(IMAGES, st.builds(lambda image, end: image[:end], IMAGES, st.integers(0, 100)), st.binary())
)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_server_error_and_nothing_that_the_document_omits(embed_server: Process, mode: GenerationMode) -> None:
    put_collection(embed_server)
    statuses = {
        operation.label: statuses_of(operation.as_strategy(generation_mode=mode).map(in_the_collection))
        for operation in operations(embed_server.url, mode)
    }
    # what was sent reached the model, and what does not fit was refused
    assert statuses["POST /embed"] & {400, 415, 422}
    assert statuses["POST /v1/embeddings"] & {400, 413, 422}
    assert statuses["POST /collections/{name}/images"] & {400, 415, 422}
    assert statuses["POST /collections/{name}/search"] & {400, 415, 422}
    if mode == GenerationMode.POSITIVE:
        assert 200 in statuses["POST /embed"]
        assert 201 in statuses["POST /collections/{name}/images"]
        assert 200 in statuses["POST /collections/{name}/search"]
        assert statuses["PUT /collections/{name}"] >= {200, 201}
        assert statuses["GET /collections/{name}/images/{id}"] == {200, 404}
        # 409 for what is to fill a collection that is no copy
        assert {204, 404} <= statuses["DELETE /collections/{name}/images/{id}"] <= {204, 404, 409}


def put_collection(server: Process) -> None:
    """One that holds an image."""
    url = f"{server.url}/collections/{COLLECTION}"
    wait_until_ready(lambda: curl("-X", "PUT", url).status in (200, 201))
    image = {"id": IMAGE_ID, "image": base64.b64encode(every_kind()["png"]).decode()}
    assert curl(f"{url}/images", "--json", json.dumps({"images": [image]})).status == 201


def in_the_collection(case: Any) -> Any:
    """Direct cases about a collection's images to one that exists, and every other one to an image in it."""
    if case.path.startswith("/collections/{name}/"):
        case.path_parameters["name"] = COLLECTION
    if "id" in case.path_parameters and len(case.path_parameters["id"]) % 2:
        case.path_parameters["id"] = IMAGE_ID
    return case
