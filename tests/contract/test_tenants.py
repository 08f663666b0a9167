"""Two tenants behind one gateway: neither sees, changes or learns anything of the other's data."""

import base64
import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from gateway.access import digest
from tests.contract.embed_processes import tiny_environment
from tests.contract.generate_processes import running_system as running_generate
from tests.contract.predict_processes import running_predict
from tests.contract.score_processes import running_score
from tests.contract.served_system import System, running_behind_gateway

NAME = "shared-name"
# Names of keys, with tenant and scopes. A key reads as its name is spelt.
KEYS = {
    "north": ("north", ["embed"]),
    "north-reader": ("north", ["embed:read"]),
    "north-writer": ("north", ["embed:write"]),
    "north-admin": ("north", ["embed:admin"]),
    "south": ("south", ["embed"]),
    "nobody-special": (None, ["embed"]),
    "score-only": ("north", ["score"]),
    "operator": ("south", ["admin"]),
}
SPELLINGS = ("X-Fovea-Tenant", "x-fovea-tenant", "X-FOVEA-TENANT", "X_Fovea_Tenant", "x_fovea_tenant")


def picture(number: int) -> bytes:
    file = BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture(scope="module")
def system(folder: Path) -> Iterator[System]:
    keys = [
        {"name": name, "sha256": digest(name), "scopes": scopes, **({"tenant": tenant} if tenant else {})}
        for name, (tenant, scopes) in KEYS.items()
    ]
    (folder / "keys.json").write_text(json.dumps({"keys": keys}))
    settings = {"FOVEA_GATEWAY_KEYS_FILE": str(folder / "keys.json"), "FOVEA_AUDIT_LOG": str(folder / "audit.jsonl")}
    with running_behind_gateway("embed", folder, tiny_environment(folder, **settings)) as system:
        yield system


def ask(system: System, key: str, method: str, path: str, **options: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}", **options.pop("headers", {})}
    with httpx2.Client(base_url=system.gateway.url, headers=headers, timeout=60) as client:
        return client.request(method, path, **options)


def add(system: System, key: str, image_id: str, data: bytes, name: str = NAME) -> httpx2.Response:
    body = {"images": [{"id": image_id, "image": base64.b64encode(data).decode()}]}
    return ask(system, key, "POST", f"/collections/{name}/images?wait=true", json=body)


@pytest.fixture(scope="module")
def norths(system: System) -> System:
    """With a collection of the north's, which holds one picture."""
    assert ask(system, "north", "PUT", f"/collections/{NAME}").status_code == 201
    assert add(system, "north", "secret", picture(0)).status_code == 201
    return system


def names(system: System, key: str) -> list[str]:
    return [one["name"] for one in ask(system, key, "GET", "/collections").json()["data"]]


@pytest.mark.parametrize("stranger", ["south", "nobody-special", "operator"])
def test_another_tenants_collection_is_not_there_for_any_request(norths: System, stranger: str) -> None:
    image = {"content": picture(1), "headers": {"content-type": "image/png"}}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"/collections/{NAME}", {}),
        ("GET", f"/v1/collections/{NAME}/images", {}),
        ("GET", f"/collections/{NAME}/images/secret", {}),
        ("POST", f"/collections/{NAME}/search", {"json": {"text": "a thing"}}),
        ("POST", f"/collections/{NAME}/search", {"json": {"id": "secret"}}),
        ("POST", f"/collections/{NAME}/images", image),
        ("PATCH", f"/collections/{NAME}/images/secret", {"json": {"metadata": {}}}),
        ("DELETE", f"/collections/{NAME}/images/secret", {}),
        ("DELETE", f"/collections/{NAME}", {}),
        ("POST", "/embed", {"json": {"images": [{"id": f"{NAME}/secret"}]}}),
    ]
    never = f"never-{NAME}"
    for method, path, options in requests:
        refused = ask(norths, stranger, method, path, **options)
        assert refused.status_code == 404, f"{method} {path}: {refused.text}"
        if "json" in options and "images" in options["json"]:
            options = {"json": {"images": [{"id": f"{never}/secret"}]}}
        absent = ask(norths, stranger, method, path.replace(NAME, never), **options)
        # what exists for others and what exists for nobody are told in the same words
        assert absent.text.replace(never, NAME) == refused.text
    assert names(norths, stranger) == []
    assert names(norths, "north") == [NAME]


