"""Several models in one score service: a request names one, and the memory that they share has a limit."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.jobs.imports.clip_weights import convert_openai_clip
from services.nn.devices import DeviceOptions, parameter_bytes
from services.nn.plain_clip import OPEN_CLIP_KIND
from services.score.model.checkpoint import FSC_CLIP_KIND
from tests.core.image_files import encode, scene
from tests.published_clips import write_openai
from tests.score.served_tiny import served_tiny
from tests.score.tiny import write_tiny_checkpoint

CAPTIONS = ["a red circle", "a blue square"]
FILES = {"file": encode(scene(), "PNG")}
MODELS = ("first", "second", "clip")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of two tuned CLIPs and a plain one, in a store beside them, which also has `idle` and a `student`."""
    folder = tmp_path_factory.mktemp("checkpoints")
    found = {name: write_tiny_checkpoint(folder / name, seed=seed) for seed, name in enumerate(("first", "second"))}
    found["clip"] = folder / "clip"
    convert_openai_clip(write_openai(folder / "RN50.pt", is_resnet=True), found["clip"])
    store = Store.open((folder / "store").as_uri())
    for name, checkpoint in found.items():
        store.publish(name, checkpoint, CheckpointInfo(kind=OPEN_CLIP_KIND if name == "clip" else FSC_CLIP_KIND))
    store.publish("idle", found["first"], CheckpointInfo(kind=FSC_CLIP_KIND))
    store.publish("student", found["first"], CheckpointInfo(kind="t5-student"))
    return found


def score(client: TestClient, **fields: str) -> Any:
    response = client.post("/score", files=FILES, data={"captions": CAPTIONS, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def scores(answer: Any) -> list[float]:
    return [one["score"] for one in answer["scores"]]


@pytest.fixture(scope="module")
def alone(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Scores of each model in a service of its own."""
    found = {}
    for name in MODELS:
        store_url = (checkpoints[name].parent / "store").as_uri()
        with served_tiny(store_url, tmp_path_factory.mktemp(name), models=(name,)) as client:
            found[name] = scores(score(client))
    return found


@pytest.mark.slow
def test_a_request_is_answered_by_the_model_that_it_names_and_else_by_the_first(
    checkpoints: dict[str, Path], alone: dict[str, list[float]], tmp_path: Path
) -> None:
    with served_tiny((checkpoints["first"].parent / "store").as_uri(), tmp_path, models=MODELS) as client:
        for name in MODELS:
            answer = score(client, model=name)
            assert answer["model"].startswith(f"{name}@")
            assert scores(answer) == pytest.approx(alone[name], abs=1e-6)
        assert score(client)["model"].startswith("first@")
        listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
        assert tuple(listed) == MODELS
        assert listed["clip"]["kind"] == OPEN_CLIP_KIND
        assert all(one["loaded"] for one in listed.values())
        assert client.get("/v1/models/second@latest").json() == listed["second"]


@pytest.mark.slow
def test_a_model_of_the_store_that_is_not_served_is_told_from_one_that_does_not_exist(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with served_tiny((checkpoints["first"].parent / "store").as_uri(), tmp_path, models=("first", "clip")) as client:
        asked = {
            name: client.post("/score", files=FILES, data={"captions": CAPTIONS, "model": name})
            for name in ("idle", "student", "nobody", "first@candidate")
        }
        assert [response.status_code for response in asked.values()] == [404, 404, 404, 404]
        told = {name: response.json()["error"] for name, response in asked.items()}
        assert all(error["code"] == "model_not_found" and error["param"] == "model" for error in told.values())
        assert told["idle"]["message"] == (
            "The model 'idle' is in the store, but this service serves 'first', 'clip' (FOVEA_SCORE_MODELS)."
        )
        assert told["student"]["message"] == (
            "The model 'student' is a t5-student checkpoint; this service runs fsc-clip and open-clip."
        )
        assert told["nobody"]["message"] == "There is no model 'nobody': this service serves 'first', 'clip'."
        assert told["first@candidate"]["message"] == "'first' is served, but not as 'candidate'."
        assert client.get("/v1/models/idle").status_code == 404


@pytest.mark.slow
def test_models_beyond_the_memory_make_room_for_each_other_and_every_request_is_answered(
    checkpoints: dict[str, Path], alone: dict[str, list[float]], tmp_path: Path
) -> None:
    sizes = {name: parameter_bytes(checkpoints[name], DeviceOptions("cpu", "float32")) for name in MODELS}
    memory = max(sizes["first"] + sizes["second"], sizes["clip"])
    store_url = (checkpoints["first"].parent / "store").as_uri()
    with served_tiny(store_url, tmp_path, models=MODELS, memory_bytes=memory) as client:
        asked = [MODELS[place % 3] for place in range(24)]
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda name: score(client, model=name), asked))
        for name, answer in zip(asked, answers, strict=True):
            assert scores(answer) == pytest.approx(alone[name], abs=1e-6)
        listed = client.get("/v1/models").json()["data"]
        assert len(listed) == 3
        assert sum(sizes[one["id"]] for one in listed if one["loaded"]) <= memory


@pytest.mark.slow
def test_readiness_says_which_kinds_the_service_runs_where_a_model_is_of_another(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    store_url = (checkpoints["first"].parent / "store").as_uri()
    with served_tiny(store_url, tmp_path, models=("first", "student")) as client:
        detail = client.get("/readyz").json()["checks"]["checkpoint student"]["detail"]
        assert "is a t5-student checkpoint, and this service runs fsc-clip and open-clip checkpoints" in detail


@pytest.mark.slow
def test_a_model_larger_than_the_memory_is_refused_naming_both_sizes(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    store_url = (checkpoints["first"].parent / "store").as_uri()
    with served_tiny(store_url, tmp_path, probe="/startupz", models=("clip",), memory_bytes=1000) as client:
        detail = client.get("/readyz").json()["checks"]["checkpoint clip"]["detail"]
        assert "but the limit for all models is 1000 (FOVEA_SCORE_MEMORY_BYTES)" in detail
