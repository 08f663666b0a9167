"""The wire of collections and their images: every form of a request, its answer, and everything that is refused."""

import hashlib
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.embed.collections.answers import ImageToAdd
from tests.core.image_files import every_kind
from tests.embed.collections.in_memory import COLOR, OTHER, PHOTO, SHAPE, InMemory, as_base64, error_of


def bytes_of(image: ImageToAdd) -> bytes:
    assert isinstance(image.image.reference, bytes)
    return image.image.reference


# --- collections ---


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("name", ["a%2Fb", "images%2fa.png", "a%2Fsearch"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", ""),
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/images"),
        ("GET", "/images"),
        ("GET", "/images/a.png"),
        ("PATCH", "/images/a.png"),
        ("DELETE", "/images/a/b%2Fc.png"),
        ("POST", "/search"),
    ],
)
def test_an_encoded_slash_in_a_name_is_refused_with_the_rule_for_names(
    client: TestClient, prefix: str, name: str, method: str, path: str
) -> None:
    error = error_of(client.request(method, f"{prefix}/collections/{name}{path}", json={}), 422)
    assert error["param"] == "name"
    assert (
        "name: A collection's name has 1 to 64 letters (a to z, A to Z), digits, '.', '_' and '-'" in error["message"]
    )


def test_a_collection_is_created_once_and_then_confirmed(client: TestClient, library: InMemory) -> None:
    body = {"model": "tiny", "conditions": [COLOR, SHAPE]}
    created = client.put("/collections/birds", json=body)
    assert created.status_code == 201
    assert created.json()["name"] == "birds"
    assert (library.model, library.conditions) == ("tiny", [COLOR, SHAPE])
    confirmed = client.put("/collections/birds")
    assert confirmed.status_code == 200
    assert confirmed.json() == created.json() == client.get("/collections/birds").json()
    assert (library.model, library.conditions) == (None, [])


def test_what_moves_here_keeps_its_time_and_a_collection_tells_which_changes_it_takes(client: TestClient) -> None:
    made = client.put("/collections/birds", json={"access": "copy", "created": 1600000000.5})
    assert made.json()["access"] == "copy"
    images = [{"id": "a", "image": as_base64(PHOTO), "created": 1500000000}]
    assert client.post("/collections/birds/images?fill=true", json={"images": images}).status_code == 201
    assert client.get("/collections/birds/images").json()["data"][0]["created"] == 1500000000
    for body in ({"access": "closed"}, {"created": -1}, {"created": "then"}):
        (param,) = body
        assert error_of(client.put("/collections/birds", json=body), 422)["param"] == param


def test_additions_and_deletions_tell_whether_they_fill_a_copy(client: TestClient, library: InMemory) -> None:
    for query, fills in (("", False), ("?fill=true", True)):
        add = client.post(f"/collections/things/images{query}", files={"file": ("a.png", PHOTO)})
        assert (add.status_code, library.fills) == (201, fills)
        library.fills = not fills
        deletion = client.delete(f"/collections/things/images/a.png{query}")
        assert (deletion.status_code, library.fills) == (204, fills)


def test_a_collection_tells_its_size_and_how_far_each_index_is(client: TestClient) -> None:
    client.post("/collections/things/images", files={"file": ("a.png", PHOTO)})
    collection = client.get("/collections/things").json()
    assert collection == {
        "object": "collection",
        "name": "things",
        "model": "tiny",
        "created": 1700000000,
        "access": "open",
        "size": 1,
        "bytes": len(PHOTO),
        "state": "building",
        "conditions": [
            {
                "condition": None,
                "state": "ready",
                "kind": "flat",
                "indexed": 2,
                "waiting": 0,
                "bytes": 192,
                "exact": True,
                "recall_at_10": None,
                "pinned": False,
            },
            {
                "condition": COLOR,
                "state": "building",
                "kind": "ivf",
                "indexed": 1,
                "waiting": 1,
                "bytes": 96,
                "exact": False,
                "recall_at_10": 0.98,
                "pinned": False,
            },
        ],
        "image_states": {"images": 1, "bytes": 64, "bytes_per_image": 64, "max_bytes": 4096},
    }
    listed = {"object": "list", "data": [collection], "unavailable": []}
    assert client.get("/collections").json() == listed


