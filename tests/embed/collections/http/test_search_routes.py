"""The wire of a search: every form of a query, what the library is asked, and everything that is refused."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.core.images.inputs import ImageInput
from services.core.images.references import ImageUrl
from services.core.images.references import StoredImage as StoredImageReference
from services.embed.call import TextInput
from services.embed.collections.answers import SearchQuery
from tests.embed.collections.in_memory import COLOR, MODEL, PHOTO, SHAPE, InMemory, as_base64, error_of


def query_of(library: InMemory) -> SearchQuery:
    assert library.query is not None
    return library.query


def test_a_search_answers_its_hits_and_which_index_gave_them(filled: TestClient) -> None:
    response = filled.post("/collections/things/search", json={"text": "red", "condition": COLOR})
    assert response.status_code == 200
    body = response.json()
    hits = body.pop("results")
    assert hits[:2] == [
        {"id": "00.png", "score": 0.875, "metadata": {"n": 0}},
        {"id": "01.png", "score": 0.75, "metadata": {"n": 1}},
    ]
    index = {
        "condition": COLOR,
        "kind": "ivf",
        "size": 1,
        "exact": False,
        "state": "building",
        "recall_at_10": 0.98,
    }
    assert body == {"object": "search", "model": MODEL, "condition": COLOR, "index": index}
    assert response.headers["x-fovea-model"] == MODEL


def test_a_score_is_a_cosine_where_rounding_makes_a_dot_product_longer_than_one(
    filled: TestClient, library: InMemory
) -> None:
    library.cosine = lambda image: 1.0000001192092896 if image.row == 1 else -1.0000001192092896
    hits = filled.post("/collections/things/search", json={"text": "red"}).json()["results"]
    assert [hit["score"] for hit in hits] == [1.0] + [-1.0] * 7


def test_the_query_may_be_the_body_with_everything_else_in_the_url(client: TestClient, library: InMemory) -> None:
    response = client.post(
        "/collections/things/search",
        params={"condition": COLOR, "k": 7, "model": "tiny", "filter": '{"n": [1, 2]}'},
        content=PHOTO,
        headers={"content-type": "image/png"},
    )
    assert response.status_code == 200
    query = query_of(library)
    assert isinstance(query.input, ImageInput)
    assert (query.input.reference, query.input.param) == (PHOTO, "body")
    assert (query.condition, query.k, query.filter, query.model) == (COLOR, 7, {"n": [1, 2]}, "tiny")


def test_the_query_may_be_the_file_of_a_form(client: TestClient, library: InMemory) -> None:
    fields = {"condition": COLOR, "k": "7", "model": "tiny", "filter": '{"n": [1, 2]}'}
    response = client.post("/collections/things/search", files={"file": PHOTO}, data=fields)
    assert response.status_code == 200, response.text
    query = query_of(library)
    assert isinstance(query.input, ImageInput)
    assert (query.input.reference, query.input.param) == (PHOTO, "file.0")
    assert (query.condition, query.k, query.filter, query.model) == (COLOR, 7, {"n": [1, 2]}, "tiny")


def test_of_an_option_given_twice_in_a_form_the_last_counts(client: TestClient, library: InMemory) -> None:
    response = client.post("/collections/things/search", files={"file": PHOTO}, data={"k": ["2", "3"]})
    assert response.status_code == 200, response.text
    assert query_of(library).k == 3


def test_the_query_in_json_is_an_image_a_text_or_a_stored_image(client: TestClient, library: InMemory) -> None:
    options = {"condition": COLOR, "k": 7, "filter": {"n": 1, "kind": ["a", None]}, "model": "tiny"}
    for field, value, reference in (
        ("image", as_base64(PHOTO), PHOTO),
        ("image", "https://example.org/a.png", ImageUrl("https://example.org/a.png")),
        ("image", {"id": "birds/a/b"}, StoredImageReference("birds", "a/b")),
        ("id", "a/b", StoredImageReference("things", "a/b")),
    ):
        assert client.post("/collections/things/search", json={field: value, **options}).status_code == 200
        query = query_of(library)
        assert isinstance(query.input, ImageInput)
        assert (query.input.reference, query.input.param) == (reference, field)
        assert (query.condition, query.k, query.filter, query.model) == (COLOR, 7, options["filter"], "tiny")
    client.post("/collections/things/search", json={"text": "a red bird"})
    query = query_of(library)
    assert query.input == TextInput("a red bird", "text")
    assert (query.condition, query.k, query.filter, query.model) == (None, 10, None, None)


@pytest.mark.parametrize(
    ("in_url", "in_body"),
    [
        ({"condition": COLOR, "k": 3, "model": "tiny"}, {}),
        ({}, {"condition": COLOR, "k": 3, "model": "tiny"}),
        ({}, {"condition": [COLOR], "k": 3, "model": "tiny"}),
        ({"condition": COLOR, "k": 3, "model": "tiny"}, {"condition": COLOR, "k": 3, "model": "tiny"}),
        ({"condition": COLOR, "k": 3, "model": "tiny"}, {"condition": [], "k": None, "model": None}),
    ],
)
def test_options_stand_in_the_url_or_in_the_body_or_agree(
    client: TestClient, library: InMemory, in_url: dict[str, Any], in_body: dict[str, Any]
) -> None:
    response = client.post("/collections/things/search", params=in_url, json={"text": "a", **in_body})
    assert response.status_code == 200, response.text
    query = query_of(library)
    assert (query.condition, query.k, query.model) == (COLOR, 3, "tiny")


@pytest.mark.parametrize(
    ("in_url", "in_body"),
    [('{"n": 1}', None), (None, {"n": 1}), ('{"n": 1}', {"n": 1}), ('{"n": 1}', {}), ("null", {"n": 1})],
)
def test_a_filter_stands_in_the_url_or_in_the_body_or_both_agree(
    client: TestClient, library: InMemory, in_url: str | None, in_body: Any
) -> None:
    params = {} if in_url is None else {"filter": in_url}
    for send in (
        {"json": {"text": "a", "filter": in_body}},
        {"files": {"file": PHOTO}, "data": {} if in_body is None else {"filter": json.dumps(in_body)}},
    ):
        response = client.post("/collections/things/search", params=params, **send)
        assert response.status_code == 200, response.text
        assert query_of(library).filter == {"n": 1}
    refused = client.post(
        "/collections/things/search", params={"filter": '{"n": 2}'}, json={"text": "a", "filter": {"n": 1}}
    )
    assert error_of(refused, 400)["param"] == "filter"


@pytest.mark.parametrize(("param", "one", "other"), [("condition", COLOR, SHAPE), ("k", 3, 4), ("model", "a", "b")])
def test_options_that_contradict_each_other_are_refused(
    client: TestClient, library: InMemory, param: str, one: Any, other: Any
) -> None:
    response = client.post("/collections/things/search", params={param: one}, json={"text": "a", param: other})
    assert error_of(response, 400)["param"] == param
    assert library.query is None


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({}, 422, "image", "image, text and id; the body has none of them"),
        ({"k": 3}, 422, "image", "none of them"),
        ({"image": as_base64(PHOTO), "text": "a"}, 422, "text", "has image and text"),
        ({"image": as_base64(PHOTO), "text": "a", "id": "b"}, 422, "id", "has image and text and id"),
        ({"text": "a", "id": "b"}, 422, "id", "has text and id"),
        ({"text": 3}, 422, "text", "string"),
        ({"image": "?"}, 400, "image", "base64"),
        ({"image": {"id": "no slash"}}, 422, "image", "collection/image-id"),
        ({"text": "a", "condition": [COLOR, SHAPE]}, 422, "condition", "at most one condition, not 2"),
        ({"text": "a", "condition": 3}, 422, "condition", "a text or a list"),
        ({"text": "a", "k": 0}, 422, "k", "greater than or equal to 1"),
        ({"text": "a", "k": -1}, 422, "k", "greater than or equal to 1"),
        ({"text": "a", "k": 51}, 422, "k", "51 results; the limit is 50"),
        ({"text": "a", "k": "many"}, 422, "k", "integer"),
        ({"text": "a", "filter": "red"}, 422, "filter", "object"),
        ({"text": "a", "filter": [1]}, 422, "filter", "object"),
    ],
)
def test_a_search_that_does_not_fit_names_the_field(
    client: TestClient, library: InMemory, body: Any, status: int, param: str, said: str
) -> None:
    error = error_of(client.post("/collections/things/search", json=body), status)
    assert error["param"] == param
    assert said in error["message"]
    assert library.query is None


@pytest.mark.parametrize(
    ("params", "param", "said"),
    [
        ({"k": 0}, "k", "1"),
        ({"k": 51}, "k", "50"),
        ({"k": "x"}, "k", "integer"),
        ({"condition": [COLOR, SHAPE]}, "condition", "not 2"),
        ({"filter": "3"}, "filter", "object"),
    ],
)
@pytest.mark.slow
def test_options_of_the_url_that_do_not_fit_are_named(
    client: TestClient, library: InMemory, params: dict[str, Any], param: str, said: str
) -> None:
    error = error_of(client.post("/collections/things/search", params=params, json={"text": "a"}), 422)
    assert error["param"] == param
    assert said in error["message"]
    assert library.query is None


@pytest.mark.parametrize(
    ("fields", "num_files", "status", "param"),
    [
        ({}, 2, 422, "file.1"),
        ({"condition": [COLOR, SHAPE]}, 1, 422, "condition"),
        ({"k": "0"}, 1, 422, "k"),
        ({"k": "51"}, 1, 422, "k"),
        ({"filter": "{"}, 1, 400, "filter"),
        ({"filter": "3"}, 1, 422, "filter"),
        ({"text": "a red bird"}, 1, 422, "text"),
        ({"image": as_base64(PHOTO)}, 1, 422, "image"),
        ({"text": "a red bird", "id": "a"}, 1, 422, "id"),
    ],
)
def test_a_form_that_does_not_fit_names_the_field(
    client: TestClient, library: InMemory, fields: dict[str, Any], num_files: int, status: int, param: str
) -> None:
    response = client.post("/collections/things/search", files=[("file", PHOTO)] * num_files, data=fields)
    assert error_of(response, status)["param"] == param
    assert library.query is None


def test_more_results_than_the_limit_are_refused_alike_in_the_url_in_json_and_in_a_form(client: TestClient) -> None:
    for send in (
        {"params": {"k": 51}, "json": {"text": "a"}},
        {"json": {"text": "a", "k": 51}},
        {"files": {"file": PHOTO}, "data": {"k": "51"}},
    ):
        error = error_of(client.post("/collections/things/search", **send), 422)
        assert error["param"] == "k"
        assert error["message"] == "k: The request asks for 51 results; the limit is 50."


def test_a_filter_in_the_url_that_is_no_json_is_refused(client: TestClient, library: InMemory) -> None:
    response = client.post(
        "/collections/things/search", params={"filter": "{"}, content=PHOTO, headers={"content-type": "image/png"}
    )
    assert error_of(response, 400)["param"] == "filter"
    assert library.query is None


def test_as_many_results_as_the_limit_may_be_asked_for(client: TestClient, library: InMemory) -> None:
    for params, body in (({"k": 50}, {}), ({}, {"k": 50})):
        assert client.post("/collections/things/search", params=params, json={"text": "a", **body}).status_code == 200
        assert query_of(library).k == 50
