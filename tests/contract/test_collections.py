"""Collections of a real process behind a real gateway, as clients use them: added images are found, and stay."""

import asyncio
import base64
import http.client
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from tests.conftest import empty_schema
from tests.contract.curl import curl
from tests.contract.embed_processes import MODEL, tiny_environment
from tests.contract.processes import Process, start_process
from tests.core.image_files import encode
from tests.embed.tiny import wait_until_ready
from tests.kept_port import kept_port

COLOR, SHAPE = "What is the color?", "What is the shape?"
COSINE_TOLERANCE = 5e-3
# Searches and deletions while images come.
MIN_OF_EACH = 50
# One search lists them all at the end.
MAX_STORED = 900


def picture(number: int, format: str = "PNG") -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return encode(Image.fromarray(noise).resize((32, 32), Image.Resampling.NEAREST), format)


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass
class System:
    """An embed process over a folder of collections, and the gateway in front of it."""

    folder: Path
    module: str
    environment: dict[str, str]
    embed: Process
    gateway: Process

    def restart(self) -> None:
        """End the embed process and start it again, where the gateway knows it."""
        assert self.embed.stop() == 0, self.embed.log.read_text()
        self.embed = start_process(self.module, self.folder / "embed-again", self.environment)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Until there is a checkpoint, and the folder of collections is open."""
        self.embed.wait_until_ready()
        wait_until_ready(lambda: curl(f"{self.gateway.url}/collections").status == 200)


@pytest.fixture(scope="module", params=["local", "cluster"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """With the collections in a folder, or in PostgreSQL and an object store."""
    folder = tmp_path_factory.mktemp("collections")
    settings = {}
    if request.param == "cluster":
        settings = shared_collections(folder, empty_schema(request.getfixturevalue("postgres_url")))
    with running_system(folder, "services.embed", **settings) as system:
        yield system


def shared_collections(folder: Path, url: str) -> dict[str, str]:
    """Make the settings of collections in a database."""
    return {
        "FOVEA_EMBED_COLLECTIONS_URL": url,
        "FOVEA_EMBED_COLLECTIONS_STORE_URL": (folder / "objects").as_uri(),
    }


@contextmanager
def running_system(folder: Path, module: str, **settings: str) -> Iterator[System]:
    """Run embed, the program of this module, and the gateway."""
    with kept_port() as port:
        environment = tiny_environment(
            folder,
            FOVEA_EMBED_DEVICE="cpu",
            FOVEA_EMBED_NUM_THREADS="1",
            FOVEA_EMBED_PORT=str(port),
            FOVEA_GATEWAY_PORT="0",
            **settings,
        )
        embed = start_process(module, folder / "embed", environment)
        gateway = start_process("gateway", folder / "gateway", {**environment, "FOVEA_GATEWAY_EMBED_URLS": embed.url})
        gateway.wait_until_ready()
        system = System(folder, module, environment, embed, gateway)
        system.wait_until_ready()
        yield system
        for process in (system.gateway, system.embed):
            assert process.stop() == 0, process.log.read_text()


@pytest.fixture
def url(system: System, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty collection of the test's own, through the gateway."""
    url = f"{system.gateway.url}/collections/{request.node.originalname[:64].rstrip('_')}"
    assert curl("-X", "PUT", url).status == 201
    yield url
    assert curl("-X", "DELETE", url).status == 204


def add(url: str, images: dict[str, bytes], metadata: dict[str, Any] | None = None) -> None:
    """And wait until they are indexed."""
    body = [
        {"id": image_id, "image": as_base64(data), "metadata": (metadata or {}).get(image_id)}
        for image_id, data in images.items()
    ]
    answer = curl(f"{url}/images?wait=true", "--json", json.dumps({"images": body}))
    assert answer.status == 201, answer.content


def search(url: str, **query: Any) -> dict[str, Any]:
    answer = curl(f"{url}/search", "--json", json.dumps(query))
    assert answer.status == 200, answer.content
    results: dict[str, Any] = answer.json
    return results


def ids(results: dict[str, Any]) -> list[str]:
    return [hit["id"] for hit in results["results"]]


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status == status, answer.content
    error: dict[str, Any] = answer.json["error"]
    return error


PICTURES = {f"{number:02}.png": picture(number) for number in range(12)}