def test_image_states_are_null_where_there_are_none(client: TestClient) -> None:
    assert client.get("/collections/things").json()["image_states"] is None


def test_a_deleted_collection_is_gone(client: TestClient) -> None:
    response = client.delete("/collections/things")
    assert (response.status_code, response.content) == (204, b"")
    assert client.get("/collections").json()["data"] == []
    error_of(client.get("/collections/things"), 404)


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("GET", "", {}),
        ("DELETE", "", {}),
        ("GET", "/images", {}),
        ("POST", "/images", {"files": {"file": PHOTO}}),
        ("GET", "/images/a", {}),
        ("DELETE", "/images/a", {}),
        ("PATCH", "/images/a", {"json": {"metadata": {}}}),
        ("POST", "/search", {"json": {"text": "a"}}),
    ],
)
def test_an_unknown_collection_is_named(client: TestClient, method: str, path: str, options: dict[str, Any]) -> None:
    error = error_of(client.request(method, f"/collections/nothing{path}", **options), 404)
    assert "'nothing'" in error["message"]


@pytest.mark.parametrize(
    "path", ["/collections", "/collections/things", "/collections/things/images", "/collections/things/images/a/b.png"]
)
def test_every_path_answers_with_the_version_in_front(client: TestClient, path: str) -> None:
    client.post("/v1/collections/things/images", json={"images": [{"id": "a/b.png", "image": as_base64(PHOTO)}]})
    plain, versioned = client.get(path), client.get(f"/v1{path}")
    assert plain.status_code == versioned.status_code == 200
    assert plain.content == versioned.content
    searched = client.post("/v1/collections/things/search", json={"text": "a"})
    assert searched.status_code == 200