def test_tenants_may_use_one_name_and_keep_their_own(norths: System) -> None:
    assert ask(norths, "south", "PUT", f"/collections/{NAME}").status_code == 201
    assert add(norths, "south", "secret", picture(7)).status_code == 201
    for key, number in (("north", 0), ("south", 7)):
        assert ask(norths, key, "GET", f"/collections/{NAME}/images/secret").content == picture(number)
        stored = {"images": [{"id": f"{NAME}/secret"}, base64.b64encode(picture(number)).decode()]}
        one, other = (row["embedding"] for row in ask(norths, key, "POST", "/embed", json=stored).json()["data"])
        assert one == other
    assert ask(norths, "south", "DELETE", f"/collections/{NAME}").status_code == 204
    assert ask(norths, "north", "GET", f"/collections/{NAME}/images/secret").content == picture(0)


def test_keys_of_one_tenant_share_its_collections(norths: System) -> None:
    assert ask(norths, "north-reader", "GET", f"/collections/{NAME}/images/secret").content == picture(0)
    assert add(norths, "north-writer", "another", picture(2)).status_code == 201
    found = ask(norths, "north-reader", "POST", f"/collections/{NAME}/search", json={"text": "a thing"}).json()
    assert {hit["id"] for hit in found["results"]} == {"secret", "another"}
    assert ask(norths, "north-admin", "DELETE", f"/collections/{NAME}/images/another").status_code == 204


def test_a_key_that_reads_changes_nothing(norths: System) -> None:
    refused = [
        add(norths, "north-reader", "more", picture(3)),
        ask(norths, "north-reader", "PUT", "/collections/new"),
        ask(norths, "north-reader", "DELETE", f"/collections/{NAME}"),
        ask(norths, "north-reader", "DELETE", f"/v1/collections/{NAME}/images/secret"),
        ask(norths, "north-reader", "PATCH", f"/collections/{NAME}/images/secret", json={"metadata": {}}),
        ask(norths, "north-reader", "POST", f"/collections/{NAME}/search/images"),
        ask(norths, "score-only", "GET", "/collections"),
    ]
    assert [response.status_code for response in refused] == [403] * 7
    assert "'embed:write'" in refused[0].json()["error"]["message"]
    assert ask(norths, "north-reader", "POST", "/embed", json={"texts": ["a"]}).status_code == 200
    assert ask(norths, "north-reader", "TRACE", f"/collections/{NAME}").status_code == 405
    assert names(norths, "north") == [NAME]


@pytest.mark.parametrize("tricks", [{}, {"Connection": "x-fovea-tenant"}, {"Connection": "keep-alive, X-Fovea-Tenant"}])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_client_can_not_name_its_tenant(norths: System, spelling: str, tricks: dict[str, str], times: int) -> None:
    """Nor take the name away that the gateway gives, by calling its header one of the connection."""
    for key, expected in (("south", []), ("north", [NAME])):
        with closing(http.client.HTTPConnection("127.0.0.1", norths.gateway.port, timeout=60)) as connection:
            connection.putrequest("GET", "/collections")
            connection.putheader("Authorization", f"Bearer {key}")
            for name, value in [*tricks.items(), *[(spelling, "north" if key == "south" else "south")] * times]:
                connection.putheader(name, value)
            connection.endheaders()
            answer = json.loads(connection.getresponse().read())
        assert [one["name"] for one in answer["data"]] == expected


def test_how_long_each_stage_took_is_told_to_administrators_alone(norths: System) -> None:
    """A missing stage would reveal that another client has asked the same before."""
    for key in ("north", "north-writer", "north-reader", "north-admin", "operator"):
        response = ask(norths, key, "POST", "/embed", json={"texts": ["the same text"]})
        assert response.status_code == 200
        is_told = "upstream;dur=" in response.headers.get("server-timing", "")
        assert is_told == (key in ("north-admin", "operator")), key
        assert is_told or "server-timing" not in response.headers