def test_a_collection_is_created_confirmed_described_and_deleted(system: System) -> None:
    url = f"{system.gateway.url}/v1/collections/life"
    created = curl("-X", "PUT", url, "--json", json.dumps({"model": MODEL, "conditions": [COLOR]}))
    assert created.status == 201
    assert created.json["name"] == "life"
    assert curl("-X", "PUT", url).status == 200
    assert "life" in [collection["name"] for collection in curl(url.removesuffix("/life")).json["data"]]
    add(url, PICTURES)
    description = curl(url).json
    assert (description["size"], description["model"], description["state"]) == (len(PICTURES), MODEL, "ready")
    assert description["bytes"] == sum(map(len, PICTURES.values()))
    assert {index["condition"]: index["indexed"] for index in description["conditions"]} == {None: 12, COLOR: 12}
    assert curl("-X", "DELETE", url).status == 204
    for path in ("", "/images", "/images/00.png"):
        assert "'life'" in error_of(curl(url + path), 404)["message"]


@pytest.mark.parametrize(
    ("name", "body", "status", "param"),
    [
        (".hidden", {}, 422, "name"),
        ("a%20b", {}, 422, "name"),
        ("%C3%A4", {}, 422, "name"),
        ("a%2Fb", {}, 422, "name"),
        ("x" * 65, {}, 422, "name"),
        ("other", {"model": "another"}, 404, "model"),
        ("other", {"conditions": ["ok", " "]}, 422, "conditions.1"),
        ("other", {"conditions": ["ok", "red " * 100]}, 413, "conditions.1"),
    ],
)
def test_a_collection_that_can_not_be_is_refused(
    system: System, name: str, body: dict[str, Any], status: int, param: str
) -> None:
    url = f"{system.gateway.url}/collections/{name}"
    assert error_of(curl("-X", "PUT", url, "--json", json.dumps(body)), status)["param"] == param
    assert curl(url).status == (422 if param == "name" else 404)


def test_images_are_added_in_every_form_and_listed_in_pages(url: str, tmp_path: Path) -> None:
    for name, data in PICTURES.items():
        (tmp_path / name).write_bytes(data)
    bare = curl(f"{url}/images?id=sub/00.png", "-H", "Content-Type: image/png", "--data-binary", f"@{tmp_path}/00.png")
    assert bare.status == 201
    assert bare.json == {"added": 1, "unchanged": 0, "ids": ["sub/00.png"]}
    files = [argument for n in range(1, 6) for argument in ("-F", f"file=@{tmp_path}/{n:02}.png")]
    form = curl(f"{url}/images", *files, "-F", 'metadata={"03.png": {"n": 3}}')
    assert form.json == {"added": 5, "unchanged": 0, "ids": [f"{n:02}.png" for n in range(1, 6)]}
    images = [{"id": "00.png", "image": as_base64(PICTURES["00.png"])}, {"image": as_base64(PICTURES["09.png"])}]
    in_json = curl(f"{url}/images", "--json", json.dumps({"images": images}))
    assert (in_json.status, in_json.json["added"], in_json.json["ids"][0]) == (201, 2, "00.png")
    again = curl(f"{url}/images", *files)
    assert again.json == {**form.json, "added": 0, "unchanged": 5}

    found = []
    after = ""
    for has_more in (True, True, False):
        page = curl(f"{url}/images?limit=3&after={after}").json
        assert page["has_more"] == has_more
        found += page["data"]
        after = found[-1]["id"]
    assert [image["id"] for image in found] == sorted([*form.json["ids"], *in_json.json["ids"], "sub/00.png"])
    assert {image["id"]: image["metadata"] for image in found if image["metadata"]} == {"03.png": {"n": 3}}
    for image in found:
        data = curl(f"{url}/images/{image['id']}").content
        assert len(data) == image["bytes"]
        assert data in PICTURES.values()


def test_an_image_a_text_and_a_stored_image_find_what_is_nearest(url: str, tmp_path: Path) -> None:
    add(url, PICTURES)
    (tmp_path / "query.png").write_bytes(PICTURES["07.png"])
    by_body = curl(
        f"{url}/search?k=3&condition={COLOR.replace(' ', '+')}",
        *("-H", "Content-Type: image/png", "--data-binary", f"@{tmp_path}/query.png"),
    )
    by_form = curl(f"{url}/search", "-F", f"file=@{tmp_path}/query.png", "-F", f"condition={COLOR}", "-F", "k=3")
    in_json = search(url, image=as_base64(PICTURES["07.png"]), condition=COLOR, k=3)
    by_reference = search(url, image={"id": f"{url.rpartition('/')[2]}/07.png"}, condition=COLOR, k=2)
    by_id = search(url, id="07.png", condition=COLOR, k=2)
    assert by_body.status == by_form.status == 200
    assert ids(by_body.json) == ids(by_form.json) == ids(in_json)
    assert ids(in_json)[0] == "07.png"
    assert in_json["results"][0]["score"] == pytest.approx(1, abs=COSINE_TOLERANCE)
    assert ids(by_id) == ids(by_reference) == ids(in_json)[1:]
    scores = [hit["score"] for hit in in_json["results"]]
    assert scores == sorted(scores, reverse=True)
    by_text = search(url, text="a red square", k=100)
    assert set(ids(by_text)) == set(PICTURES)
    assert (by_text["object"], by_text["condition"], by_text["index"]["exact"]) == ("search", None, True)
    assert by_text["model"].startswith(f"{MODEL}@")