@pytest.mark.parametrize(
    ("options", "status", "param"),
    [
        ({"json": {"conditions": COLOR}}, 422, "conditions"),
        ({"json": {"conditions": [COLOR, 3]}}, 422, "conditions.1"),
        ({"json": {"model": 3}}, 422, "model"),
        ({"json": {"condition": [COLOR]}}, 422, "condition"),
        ({"params": {"conditions": COLOR}}, 422, "conditions"),
        ({"json": []}, 422, None),
        ({"json": {"conditions": ["a", "b", "c", "d"]}}, 413, "conditions"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, None),
        ({"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 400, None),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, None),
    ],
)
def test_a_creation_that_does_not_fit_makes_nothing(
    client: TestClient, library: InMemory, options: dict[str, Any], status: int, param: str | None
) -> None:
    assert error_of(client.put("/collections/birds", **options), status)["param"] == param
    assert "birds" not in library.stored


def test_the_metadata_of_an_image_is_patched_and_told(filled: TestClient) -> None:
    response = filled.patch("/collections/things/images/03.png", json={"metadata": {"n": 4, "seen": [1]}})
    assert response.status_code == 200
    (listed,) = (one for one in filled.get("/collections/things/images").json()["data"] if one["id"] == "03.png")
    assert response.json() == listed
    assert listed["metadata"] == {"n": 4, "seen": [1]}


@pytest.mark.parametrize(
    ("options", "status", "param"),
    [
        ({"json": {}}, 422, "metadata"),
        ({"json": {"metadata": None}}, 422, "metadata"),
        ({"json": {"metadata": [1]}}, 422, "metadata"),
        ({"json": {"metadata": {}, "id": "b"}}, 422, "id"),
        ({"json": {"metadata": {}}, "params": {"fill": True}}, 422, "fill"),
        ({"content": "{", "headers": {"content-type": "application/json"}}, 400, None),
        ({"content": PHOTO, "headers": {"content-type": "image/png"}}, 415, None),
        ({"data": {"metadata": "{}"}}, 415, None),
    ],
)
def test_a_patch_that_is_none_is_refused(
    filled: TestClient, options: dict[str, Any], status: int, param: str | None
) -> None:
    assert error_of(filled.patch("/collections/things/images/03.png", **options), status)["param"] == param


def test_a_patch_may_have_the_media_type_of_a_merge_patch(filled: TestClient) -> None:
    headers = {"content-type": "application/merge-patch+json"}
    path, changes = "/collections/things/images/03.png", b'{"metadata": {"n": 4}}'
    assert filled.patch(path, content=changes, headers=headers).json()["metadata"] == {"n": 4}
    described = filled.get("/openapi.json").json()["paths"]["/collections/{name}/images/{id}"]["patch"]
    assert set(described["requestBody"]["content"]) == {"application/json", "application/merge-patch+json"}
    other = filled.patch(path, content=changes, headers={"content-type": "application/json-patch+json"})
    assert "application/json or application/merge-patch+json" in error_of(other, 415)["message"]


@pytest.mark.parametrize(
    ("path", "options", "param"),
    [
        ("images", {"json": {"images": [{"image": "AAAA", "metdata": {}}]}}, "images.0.metdata"),
        ("images", {"json": {"images": [], "wait": True}}, "wait"),
        ("images", {"files": {"file": ("a.png", PHOTO)}, "data": {"metdata": "{}"}}, "metdata"),
        ("images", {"files": {"file": ("a.png", PHOTO)}, "params": {"wiat": "true"}}, "wiat"),
        ("search", {"json": {"text": "a", "conditon": COLOR}}, "conditon"),
        ("search", {"json": {"text": "a"}, "params": {"top_k": 5}}, "top_k"),
        ("search", {"files": {"file": PHOTO}, "data": {"filters": "{}"}}, "filters"),
    ],
)
def test_a_field_that_a_route_has_not_is_refused(
    client: TestClient, library: InMemory, path: str, options: dict[str, Any], param: str
) -> None:
    error = error_of(client.post(f"/collections/things/{path}", **options), 422)
    assert error["param"] == param
    assert "Unknown field; " in error["message"]
    assert not library.added


# --- adding images ---


def test_a_form_adds_each_file_under_its_name_with_its_metadata(client: TestClient, library: InMemory) -> None:
    response = client.post(
        "/collections/things/images",
        files=[
            ("file", ("a.png", PHOTO, "image/png")),
            ("file", ("sub/ü b.jpg", OTHER, "image/jpeg")),
            ("file", ("c.png", PHOTO)),
        ],
        data={"metadata": json.dumps({"sub/ü b.jpg": {"color": "blue", "size": 3}, "c.png": {}})},
    )
    assert response.status_code == 201
    assert response.json() == {"added": 2, "unchanged": 1, "ids": ["a.png", "sub/ü b.jpg", "c.png"]}
    assert [image.id for image in library.added] == ["a.png", "sub/ü b.jpg", "c.png"]
    assert [bytes_of(image) for image in library.added] == [PHOTO, OTHER, PHOTO]
    assert [image.metadata for image in library.added] == [None, {"color": "blue", "size": 3}, {}]
    assert [image.param for image in library.added] == ["file.0", "file.1", "file.2"]
    assert [image.image.param for image in library.added] == ["file.0", "file.1", "file.2"]


def test_the_metadata_of_a_form_may_be_a_file_and_larger_than_other_fields(
    client: TestClient, library: InMemory
) -> None:
    metadata = {"a.png": {"text": "x" * 200_000}}
    part = ("meta.json", json.dumps(metadata), "application/json")
    for form in (
        {"files": [("file", ("a.png", PHOTO)), ("metadata", part)]},
        {"files": [("file", ("a.png", PHOTO))], "data": {"metadata": json.dumps(metadata)}},
    ):
        response = client.post("/collections/things/images", **form)
        assert response.status_code == 201, response.text
        assert library.added[0].metadata == metadata["a.png"]


def test_a_file_without_a_name_has_no_id_of_its_own(client: TestClient, library: InMemory) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename=""\r\n\r\n' + PHOTO + b"\r\n--b--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = client.post("/collections/things/images", content=body, headers=headers)
    assert response.json()["ids"] == [hashlib.sha256(PHOTO).hexdigest()]
    assert library.added[0].id is None


def test_a_file_without_a_name_can_have_no_metadata_in_a_form(client: TestClient, library: InMemory) -> None:
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename=""\r\n\r\n' + PHOTO + b"\r\n"
    metadata = b'--b\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n{"": {"n": 1}}\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = client.post("/collections/things/images", content=file + metadata, headers=headers)
    assert error_of(response, 422)["param"] == "metadata."
    assert not library.added


def test_json_adds_images_with_or_without_ids_and_metadata(client: TestClient, library: InMemory) -> None:
    images = [
        {"id": "a", "image": as_base64(PHOTO), "metadata": {"n": [1, {"deep": None}]}},
        {"image": f"data:image/jpeg;base64,{as_base64(OTHER)}"},
        {"id": None, "image": as_base64(PHOTO), "metadata": None},
    ]
    response = client.post("/collections/things/images", json={"images": images})
    assert response.status_code == 201
    assert [image.id for image in library.added] == ["a", None, None]
    assert [bytes_of(image) for image in library.added] == [PHOTO, OTHER, PHOTO]
    assert [image.metadata for image in library.added] == [{"n": [1, {"deep": None}]}, None, None]
    assert [image.param for image in library.added] == ["images.0", "images.1", "images.2"]
    assert [image.image.param for image in library.added] == ["images.0.image", "images.1.image", "images.2.image"]


@pytest.mark.parametrize("image_id", [None, "one", "sub/ü b.png"])
def test_a_body_that_is_an_image_takes_its_id_from_the_url(
    client: TestClient, library: InMemory, image_id: str | None
) -> None:
    response = client.post(
        "/collections/things/images",
        params={} if image_id is None else {"id": image_id},
        content=PHOTO,
        headers={"content-type": "image/png"},
    )
    assert response.status_code == 201
    (image,) = library.added
    assert (image.id, bytes_of(image), image.metadata, image.param) == (image_id, PHOTO, None, "body")


@pytest.mark.parametrize(("query", "waits"), [("", False), ("?wait=true", True), ("?wait=false", False)])
@pytest.mark.slow
def test_adding_waits_for_the_indexes_where_that_is_asked(
    client: TestClient, library: InMemory, query: str, waits: bool
) -> None:
    response = client.post(f"/collections/things/images{query}", files={"file": ("a.png", PHOTO)})
    assert response.status_code == 201
    assert library.waited == waits
    assert library.deadline > 0
    assert "store;dur=" in response.headers["server-timing"]


BROKEN = {"image": "?"}
GOOD = {"image": as_base64(PHOTO)}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "images"),
        ({"images": []}, 422, "images"),
        ({"images": GOOD}, 422, "images"),
        ({"images": [GOOD, {}]}, 422, "images.1.image"),
        ({"images": [GOOD, {"image": 3}]}, 422, "images.1.image"),
        ({"images": [GOOD, GOOD, GOOD, {**GOOD, "id": 3}]}, 422, "images.3.id"),
        ({"images": [GOOD, {**GOOD, "metadata": "red"}]}, 422, "images.1.metadata"),
        ({"images": [GOOD, GOOD, GOOD, BROKEN]}, 400, "images.3.image"),
        ({"images": [GOOD, {"image": {"id": "nowhere"}}]}, 422, "images.1.image"),
        ({"images": [{"image": as_base64(bytes(100_001))}]}, 413, "images.0.image"),
        ({"images": [GOOD] * 9}, 413, "images"),
    ],
)
def test_images_in_json_that_do_not_fit_are_named_and_nothing_is_added(
    client: TestClient, library: InMemory, body: Any, status: int, param: str | None
) -> None:
    assert error_of(client.post("/collections/things/images", json=body), status)["param"] == param
    assert not library.added