def test_each_change_is_recorded_with_who_made_it(norths: System, folder: Path) -> None:
    assert ask(norths, "south", "PUT", "/collections/audited", headers={"X-Request-ID": "the-put"}).status_code == 201
    assert add(norths, "south", "a", picture(4), "audited").status_code == 201
    assert add(norths, "south", "a", picture(5), "audited").status_code == 409
    patched = ask(norths, "south", "PATCH", "/collections/audited/images/a", json={"metadata": {"n": 1}})
    assert (patched.status_code, patched.json()["metadata"]) == (200, {"n": 1})
    assert ask(norths, "south", "DELETE", "/collections/audited/images/a").status_code == 204
    assert ask(norths, "south", "DELETE", "/collections/audited").status_code == 204
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    own = [line for line in lines if line["collection"] == "audited"]
    assert [(line["action"], line["outcome"]) for line in own] == [
        (action, outcome)
        for action, ended in (
            ("collection.create", "done"),
            ("images.add", "done"),
            ("images.add", "failed"),
            ("images.patch", "done"),
            ("images.delete", "done"),
            ("collection.delete", "done"),
        )
        for outcome in ("begun", ended)
    ]
    assert {(line["tenant"], line["key"]) for line in own} == {("south", "south")}
    assert own[0]["request_id"] == "the-put"
    assert own[3]["ids"] == ["a"] and own[3]["added"] == 1
    assert own[5]["error"] == "image_exists"
    logged = [json.loads(line) for line in norths.service.log.read_text().splitlines()]
    assert [line["action"] for line in logged if line.get("collection") == "audited" and line["message"] == "change"]


def test_on_disk_the_collections_of_tenants_are_apart_and_older_ones_stay_where_they_were(
    norths: System, folder: Path
) -> None:
    assert ask(norths, "nobody-special", "PUT", "/collections/older").status_code == 201
    assert (folder / "collections" / "older" / "images.sqlite").is_file()
    assert (folder / "collections" / ".tenants" / "north" / NAME / "images.sqlite").is_file()


Running = Callable[..., AbstractContextManager[System]]


def running_embed(folder: Path, **settings: str) -> AbstractContextManager[System]:
    return running_behind_gateway("embed", folder, tiny_environment(folder, **settings))


@pytest.mark.parametrize(
    ("running", "path", "body"),
    [
        (running_predict, "/predict", {"model": "tiny-reviews", "inputs": [{"text": "good"}]}),
        (running_generate, "/v1/completions", {"prompt": "a", "max_tokens": 1}),
        (running_embed, "/embed", {"texts": ["a"]}),
        (running_score, "/hard-negatives", {"caption": "A dog chases a cat."}),
    ],
)
def test_a_forged_tenant_is_refused_by_each_service_and_the_gateways_own_is_answered(
    running: Running, path: str, body: dict[str, Any], tmp_path: Path
) -> None:
    key = {"name": "north", "sha256": digest("north"), "scopes": ["admin"], "tenant": "north"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [key]}))
    (tmp_path / "signing.secret").write_text("0123456789abcdef" * 4)
    settings = {
        "FOVEA_GATEWAY_KEYS_FILE": str(tmp_path / "keys.json"),
        "FOVEA_SIGNING_SECRET_FILE": str(tmp_path / "signing.secret"),
    }
    forged = {"X-Fovea-Client": "key:1", "X-Fovea-Tenant": "north"}
    with running(tmp_path, **settings) as system:
        assert ask(system, "north", "POST", path, json=body).status_code == 200
        assert ask(system, "north", "GET", "/v1/models").json()["data"] != []
        signature = f"t={int(time.time())},v1={'0' * 64}"
        for headers in ({}, forged, {**forged, "X-Fovea-Signature": signature}):
            refused = httpx2.post(f"{system.service.url}{path}", json=body, headers=headers, timeout=60)
            assert refused.status_code == 401, refused.text
            assert refused.json()["error"]["code"].startswith("signature_")
            assert "X-Fovea-Signature" in refused.text
            assert "FOVEA_SIGNING_SECRET_FILE" in refused.text
        assert httpx2.get(f"{system.service.url}/readyz", timeout=60).status_code == 200
        assert system.metric('fovea_rejected_total{reason="unauthenticated"}') == 3