def test_a_search_tells_its_checkpoint_and_its_times(url: str) -> None:
    add(url, PICTURES)
    answer = curl(f"{url}/search", "--include", "--json", '{"text": "a red square", "condition": "color"}')
    head, _, body = answer.content.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in head.splitlines()[1:])
    assert headers[b"x-fovea-model"].decode() == json.loads(body)["model"]
    assert b"upstream;dur=" in headers[b"server-timing"]
    assert headers[b"x-request-id"]


def test_a_filter_leaves_only_images_with_these_values(url: str) -> None:
    metadata = {name: {"n": place, "even": place % 2 == 0} for place, name in enumerate(PICTURES)}
    add(url, PICTURES, metadata)
    evens = search(url, text="a", filter={"even": True}, k=100)
    assert sorted(ids(evens)) == sorted(PICTURES)[::2]
    assert all(hit["metadata"] == metadata[hit["id"]] for hit in evens["results"])
    assert sorted(ids(search(url, text="a", filter={"n": [1, 2, 3], "even": False}, k=100))) == ["01.png", "03.png"]
    assert ids(search(url, text="a", filter={"nobody has": 1})) == []


@pytest.mark.parametrize("condition", [None, "A condition without an index"])
def test_ranges_alternatives_negations_and_missing_fields_are_filtered_by(url: str, condition: str | None) -> None:
    add(url, PICTURES, {name: {"n": place, "day": f"2026-11-{place:02}"} for place, name in enumerate(PICTURES)})
    add(url, {"none": picture(100)})

    def found(asked: dict[str, Any]) -> list[str]:
        return sorted(ids(search(url, text="a", condition=condition, filter=asked, k=100)))

    assert found({"n": {"$gt": 2, "$lte": 4.0}}) == ["03.png", "04.png"]
    assert found({"day": {"$gte": "2026-11-10"}, "$not": {"n": 11}}) == ["10.png"]
    assert found({"$or": [{"n": {"$lt": 1}}, {"day": {"$exists": False}}]}) == ["00.png", "none"]
    assert found({"n": {"$nin": list(range(11))}}) == ["11.png", "none"]


def test_patched_metadata_is_searched_and_listed_at_once_and_after_a_restart(system: System, url: str) -> None:
    add(url, PICTURES, {name: {"n": place, "kind": "noise"} for place, name in enumerate(PICTURES)})
    before = search(url, text="a", condition=COLOR, filter={"n": 3})["results"]
    path = f"{url}/images/03.png"
    changed = curl("-X", "PATCH", path, "--json", '{"metadata": {"n": 30, "kind": null, "tags": ["new"]}}')
    assert (changed.status, changed.json["metadata"]) == (200, {"n": 30, "tags": ["new"]})
    for condition in (None, COLOR, SHAPE):
        assert ids(search(url, text="a", condition=condition, filter={"n": 3})) == []
        assert ids(search(url, text="a", condition=condition, filter={"kind": {"$exists": False}})) == ["03.png"]
    again = curl("-X", "PATCH", path, "--json", '{"metadata": {"n": 30, "kind": null, "tags": ["new"]}}')
    assert again.json == changed.json
    assert changed.json in curl(f"{url}/images").json["data"]
    assert curl(path).content == PICTURES["03.png"]
    error = error_of(curl("-X", "PATCH", path, "--json", json.dumps({"metadata": {"x": "y" * 20_000}})), 413)
    assert error["param"] == "metadata"
    assert error_of(curl("-X", "PATCH", f"{url}/images/no", "--json", '{"metadata": {}}'), 404)["code"] == (
        "image_not_found"
    )
    system.restart()
    (after,) = search(url, text="a", condition=COLOR, filter={"n": {"$gte": 30}})["results"]
    assert after["metadata"] == {"n": 30, "tags": ["new"]}
    assert after["score"] == pytest.approx(before[0]["score"], abs=COSINE_TOLERANCE)