@pytest.mark.parametrize(
    ("metadata", "status", "param"),
    [
        (["{"], 400, "metadata"),
        (["[]"], 422, "metadata"),
        (["3"], 422, "metadata"),
        (['{"a.png": 3}'], 422, "metadata.a.png"),
        (['{"b.png": {}}'], 422, "metadata.b.png"),
        (['{"": {}}'], 422, "metadata."),
        (["{}", "{}"], 422, "metadata"),
    ],
)
def test_metadata_of_a_form_that_does_not_fit_is_named_and_nothing_is_added(
    client: TestClient, library: InMemory, metadata: list[str], status: int, param: str
) -> None:
    form: dict[str, Any] = {"files": [("file", ("a.png", PHOTO))], "data": {"metadata": metadata}}
    assert error_of(client.post("/collections/things/images", **form), status)["param"] == param
    assert not library.added


def test_more_images_than_the_limit_are_refused_naming_both(client: TestClient, library: InMemory) -> None:
    assert client.post("/collections/things/images", files=[("file", ("a", PHOTO))] * 8).status_code == 201
    library.added = ()
    forms: dict[str, Any] = {
        "file": {"files": [("file", ("a", PHOTO))] * 9},
        "images": {"json": {"images": [GOOD] * 9}},
    }
    for param, form in forms.items():
        error = error_of(client.post("/collections/things/images", **form), 413)
        assert error["message"] == f"{param}: The request asks for 9 images; the limit is 8."
        assert error["param"] == param
    message = error_of(client.post("/collections/things/images", files=[("file", PHOTO)] * 265), 413)["message"]
    assert "265 parts; the limit is 264" in message
    assert not library.added


