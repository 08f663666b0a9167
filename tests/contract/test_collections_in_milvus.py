"""Shared collections over a real Milvus: what was added is found until it is deleted, also after a restart.

The whole contract is tested over Milvus with `FOVEA_TEST_VECTORS=milvus pytest tests/contract/test_collections.py`.
"""

from pathlib import Path

from tests.conftest import empty_schema
from tests.contract.curl import curl
from tests.contract.test_collections import COLOR, PICTURES, SHAPE, add, ids, running_system, search, shared_collections


def test_images_in_milvus_are_found_until_they_are_deleted(tmp_path: Path, postgres_url: str, milvus_url: str) -> None:
    settings = shared_collections(tmp_path, empty_schema(postgres_url), milvus_url)
    with running_system(tmp_path, "services.embed", **settings) as system:
        url = f"{system.gateway.url}/collections/things"
        assert curl("-X", "PUT", url, "--json", f'{{"conditions": ["{COLOR}"]}}').status == 201
        add(url, PICTURES, {name: {"n": place} for place, name in enumerate(PICTURES)})
        assert curl("-X", "DELETE", f"{url}/images/03.png").status == 204
        before = {}
        for condition in (None, COLOR, SHAPE):
            before[condition] = search(url, id="07.png", condition=condition, k=100)
            assert set(ids(before[condition])) == PICTURES.keys() - {"03.png", "07.png"}
        assert sorted(ids(search(url, text="a", filter={"n": [1, 2, 3]}, condition=COLOR))) == ["01.png", "02.png"]
        asked = {"$not": {"n": {"$gte": 2, "$lt": 11}}}
        assert sorted(ids(search(url, text="a", filter=asked, condition=COLOR))) == ["00.png", "01.png", "11.png"]
        system.restart()
        for condition in (None, COLOR):
            assert ids(search(url, id="07.png", condition=condition, k=100)) == ids(before[condition])
        assert curl("-X", "DELETE", url).status == 204