def test_an_id_with_other_content_is_a_conflict_and_nothing_of_the_request_is_added(url: str) -> None:
    add(url, {"a": picture(1)})
    images = [{"id": "new", "image": as_base64(picture(2))}, {"id": "a", "image": as_base64(picture(3))}]
    error = error_of(curl(f"{url}/images", "--json", json.dumps({"images": images})), 409)
    assert (error["type"], error["param"]) == ("conflict_error", "images.1")
    assert "'a'" in error["message"]
    assert [image["id"] for image in curl(f"{url}/images").json["data"]] == ["a"]
    assert curl(f"{url}/images/a").content == picture(1)


@pytest.mark.parametrize(
    ("image", "status", "param"),
    [
        ({"id": "x", "image": "no image"}, 400, "images.1.image"),
        ({"id": "x", "image": as_base64(picture(2)[:100])}, 400, "images.1.image"),
        ({"id": "x", "image": {"id": "nothing/x"}}, 404, "images.1.image"),
        ({"id": "a/../b", "image": as_base64(picture(2))}, 422, "images.1.id"),
        ({"id": "", "image": as_base64(picture(2))}, 422, "images.1.id"),
        ({"id": "x", "image": as_base64(picture(2)), "metadata": {"x": "y" * 20_000}}, 413, "images.1.metadata"),
    ],
)
def test_one_image_that_does_not_fit_is_named_and_nothing_of_the_request_is_added(
    url: str, image: dict[str, Any], status: int, param: str
) -> None:
    images = [{"id": "good", "image": as_base64(picture(1))}, image]
    answer = curl(f"{url}/images", "--json", json.dumps({"images": images}))
    assert error_of(answer, status)["param"] == param
    assert curl(f"{url}/images").json["data"] == []


def test_an_image_of_another_collection_is_added_by_its_id(url: str) -> None:
    add(url, {"a/b": picture(1)})
    other = f"{url}-copy"
    assert curl("-X", "PUT", other).status == 201
    reference = {"id": f"{url.rpartition('/')[2]}/a/b"}
    answer = curl(f"{other}/images", "--json", json.dumps({"images": [{"id": "copy", "image": reference}]}))
    assert answer.status == 201, answer.content
    assert curl(f"{other}/images/copy").content == picture(1)
    embedded = curl(f"{url.partition('/collections')[0]}/embed", "--json", json.dumps({"images": [reference]}))
    assert embedded.status == 200
    assert curl("-X", "DELETE", other).status == 204


def test_a_deleted_image_is_gone_from_everywhere(url: str) -> None:
    add(url, PICTURES)
    assert curl("-X", "DELETE", f"{url}/images/03.png").status == 204
    assert error_of(curl(f"{url}/images/03.png"), 404)["code"] == "image_not_found"
    assert curl("-X", "DELETE", f"{url}/images/03.png").status == 404
    assert "03.png" not in [image["id"] for image in curl(f"{url}/images").json["data"]]
    for condition in (None, COLOR, SHAPE):
        assert set(ids(search(url, text="a", condition=condition, k=100))) == PICTURES.keys() - {"03.png"}
    error = error_of(curl(f"{url}/search", "--json", '{"id": "03.png"}'), 404)
    assert error["param"] == "id"
    assert curl(url).json["size"] == len(PICTURES) - 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "image"),
        ({"text": " "}, 422, "text"),
        ({"text": "red " * 100}, 413, "text"),
        ({"text": "a", "condition": " "}, 422, "condition"),
        ({"text": "a", "condition": "red " * 100}, 413, "condition"),
        ({"text": "a", "model": "another"}, 404, "model"),
        ({"text": "a", "filter": {"n": {"deep": 1}}}, 422, "filter.n.deep"),
        ({"text": "a", "filter": {"$or": [{"n": 1}, {"n": {"$gt": None}}]}}, 422, "filter.$or.1.n.$gt"),
        ({"text": "a", "k": 1001}, 422, "k"),
        ({"image": as_base64(b"no image")}, 400, "image"),
        ({"id": "nobody"}, 404, "id"),
    ],
)
def test_a_search_that_does_not_fit_names_the_field(url: str, body: dict[str, Any], status: int, param: str) -> None:
    add(url, {"a": picture(1)})
    assert error_of(curl(f"{url}/search", "--json", json.dumps(body)), status)["param"] == param


