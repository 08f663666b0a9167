"""Collections as a client sees them, with a real model: what is found, when, and after what has happened."""

import asyncio
import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from PIL import Image
from structlog.testing import capture_logs

from services.core.batching.batches import BatchQueue, Request
from services.core.exchange import NOBODY
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.app import create_embed
from services.embed.settings import EmbedSettings
from tests.conftest import empty_schema
from tests.core.image_files import encode
from tests.embed.tiny import wait_until_ready, write_tiny_checkpoint

MODEL = "tiny"
INFO = CheckpointInfo(kind="focallens-clip")
COLOR, SHAPE = "What is the color?", "What is the shape?"
# The states of images are kept as 2-byte floats.
COSINE_TOLERANCE = 5e-3

Scores = dict[str, float]


def picture(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return encode(Image.fromarray(noise).resize((32, 32), Image.Resampling.NEAREST), "PNG")


PICTURES = {f"picture-{number:02}.png": picture(number) for number in range(24)}


class Service:
    """One life of a service over a folder."""

    def __init__(self, client: TestClient, settings: EmbedSettings) -> None:
        self.client = client
        self.settings = settings

    def create(self, *conditions: str, name: str = "things") -> None:
        assert self.client.put(f"/collections/{name}", json={"conditions": conditions}).status_code in (200, 201)

    def add(self, files: Mapping[str, bytes], metadata: Mapping[str, Any] | None = None, name: str = "things") -> None:
        images = [
            {"id": image_id, "image": as_base64(data)}
            | ({"metadata": metadata[image_id]} if metadata and image_id in metadata else {})
            for image_id, data in files.items()
        ]
        response = self.client.post(f"/collections/{name}/images?wait=true", json={"images": images})
        assert response.status_code == 201, response.text

    def search(self, name: str = "things", **query: Any) -> dict[str, Any]:
        response = self.client.post(f"/collections/{name}/search", json={"k": 100, **query})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def scores(self, **query: Any) -> Scores:
        return {hit["id"]: hit["score"] for hit in self.search(**query)["results"]}

    def describe(self, name: str = "things") -> dict[str, Any]:
        response = self.client.get(f"/collections/{name}")
        assert response.status_code == 200, response.text
        description: dict[str, Any] = response.json()
        return description

    def index(self, condition: str | None, name: str = "things") -> dict[str, Any] | None:
        indexes = self.describe(name)["conditions"]
        return next((index for index in indexes if index["condition"] == condition), None)

    def wait_until(self, is_so: Callable[[], bool], within_s: float = 30.0, of: str = "things") -> None:
        give_up = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < give_up, self.describe(of)
            time.sleep(0.01)  # an index tells nobody when it is ready

    def wait_until_ready(self, condition: str | None) -> None:
        self.wait_until(lambda: (index := self.index(condition)) is not None and index["state"] == "ready")

    def expected(self, query: bytes, condition: str | None, files: Mapping[str, bytes] = PICTURES) -> Scores:
        """Cosines of freshly embedded images."""
        body: dict[str, Any] = {"images": [as_base64(data) for data in (query, *files.values())]}
        response = self.client.post("/embed", json=body | ({"condition": condition} if condition else {}))
        vectors: NDArray[np.float64] = np.array([row["embedding"] for row in response.json()["data"]])
        return dict(zip(files, (vectors[1:] @ vectors[0]).tolist(), strict=True))


def as_base64(data: bytes) -> str:

    return base64.b64encode(data).decode()


def assert_alike(found: Scores, expected: Scores) -> None:
    assert set(found) == set(expected)
    for image_id, score in expected.items():
        assert found[image_id] == pytest.approx(score, abs=COSINE_TOLERANCE), image_id
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def settings_in(folder: Path, checkpoint: Path, **changes: Any) -> EmbedSettings:
    settings = EmbedSettings(
        store_url=(folder / "store").as_uri(),
        checkpoint_cache_dir=folder / "checkpoints",
        collections_dir=folder / "collections",
        store_poll_s=0.05,
        models=(MODEL,),
        device="cpu",
        **changes,
    )
    Store.open(settings.store_url).publish(MODEL, checkpoint, INFO)
    return settings


@contextmanager
def running(settings: EmbedSettings, *, are_collections_open: bool = True) -> Iterator[Service]:
    with TestClient(create_embed(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        wait_until_ready(lambda: client.get("/collections").status_code == (200 if are_collections_open else 503))
        yield Service(client, settings)


@dataclass(frozen=True)
class Backend:
    """The storage of the collections: a folder, or the database of this URL."""

    url: str | None = None

    def settings_in(self, folder: Path, checkpoint: Path, **changes: Any) -> EmbedSettings:
        if self.url is not None:
            changes |= {
                "collections_url": empty_schema(self.url),
                "collections_store_url": (folder / "objects").as_uri(),
            }
        return settings_in(folder, checkpoint, **changes)


@pytest.fixture(scope="module", params=["local", pytest.param("cluster", marks=pytest.mark.process)])
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend() if request.param == "local" else Backend(request.getfixturevalue("postgres_url"))


@pytest.fixture(scope="module")
def service(backend: Backend, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """With all pictures in a collection that indexes the colour ahead."""
    with running(backend.settings_in(tmp_path_factory.mktemp("service"), checkpoint)) as service:
        service.create(COLOR)
        kinds = {name: {"parity": place % 2, "kind": "noise"} for place, name in enumerate(PICTURES)}
        service.add(PICTURES, kinds)
        yield service


@pytest.mark.parametrize("condition", [None, COLOR])
@pytest.mark.slow
def test_scores_are_the_cosines_of_the_embeddings_under_the_condition(service: Service, condition: str | None) -> None:
    query = picture(100)
    answer = service.search(image=as_base64(query), condition=condition)
    assert answer["condition"] == condition
    assert answer["index"]["exact"] and answer["index"]["state"] == "ready"
    found = {hit["id"]: hit["score"] for hit in answer["results"]}
    assert_alike(found, service.expected(query, condition))


def test_a_text_queries_the_same_space(service: Service) -> None:
    found = service.scores(text="a red square", condition=COLOR)
    body = {"texts": ["a red square"], "images": [as_base64(data) for data in PICTURES.values()], "condition": COLOR}
    vectors = np.array([row["embedding"] for row in service.client.post("/embed", json=body).json()["data"]])
    assert_alike(found, dict(zip(PICTURES, (vectors[:-1] @ vectors[-1]).tolist(), strict=True)))


def test_a_stored_image_is_not_its_own_neighbour(service: Service) -> None:
    name, data = next(iter(PICTURES.items()))
    found = service.scores(id=name, condition=COLOR)
    expected = service.expected(data, COLOR)
    del expected[name]
    assert_alike(found, expected)
    assert len(service.search(id=name, condition=COLOR, k=5)["results"]) == 5


def test_a_stored_image_can_be_embedded_by_its_name(service: Service) -> None:
    name, data = next(iter(PICTURES.items()))
    body = {"images": [{"id": f"things/{name}"}, as_base64(data)], "condition": COLOR}
    first, second = (row["embedding"] for row in service.client.post("/embed", json=body).json()["data"])
    assert first == second
    missing = service.client.post("/embed", json={"images": [{"id": "things/no-such"}]})
    assert missing.status_code == 404
    assert missing.json()["error"]["param"] == "images.0"


def test_a_condition_seen_for_the_first_time_is_answered_exactly_where_all_images_can_be_read_at_once(
    service: Service,
) -> None:
    query = picture(101)
    condition = "Which of these is the largest?"
    answer = service.search(image=as_base64(query), condition=condition)
    assert answer["index"]["exact"]
    assert_alike({hit["id"]: hit["score"] for hit in answer["results"]}, service.expected(query, condition))
    service.wait_until_ready(condition)
    assert_alike(service.scores(image=as_base64(query), condition=condition), service.expected(query, condition))


def test_images_are_indexed_at_nobodys_expense(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    clients, add = set(), BatchQueue.add

    def noting(queue: BatchQueue[Any], request: Request[Any], cost: int) -> None:
        clients.add(request.client)
        add(queue, request, cost)

    monkeypatch.setattr(BatchQueue, "add", noting)
    headers = {"X-Fovea-Client": "key:uploader"}
    assert service.client.put("/collections/uploaded", headers=headers).status_code == 201
    images = [{"id": name, "image": as_base64(data)} for name, data in PICTURES.items()]
    added = service.client.post("/collections/uploaded/images?wait=true", json={"images": images}, headers=headers)
    assert added.status_code == 201
    assert clients == {NOBODY.client}
    service.client.delete("/collections/uploaded")


def test_a_filter_leaves_only_images_whose_metadata_agrees(service: Service) -> None:
    for condition in (COLOR, "A condition of no index yet, with a filter"):
        hits = service.search(text="a thing", condition=condition, filter={"parity": 1, "kind": "noise"})["results"]
        assert sorted(hit["id"] for hit in hits) == [name for place, name in enumerate(PICTURES) if place % 2]
        assert all(hit["metadata"] == {"parity": 1, "kind": "noise"} for hit in hits)
    assert service.search(text="a thing", filter={"parity": 2})["results"] == []


def test_the_description_tells_how_far_each_index_is(service: Service) -> None:
    description = service.describe()
    assert description["size"] == len(PICTURES)
    assert description["bytes"] == sum(map(len, PICTURES.values()))
    assert description["model"] == MODEL
    plain = service.index(None)
    assert plain is not None
    assert (plain["state"], plain["indexed"], plain["waiting"], plain["kind"]) == ("ready", len(PICTURES), 0, "flat")
    states = description["image_states"]
    assert states["images"] == len(PICTURES)
    assert states["bytes"] >= len(PICTURES) * states["bytes_per_image"]


def test_metrics_count_searches_and_show_that_no_index_lags(service: Service) -> None:
    service.search(text="a thing", condition=COLOR)
    service.wait_until(lambda: service.describe()["state"] == "ready")
    lines = service.client.get("/metrics").text.splitlines()
    assert any(line.startswith('fovea_searches_total{result="exact"}') for line in lines)
    assert "fovea_index_lag_images 0.0" in lines


def test_where_faiss_finds_no_gpu_the_processor_searches_and_the_log_says_so(checkpoint: Path, tmp_path: Path) -> None:
    if faiss.get_num_gpus() > 0:
        pytest.skip("there is a GPU")
    with capture_logs() as logs:
        create_embed(settings_in(tmp_path, checkpoint, index_device="cuda"))
    assert any("search-gpu" in one["event"] and one["log_level"] == "warning" for one in logs)


@pytest.mark.slow
def test_a_short_list_is_said_to_be_one(backend: Backend, checkpoint: Path, tmp_path: Path) -> None:
    with running(backend.settings_in(tmp_path, checkpoint, shortlist_size=8)) as service:
        service.create()
        service.add(PICTURES)
        query = picture(102)
        answer = service.search(image=as_base64(query), condition=SHAPE, k=5)
        expected = service.expected(query, SHAPE)
        if answer["index"]["state"] == "building":
            assert not answer["index"]["exact"]
        assert len(answer["results"]) == 5
        for hit in answer["results"]:
            assert hit["score"] == pytest.approx(expected[hit["id"]], abs=COSINE_TOLERANCE)
        service.wait_until_ready(SHAPE)
        assert_alike(service.scores(image=as_base64(query), condition=SHAPE), expected)


@pytest.mark.parametrize("state_bytes", [0, 2**30])
@pytest.mark.slow
def test_an_answer_under_a_new_condition_has_as_many_results_as_were_asked_for(
    backend: Backend, checkpoint: Path, tmp_path: Path, state_bytes: int
) -> None:
    with running(
        backend.settings_in(tmp_path, checkpoint, shortlist_size=8, collection_state_bytes=state_bytes)
    ) as service:
        service.create()
        service.add(PICTURES, {name: {"half": place % 2} for place, name in enumerate(PICTURES)})
        query = picture(108)
        for k, kept, num_results in ((20, None, 20), (100, None, 24), (11, {"half": 1}, 11)):
            condition = f"What is in the first {k}?"
            answer = service.search(image=as_base64(query), condition=condition, k=k, filter=kept)
            assert len(answer["results"]) == num_results
            assert answer["index"]["exact"] == (k == 100)
            expected = service.expected(query, condition)
            for hit in answer["results"]:
                assert hit["score"] == pytest.approx(expected[hit["id"]], abs=COSINE_TOLERANCE)


@pytest.mark.slow
def test_where_the_time_is_short_an_answer_has_fewer_results_and_says_that_it_is_not_exact(
    backend: Backend, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the time for what is read besides is over at once, the time for an answer is not
    monkeypatch.setattr("services.embed.collections.search.FINISHING_S", 60.0)
    with running(backend.settings_in(tmp_path, checkpoint, shortlist_size=8)) as service:
        service.create()
        service.add(PICTURES)
        body = {"text": "a thing", "condition": SHAPE, "k": 100}
        short = {"x-request-timeout": "30"}
        response = service.client.post("/collections/things/search", json=body, headers=short)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert len(answer["results"]) == 8
        assert (answer["index"]["exact"], answer["index"]["state"]) == (False, "building")


@pytest.mark.parametrize("state_bytes", [0, 2**30])
@pytest.mark.parametrize(("visibility", "layer"), [("readout", 0), ("readout", 1), ("full", 0), ("full", 1)])
@pytest.mark.slow
def test_every_kind_of_checkpoint_finds_the_same_with_kept_states_and_without(
    backend: Backend, tmp_path: Path, visibility: Any, layer: int, state_bytes: int
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint", visibility=visibility, condition_layer=layer)
    with running(backend.settings_in(tmp_path, checkpoint, collection_state_bytes=state_bytes)) as service:
        service.create()
        service.add(PICTURES)
        states = service.describe()["image_states"]
        assert (states is not None) == (state_bytes > 0 and (visibility, layer) != ("full", 0))
        query = picture(103)
        service.search(image=as_base64(query), condition=SHAPE)
        service.wait_until_ready(SHAPE)
        assert_alike(service.scores(image=as_base64(query), condition=SHAPE), service.expected(query, SHAPE))


@pytest.mark.slow
def test_states_stay_within_their_budget(backend: Backend, checkpoint: Path, tmp_path: Path) -> None:
    with running(backend.settings_in(tmp_path, checkpoint, collection_state_bytes=40_000)) as service:
        service.create()
        service.add(PICTURES)
        states = service.describe()["image_states"]
        assert 0 < states["images"] < len(PICTURES)
        assert states["bytes"] <= states["max_bytes"] == 40_000
        query = picture(104)
        assert_alike(service.scores(image=as_base64(query), condition=SHAPE), service.expected(query, SHAPE))


@pytest.mark.slow
def test_a_deleted_image_is_found_by_no_condition(backend: Backend, checkpoint: Path, tmp_path: Path) -> None:
    with running(backend.settings_in(tmp_path, checkpoint)) as service:
        service.create(COLOR)
        service.add(PICTURES)
        gone, *rest = PICTURES
        assert service.client.delete(f"/collections/things/images/{gone}").status_code == 204
        for condition in (None, COLOR, SHAPE):
            assert set(service.scores(text="a thing", condition=condition)) == set(rest)
        assert service.client.get(f"/collections/things/images/{gone}").status_code == 404
        assert service.client.post("/collections/things/search", json={"id": gone}).status_code == 404


@pytest.mark.slow
def test_everything_comes_back_with_the_process(backend: Backend, checkpoint: Path, tmp_path: Path) -> None:
    settings = backend.settings_in(tmp_path, checkpoint)
    query = picture(105)
    with running(settings) as service:
        service.create(COLOR)
        service.add(PICTURES, {"picture-00.png": {"a": 1}})
        service.search(image=as_base64(query), condition=SHAPE)
        service.wait_until_ready(SHAPE)
        service.client.delete("/collections/things/images/picture-01.png")
        before = {
            condition: service.scores(image=as_base64(query), condition=condition) for condition in (COLOR, SHAPE)
        }
    with running(settings) as service:
        for condition, scores in before.items():
            service.wait_until_ready(condition)
            assert service.scores(image=as_base64(query), condition=condition) == scores
        assert service.search(text="a", filter={"a": 1})["results"][0]["id"] == "picture-00.png"


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped"])
@pytest.mark.slow
def test_a_lost_or_damaged_index_is_made_again(checkpoint: Path, tmp_path: Path, damage: str) -> None:
    settings = settings_in(tmp_path, checkpoint)
    query = picture(106)
    with running(settings) as service:
        service.create(COLOR)
        service.add(PICTURES)
        expected = service.expected(query, COLOR)
    files = [*(tmp_path / "collections").rglob("*.index"), *(tmp_path / "collections").rglob("*.states")]
    assert len(files) == 3
    for file in files:
        if damage == "lost":
            file.unlink()
        elif damage == "cut":
            file.write_bytes(file.read_bytes()[:-100])
        else:
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 0xFF
            file.write_bytes(data)
    with running(settings) as service:
        service.wait_until_ready(COLOR)
        assert_alike(service.scores(image=as_base64(query), condition=COLOR), expected)
        assert_alike(service.scores(image=as_base64(query), condition=SHAPE), service.expected(query, SHAPE))


@pytest.mark.slow
def test_without_its_model_a_collection_keeps_its_images_and_all_its_indexes_wait(
    backend: Backend, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = backend.settings_in(tmp_path, checkpoint)
    with running(settings) as service:
        service.create(COLOR)
        service.add(PICTURES)
    with TestClient(
        create_embed(settings.model_copy(update={"alias": "absent"})), base_url="http://localhost"
    ) as client:
        wait_until_ready(lambda: client.get("/collections").status_code == 200)
        description = Service(client, settings).describe()
        assert description["state"] == "building"
        waiting = {index["condition"]: index["waiting"] for index in description["conditions"]}
        assert waiting == {None: len(PICTURES), COLOR: len(PICTURES)}
        assert client.get("/collections/things/images/picture-00.png").content == PICTURES["picture-00.png"]
        assert client.post("/collections/things/search", json={"text": "a thing"}).status_code == 503
        # stored is stored, also where the wait for the indexes has no end
        monkeypatch.setattr("services.embed.collections.collection.ANSWERING_S", 29.0)  # so a second is waited
        more = {"images": [{"id": "more", "image": as_base64(picture(200))}]}
        ahead = {"x-request-timeout": "30"}
        assert client.post("/collections/things/images?wait=true", json=more, headers=ahead).status_code == 201


@pytest.mark.slow
def test_a_collection_that_can_not_be_opened_leaves_the_others_alone(checkpoint: Path, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, checkpoint)
    with running(settings) as service:
        service.create(name="damaged")
        service.create()
        service.add(PICTURES)
    (tmp_path / "collections" / "damaged" / "images.sqlite").write_bytes(b"no database" * 1000)
    with running(settings) as service:
        refused = service.client.get("/collections/damaged")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "collection_not_open")
        assert service.client.put("/collections/damaged").status_code == 503
        assert set(service.scores(text="a thing")) == set(PICTURES)


@pytest.mark.slow
def test_another_checkpoint_answers_with_its_own_embeddings(backend: Backend, checkpoint: Path, tmp_path: Path) -> None:
    settings = backend.settings_in(tmp_path, checkpoint)
    query = picture(107)
    with running(settings) as service:
        service.create(COLOR)
        service.add(PICTURES)
        before = service.search(image=as_base64(query), condition=COLOR)
        other = write_tiny_checkpoint(tmp_path / "other", seed=1)
        Store.open(settings.store_url).publish(MODEL, other, INFO)
        service.wait_until(lambda: service.search(image=as_base64(query), condition=COLOR)["model"] != before["model"])
        assert_alike(service.scores(image=as_base64(query), condition=COLOR), service.expected(query, COLOR))
        service.wait_until(lambda: service.describe()["state"] == "ready")
        assert_alike(service.scores(image=as_base64(query), condition=COLOR), service.expected(query, COLOR))


@pytest.mark.slow
def test_the_index_asked_least_lately_makes_room_but_none_asked_for_ahead(
    backend: Backend, checkpoint: Path, tmp_path: Path
) -> None:
    with running(backend.settings_in(tmp_path, checkpoint, collection_max_conditions=2)) as service:
        service.create(COLOR)
        service.add(PICTURES)
        for condition in ("the first?", "the second?"):
            service.search(text="a thing", condition=condition)
            service.wait_until_ready(condition)
        assert [index["condition"] for index in service.describe()["conditions"]] == [None, COLOR, "the second?"]
        refused = service.client.put("/collections/things", json={"conditions": ["ahead 1?", "ahead 2?"]})
        assert refused.status_code == 413
        assert "the limit is 2" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_a_second_process_waits_for_the_first_one_to_let_go(checkpoint: Path, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, checkpoint)
    with running(settings) as service:
        service.create()
        service.add(PICTURES)
        with TestClient(create_embed(settings), raise_server_exceptions=False, base_url="http://localhost") as second:
            wait_until_ready(lambda: second.get("/readyz").status_code == 200)
            refused = second.get("/collections/things")
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "collections_not_open"
            assert second.post("/embed", json={"texts": ["a"]}).status_code == 200


@pytest.mark.slow
def test_a_collection_is_gone_once_it_is_deleted_and_can_be_made_anew(
    backend: Backend, checkpoint: Path, tmp_path: Path
) -> None:
    with running(backend.settings_in(tmp_path, checkpoint)) as service:
        service.create()
        service.add(PICTURES)
        assert service.client.delete("/collections/things").status_code == 204
        assert service.client.get("/collections/things").status_code == 404
        assert service.client.post("/collections/things/search", json={"text": "a"}).status_code == 404
        service.create()
        assert service.describe()["size"] == 0
        assert service.search(text="a")["results"] == []


@pytest.mark.slow
def test_a_collection_without_images_answers_every_condition_with_nothing(
    backend: Backend, checkpoint: Path, tmp_path: Path
) -> None:
    with running(backend.settings_in(tmp_path, checkpoint)) as service:
        service.create(COLOR)
        for condition in (None, COLOR, SHAPE):
            assert service.search(text="a", condition=condition)["results"] == []


@pytest.mark.slow
async def test_a_collection_is_deleted_in_the_moment_in_which_its_indexing_is_woken(
    checkpoint: Path, tmp_path: Path
) -> None:
    app = create_embed(settings_in(tmp_path, checkpoint))
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        url = "http://localhost/collections/things"
        while (await client.put(url, json={})).status_code == 503:  # noqa: ASYNC110 - not open yet
            await asyncio.sleep(0.01)
        for _ in range(30):
            # Who deletes waits for those who use the collection, the last of whom wakes the indexing as it leaves.
            again = [client.put(url, json={"conditions": [COLOR]}) for _ in range(4)]
            _, deleted = await asyncio.gather(asyncio.gather(*again), client.delete(url))
            assert deleted.status_code == 204
            assert (await client.put(url, json={})).status_code in (200, 201)
