"""Reranking over HTTP: every dialect's request, its answer, and everything that is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.generate.generation.ranking import Ranking
from services.generate.http.rerank_routes import (
    RerankRequest,
    TeiRerankRequest,
    render_answer,
    render_answer_v2,
    render_tei,
)
from services.generate.prompts.templates import shorten
from services.generate.service import Ranked
from tests.generate.served_tiny import CONTEXT, MODEL, served_tiny
from tests.generate.tiny_models import tiny_tokenizer

QUERY = "who kept the lighthouse?"
DOCUMENTS = [
    "The harbour was built by the people of the island.",
    "The keeper of the lighthouse was called Ada.",
    "The people fished and traded with the mainland.",
]
METHODS = ["calibrated", "attention", "query_likelihood", "relevance_prompt"]
PATHS = ["/v1/rerank", "/v2/rerank"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served_tiny(tmp_path_factory.mktemp("rerank"), max_documents=20) as client:
        yield client


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, **fields}


def answer_to(client: TestClient, path: str = "/v1/rerank", **fields: Any) -> Any:
    response = client.post(path, json=asked(**fields))
    assert response.status_code == 200, response.text
    return response.json()


def indices(answer: Any) -> list[int]:
    return [one["index"] for one in answer["results"]]


def scores(answer: Any) -> list[float]:
    return [one["relevance_score"] for one in answer["results"]]


# --- what is answered ---


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_every_method_ranks_all_documents_from_best_to_worst(client: TestClient, method: str) -> None:
    answer = answer_to(client, method=method)
    assert answer["model"].startswith(f"{MODEL}@")
    assert sorted(indices(answer)) == [0, 1, 2]
    assert scores(answer) == sorted(scores(answer), reverse=True)
    assert all(0 <= score <= 1 for score in scores(answer))
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > len(DOCUMENTS)


@pytest.mark.slow
def test_methods_rank_by_different_numbers(client: TestClient) -> None:
    told = [tuple(one["relevance_score"] for one in answer_to(client, method=method)["results"]) for method in METHODS]
    assert len(set(told)) == len(METHODS)
    assert answer_to(client)["results"] == answer_to(client, method="calibrated")["results"]


def test_each_version_has_its_own_form(client: TestClient) -> None:
    first, second = (answer_to(client, path, return_documents=True) for path in PATHS)
    assert set(first) == {"id", "model", "results", "usage", "meta"}
    assert set(second) == {"id", "results", "meta"}
    assert [one["document"]["text"] for one in first["results"]] == [
        DOCUMENTS[one["index"]] for one in first["results"]
    ]
    assert second["results"] == [{k: v for k, v in one.items() if k != "document"} for one in first["results"]]
    assert (first["meta"]["api_version"]["version"], second["meta"]["api_version"]["version"]) == ("1", "2")
    assert first["id"] != second["id"]


def test_documents_come_back_as_they_were_sent_unless_they_are_not_wanted(client: TestClient) -> None:
    nested: Any = 1
    for _ in range(250):
        nested = [nested]
    other: Any = {"page": 2**64 - 1, "tags": ["a", None, "☃"], "nested": nested, "text": "Ada."}
    documents: list[Any] = [other, {"title": "The harbour", "text": "It was built."}, "The people fished."]
    sent = [other, documents[1], {"text": "The people fished."}]
    for result in answer_to(client, documents=documents)["results"]:
        assert result["document"] == sent[result["index"]]
    assert all("document" not in one for one in answer_to(client, return_documents=False)["results"])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize(
    ("field", "nearest"),
    [("topn", "top_n"), ("top_k", "top_n"), ("return_document", "return_documents"), ("metod", "method")],
)
def test_a_field_spelt_nearly_right_is_refused(client: TestClient, path: str, field: str, nearest: str) -> None:
    for value in (1, None):
        response = client.post(path, json=asked(**{field: value}))
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (422, field)
        assert error["message"].endswith(f"the nearest that is known is {nearest}.")
    others = {"activation": None, "max_chunks_per_doc": 10, "truncation": True, "priority": 1, "user": "a"}
    assert client.post(path, json=asked(**others)).status_code == 200


def test_teis_fields_spelt_nearly_right_are_refused_in_its_own_form(client: TestClient) -> None:
    response = client.post("/v1/rerank", json={"query": QUERY, "texts": ["a", "b"], "raw_score": True})
    assert response.status_code == 422
    assert response.json()["error"] == "raw_score: Unknown field; the nearest that is known is raw_scores."


def test_a_title_is_read_with_its_text(client: TestClient) -> None:
    plain = answer_to(client, documents=[{"text": text} for text in DOCUMENTS])
    assert plain["results"] == answer_to(client)["results"]
    titled = answer_to(client, documents=[{"text": text, "title": "The lighthouse"} for text in DOCUMENTS])
    assert titled["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (2, 2), (99, 3), (0, 3), (None, 3)])
def test_the_best_are_as_many_as_are_asked_for(client: TestClient, top_n: int | None, count: int) -> None:
    everyone = indices(answer_to(client))
    for path in PATHS:
        assert indices(answer_to(client, path, top_n=top_n)) == everyone[:count]


@pytest.mark.slow
def test_a_document_that_is_asked_to_be_cut_ranks_as_what_is_left_of_it(client: TestClient) -> None:
    long = "Ada kept the lighthouse. " * 30
    left = shorten(tiny_tokenizer(), long, 12)
    assert left is not None
    for path in PATHS:
        answer = answer_to(client, path, documents=[DOCUMENTS[0], long], max_tokens_per_doc=12, return_documents=True)
        alone = answer_to(client, path, documents=[DOCUMENTS[0], left])
        assert indices(answer) == indices(alone)
        assert scores(answer) == pytest.approx(scores(alone))
        (warning,) = answer["meta"]["warnings"]
        assert warning.endswith("document 1.")
        assert "warnings" not in answer_to(client, path, max_tokens_per_doc=1000)["meta"]
    # the document comes back whole: only the model read less of it
    whole = answer_to(client, documents=[DOCUMENTS[0], long], max_tokens_per_doc=12)["results"]
    assert {one["document"]["text"] for one in whole} == {DOCUMENTS[0], long}


@pytest.mark.slow
def test_tei_has_its_own_form_at_the_same_path(client: TestClient) -> None:
    jina = answer_to(client)["results"]
    response = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS})
    assert response.json() == [{"index": one["index"], "score": one["relevance_score"]} for one in jina]
    assert int(response.headers["x-compute-tokens"]) == answer_to(client)["usage"]["prompt_tokens"]
    assert int(response.headers["x-compute-characters"]) == sum(map(len, [QUERY, *DOCUMENTS]))
    with_texts = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "return_text": True}).json()
    assert [one["text"] for one in with_texts] == [DOCUMENTS[one["index"]] for one in with_texts]
    raw = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json()
    assert [one["index"] for one in raw] == [one["index"] for one in jina]
    assert [one["score"] for one in raw] != [one["relevance_score"] for one in jina]


# --- what is refused ---


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"documents": []}, 400, "documents"),
        ({"query": ""}, 422, "query"),
        ({"query": None}, 422, "query"),
        ({"documents": ["a", 1]}, 422, "documents.1"),
        ({"documents": [{"title": "a"}]}, 422, "documents.0.text"),
        ({"documents": [{"text": "a", "other": json.loads("[" * 300 + "]" * 300)}]}, 422, "documents.0"),
        ({"documents": ["a"] * 21}, 413, "documents"),
        ({"top_n": -1}, 422, "top_n"),
        ({"max_tokens_per_doc": 0}, 422, "max_tokens_per_doc"),
        ({"method": "bm25"}, 422, "method"),
        ({"methods": "attention"}, 422, "methods"),
        ({"rank_fields": ["text", "author"]}, 400, "rank_fields"),
        ({"truncate_prompt_tokens": 5}, 400, "truncate_prompt_tokens"),
        ({"model": "rerank-v3.5"}, 404, "model"),
        ({"documents": ["lighthouse " * CONTEXT]}, 413, "documents"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name_with_a_detail(
    client: TestClient, path: str, fields: dict[str, Any], status: int, param: str
) -> None:
    response = client.post(path, json=asked(**fields))
    assert response.status_code == status, response.text
    told = response.json()
    assert told["error"]["param"] == param
    assert told["detail"] == told["error"]["message"]
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", PATHS)
def test_bodies_that_are_none_are_refused_with_a_detail(client: TestClient, path: str) -> None:
    half_a_character = b'{"query": "q", "documents": ["a\\ud800b"]}'
    for content, status in ((b"{", 400), (half_a_character, 400), (b"[]", 422), (b'"texts"', 422), (b"", 422)):
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code == status, response.text
        assert response.json()["detail"] == response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"texts": []}, 400),
        ({"texts": "one"}, 422),
        ({"texts": [{"text": "one"}]}, 422),
        ({"query": ""}, 422),
        ({"texts": ["a"] * 21}, 413),
        ({"texts": ["lighthouse " * CONTEXT], "truncate": True}, 413),
    ],
)
def test_tei_is_told_in_its_own_form(client: TestClient, fields: dict[str, Any], status: int) -> None:
    response = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, **fields})
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error", "error_type"}
    assert response.json()["error_type"] == "Validation"


# --- the pieces ---

RANKING = Ranking((-3.0, 5.0, 0.5), (0.0, 0.9, 0.1), (1, 2, 0), 40)
RANKED = Ranked(RANKING, "m")


def test_a_search_unit_is_a_hundred_documents() -> None:
    def units(count: int) -> int:
        body = RerankRequest(query="q", documents=["a"] * count)
        meta: dict[str, Any] = render_answer_v2(body, RANKED, id="1")["meta"]
        return int(meta["billed_units"]["search_units"])

    assert [units(count) for count in (3, 100, 101)] == [1, 1, 2]


def test_scores_stand_in_the_ranking_s_order_and_raw_ones_only_where_asked_for() -> None:
    body = RerankRequest(query="q", documents=["a", "b", "c"], top_n=2, return_documents=False)
    assert render_answer(body, RANKED, id="1")["results"] == [
        {"index": 1, "relevance_score": 0.9},
        {"index": 2, "relevance_score": 0.1},
    ]
    tei = TeiRerankRequest(query="q", texts=["a", "b", "c"], raw_scores=True, return_text=True)
    assert render_tei(tei, RANKING)[0] == {"index": 1, "score": 5.0, "text": "b"}


@pytest.mark.parametrize(
    "text", ["The keeper of the lighthouse was called Ada.", "Ωmega ☃ 雪だるま 🏔️ é", "   ", "Ada " * 60]
)
def test_texts_are_cut_on_token_and_character_borders(text: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer(text, add_special_tokens=False).input_ids
    for max_tokens in range(1, len(ids)):
        left = shorten(tokenizer, text, max_tokens)
        assert left is not None
        assert text.startswith(left)
        kept = tokenizer(left, add_special_tokens=False).input_ids
        assert kept == ids[: len(kept)]
        assert max_tokens - 4 < len(kept) <= max_tokens  # a character has four bytes at most
    assert shorten(tokenizer, text, len(ids)) is None


def test_what_is_left_of_a_long_text_does_not_depend_on_its_rest() -> None:
    text = "The people fished and traded with the mainland. " * 400
    expected = shorten(tiny_tokenizer(), text[:4000], 50)
    assert shorten(tiny_tokenizer(), text, 50) == expected
    assert shorten(tiny_tokenizer(), text + "!" * 10**6, 50) == expected