@pytest.mark.parametrize("path", ["images", "search"])
def test_other_content_types_are_refused_saying_what_to_send(client: TestClient, path: str) -> None:
    for content_type in ("", "text/plain", "application/octet-stream"):
        response = client.post(f"/collections/things/{path}", content=PHOTO, headers={"content-type": content_type})
        error = error_of(response, 415)
        assert "image/*, multipart/form-data or application/json" in error["message"]
        assert "looks like an image" in error["message"]


@pytest.mark.parametrize("path", ["images", "search"])
def test_malformed_bodies_are_a_400(client: TestClient, path: str) -> None:
    for content_type in ("application/json", "multipart/form-data; boundary=b", "multipart/form-data"):
        for content in (b"", b"{", b"[" * 100_000, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx'):
            response = client.post(
                f"/collections/things/{path}", content=content, headers={"content-type": content_type}
            )
            error_of(response, 400)


@pytest.mark.parametrize("path", ["images", "search"])
def test_a_form_without_a_file_is_refused(client: TestClient, path: str) -> None:
    url = f"/collections/things/{path}"
    assert error_of(client.post(url, files={"image": PHOTO}), 422)["param"] == "file"
    assert error_of(client.post(url, files={"file": (None, "text")}), 422)["param"] == "file.0"


@pytest.mark.parametrize("image_id", ["../a.png", "a//b", "x" * 257, "a\nb"])
def test_an_impossible_id_in_the_url_or_of_a_file_is_named(
    client: TestClient, library: InMemory, image_id: str
) -> None:
    url = "/collections/things/images"
    bare = client.post(url, params={"id": image_id}, content=PHOTO, headers={"content-type": "image/png"})
    assert error_of(bare, 422)["param"] == "id"
    if image_id.isprintable():  # a client escapes the others
        form = client.post(url, files=[("file", ("a.png", PHOTO)), ("file", (image_id, PHOTO))])
        assert error_of(form, 422)["param"] == "file.1"
    assert not library.added


def test_an_id_in_the_url_contradicts_a_body_that_may_hold_several(client: TestClient, library: InMemory) -> None:
    for form in ({"files": {"file": ("a.png", PHOTO)}}, {"json": {"images": [GOOD]}}):
        response = client.post("/collections/things/images?id=a", **form)
        assert error_of(response, 400)["param"] == "id"
    assert not library.added


# --- images that are there ---


def test_a_listing_tells_what_is_known_of_each_image(filled: TestClient) -> None:
    listing = filled.get("/collections/things/images", params={"limit": 1}).json()
    digest = hashlib.sha256(PHOTO).hexdigest()
    entry = {"id": "00.png", "bytes": len(PHOTO), "sha256": digest, "metadata": {"n": 0}, "created": 1700000001}
    assert listing == {"object": "list", "data": [entry], "has_more": True}


@pytest.mark.parametrize("limit", [1, 3, 7, 8, 9, 1000])
def test_pages_hold_every_image_once_in_order(filled: TestClient, limit: int) -> None:
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = filled.get("/collections/things/images", params={"limit": limit, **after}).json()
        found += [image["id"] for image in page["data"]]
        assert page["has_more"] == (len(found) < 8)
        if not page["has_more"]:
            break
        assert len(page["data"]) == limit
        after = {"after": found[-1]}
    assert found == [f"{n:02}.png" for n in range(8)]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "many", ""])
