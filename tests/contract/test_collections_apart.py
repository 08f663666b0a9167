"""Collections in a process of their own beside processes without any, as the production overlay has them."""

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.contract.running_fovea import Fovea, settings_of_a_test
from tests.core.image_files import encode, scene

pytestmark = pytest.mark.process

PHOTO = base64.b64encode(encode(scene(), "PNG")).decode()


@pytest.fixture(scope="module")
def fovea(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fovea]:
    folder = tmp_path_factory.mktemp("apart")
    fovea = Fovea(folder, settings_of_a_test(folder))
    try:
        having = fovea.start("embed", instance="collections")
        without = {
            "FOVEA_EMBED_MAX_COLLECTIONS": "0",
            "FOVEA_EMBED_COLLECTIONS_DIR": str(Path(folder) / "none"),
        }
        fovea.start("embed", without)
        fovea.start_gateway({"FOVEA_GATEWAY_COLLECTIONS_URLS": having.url})
        for process in fovea.processes.values():
            process.wait_until_ready()
        yield fovea
    finally:
        fovea.kill()


def test_an_image_of_a_collection_can_be_embedded_by_its_name_through_the_gateway(fovea: Fovea) -> None:
    with httpx.Client(base_url=fovea.url, timeout=60) as client:
        assert client.put("/collections/shop", json={}).status_code == 201
        added = client.post("/collections/shop/images", json={"images": [{"id": "a.png", "image": PHOTO}]})
        assert added.status_code == 201
        answer = client.post("/embed", json={"images": [{"id": "shop/a.png"}, PHOTO]})
        assert answer.status_code == 200, answer.text
        by_name, by_pixels = (row["embedding"] for row in answer.json()["data"])
        assert by_name == pytest.approx(by_pixels, abs=1e-6)
        missing = client.post("/embed", json={"images": [{"id": "shop/no-such"}]})
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "images.0")


def test_a_process_without_collections_says_that_another_one_has_them_instead_of_that_there_are_none(
    fovea: Fovea,
) -> None:
    asked = {"images": [{"id": "shop/a.png"}]}
    answer = httpx.post(f"{fovea.processes['embed'].url}/embed", json=asked, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "no_collections_here")