@pytest.mark.parametrize(
    ("image_id", "path"),
    [
        ("folder/sub folder/a.png", "folder/sub%20folder/a.png"),
        ("folder/sub folder/b.png", "folder%2Fsub%20folder%2fb.png"),
        ("100%.png", "100%25.png"),
        ("100%25.png", "100%2525.png"),
        ("a+b&c=d?e#f.png", "a+b&c=d%3Fe%23f.png"),
        ("ü/日本.png", "%C3%BC/%E6%97%A5%E6%9C%AC.png"),
        ("a..b/...png", "a..b/...png"),
        ("~a:b;c,d@e!$'()*", "~a:b;c,d@e!$'()*"),
    ],
)
def test_ids_pass_the_gateway_unchanged_however_their_path_is_written(
    system: System, url: str, image_id: str, path: str
) -> None:
    add(url, {image_id: picture(1)})
    path = f"{url.removeprefix(system.gateway.url)}/images/{path}"

    def ask(method: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", system.gateway.port)
        connection.request(method, path)
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    assert ask("GET") == (200, picture(1))
    assert ask("DELETE") == (204, b"")
    assert ask("GET")[0] == 404


def test_a_restart_brings_everything_back(system: System, url: str) -> None:
    add(url, PICTURES, {"05.png": {"kind": "noise"}})
    curl("-X", "PUT", url, "--json", json.dumps({"conditions": [COLOR]}))
    assert curl("-X", "DELETE", f"{url}/images/03.png").status == 204
    listing = curl(f"{url}/images").json
    query = {"id": "05.png", "condition": COLOR, "k": 100}
    before = search(url, **query)
    system.restart()
    collection = curl(url).json
    assert {index["condition"] for index in collection["conditions"]} == {None, COLOR}
    assert curl(f"{url}/images").json == listing
    after = search(url, **query)
    assert ids(after) == ids(before)
    for hit, same in zip(after["results"], before["results"], strict=True):
        assert hit["score"] == pytest.approx(same["score"], abs=COSINE_TOLERANCE)
    assert ids(search(url, text="a", filter={"kind": "noise"})) == ["05.png"]
    assert curl(f"{url}/images/05.png").content == PICTURES["05.png"]


@dataclass
class Traffic:
    """The contents of a collection as known to clients that add, delete and search at the same time."""

    url: str
    session: aiohttp.ClientSession
    dice: random.Random
    stored: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    num_searches: int = 0

    async def add(self) -> None:
        """Until there was enough to do for everybody."""
        while min(len(self.deleted), self.num_searches) < MIN_OF_EACH:
            if len(self.stored) > MAX_STORED:
                await asyncio.sleep(0.001)  # others delete
                continue
            images = {f"{self.dice.getrandbits(64):016x}": self.dice.getrandbits(32) for _ in range(4)}
            body = [{"id": image_id, "image": as_base64(picture(seed))} for image_id, seed in images.items()]
            async with self.session.post(f"{self.url}/images", json={"images": body}) as response:
                assert response.status == 201, await response.text()
            self.stored |= images.keys()

    async def wait_until_indexed(self) -> None:
        last = {"images": [{"id": "last", "image": as_base64(picture(0))}]}
        async with self.session.post(f"{self.url}/images?wait=true", json=last) as response:
            assert response.status == 201, await response.text()
        self.stored.add("last")

    async def delete(self) -> None:
        """Half of what comes."""
        while not self.is_over.is_set():
            if len(self.stored) <= len(self.deleted):
                await asyncio.sleep(0.001)  # others add
                continue
            image_id = self.dice.choice(sorted(self.stored))
            self.stored.remove(image_id)
            async with self.session.delete(f"{self.url}/images/{image_id}") as response:
                assert response.status == 204, await response.text()
            self.deleted.add(image_id)

    async def search(self) -> None:
        """Under conditions that come one after the other, so that some index is always being built."""
        while not self.is_over.is_set():
            gone = set(self.deleted)
            condition = self.dice.choice([None, *(f"condition {n}" for n in range(1 + self.num_searches // 10))])
            query = {"text": "a thing", "condition": condition, "k": 100}
            async with self.session.post(f"{self.url}/search", json=query) as response:
                assert response.status == 200, await response.text()
                found = {hit["id"] for hit in (await response.json())["results"]}
            assert not found & gone, "an image was found after its deletion was acknowledged"
            self.num_searches += 1


async def test_searches_never_fail_nor_find_what_is_deleted_while_images_come_and_go(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        traffic = Traffic(url, session, random.Random(0))
        async with asyncio.TaskGroup() as group:
            for work in (traffic.delete, traffic.search, traffic.search, traffic.search):
                group.create_task(work())
            await asyncio.gather(traffic.add(), traffic.add())
            traffic.is_over.set()
        await traffic.wait_until_indexed()
        async with session.post(f"{url}/search", json={"text": "a thing", "k": 1000}) as response:
            assert response.status == 200, await response.text()
            assert {hit["id"] for hit in (await response.json())["results"]} == traffic.stored