def test_a_page_of_an_impossible_size_is_refused(filled: TestClient, limit: str) -> None:
    assert error_of(filled.get("/collections/things/images", params={"limit": limit}), 422)["param"] == "limit"


@pytest.mark.parametrize("kind", every_kind())
@pytest.mark.slow
def test_an_image_comes_back_byte_by_byte_with_its_type(client: TestClient, kind: str) -> None:
    data = every_kind()[kind]
    added = client.post("/collections/things/images", files={"file": ("a", data, "application/octet-stream")})
    assert added.status_code == 201
    response = client.get("/collections/things/images/a")
    assert response.content == data
    assert kind.startswith(response.headers["content-type"].removeprefix("image/"))
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["etag"] == f'"{hashlib.sha256(data).hexdigest()}"'


def test_an_image_that_the_client_has_is_not_sent_again(filled: TestClient) -> None:
    url = "/collections/things/images/00.png"
    etag = filled.get(url).headers["etag"]
    for known in (etag, f"W/{etag}", f'"another", {etag}', "*"):
        response = filled.get(url, headers={"if-none-match": known})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
    assert filled.get(url, headers={"if-none-match": '"another"'}).content == PHOTO


@pytest.mark.parametrize(
    ("image_id", "path"),
    [
        ("a b.png", "a%20b.png"),
        ("sub/folder/a.png", "sub/folder/a.png"),
        ("sub/folder/a.png", "sub%2Ffolder%2Fa.png"),
        ("ü/日本.png", "%C3%BC/%E6%97%A5%E6%9C%AC.png"),
        ("what?#&=+.png", "what%3F%23%26%3D%2B.png"),
        ("images", "images"),
        ("x/search", "x/search"),
    ],
)
def test_ids_stand_in_paths_percent_encoded_or_with_their_slashes(
    client: TestClient, library: InMemory, image_id: str, path: str
) -> None:
    added = client.post("/collections/things/images", json={"images": [{"id": image_id, **GOOD}]})
    assert added.json()["ids"] == [image_id]
    assert client.get(f"/collections/things/images/{path}").content == PHOTO
    assert client.delete(f"/collections/things/images/{path}").status_code == 204
    assert not library.stored["things"]
    for method in ("GET", "DELETE"):
        message = error_of(client.request(method, f"/collections/things/images/{path}"), 404)["message"]
        assert repr(image_id) in message


# --- the document ---


def test_the_openapi_document_describes_every_route_and_form(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {(path, method) for path, methods in paths.items() for method in methods if "/collections" in path} == {
        ("/collections", "get"),
        ("/collections/{name}", "put"),
        ("/collections/{name}", "get"),
        ("/collections/{name}", "delete"),
        ("/collections/{name}/images", "post"),
        ("/collections/{name}/images/{id}", "patch"),
        ("/collections/{name}/images", "get"),
        ("/collections/{name}/images/{id}", "get"),
        ("/collections/{name}/images/{id}", "delete"),
        ("/collections/{name}/search", "post"),
    }
    forms = {"image/*", "multipart/form-data", "application/json"}
    add, search = paths["/collections/{name}/images"]["post"], paths["/collections/{name}/search"]["post"]
    assert set(add["requestBody"]["content"]) == set(search["requestBody"]["content"]) == forms
    assert set(paths["/collections/{name}"]["put"]["requestBody"]["content"]) == {"application/json"}
    assert {"200", "201"} <= set(paths["/collections/{name}"]["put"]["responses"])
    bounds = search["requestBody"]["content"]["application/json"]["schema"]["properties"]["k"]["anyOf"][0]
    assert (bounds["minimum"], bounds["maximum"]) == (1, 50)
