import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from services.core.http.pages import docs_router
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings
from tests.core.served_app import SECRET, create

SETTINGS = ProcessSettings(port=0, max_body_bytes=2000, request_timeout_s=30, max_request_timeout_s=50)
RERANK = {"query": "q", "documents": ["a", {"text": "b"}]}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("served")


@pytest.fixture
def client(metrics: Metrics) -> Iterator[TestClient]:
    with TestClient(create(SETTINGS, metrics=metrics), base_url="http://localhost") as client:
        yield client


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The envelope's inside, after checking its shape and the headers that every error carries."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert "x-request-id" in response.headers
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# Request identity and the headers of every response


def test_a_clients_own_request_id_comes_back(client: TestClient) -> None:
    response = client.get("/ping", headers={"x-request-id": "order 66/a"})
    assert response.headers["x-request-id"] == "order 66/a"


@pytest.mark.parametrize("bad", ["x" * 129, "caf\u00e9", "tab\tbed"])
def test_an_unusable_request_id_is_replaced_by_a_new_one(client: TestClient, bad: str) -> None:
    given = client.get("/ping", headers={b"x-request-id": bad.encode("latin-1")}).headers["x-request-id"]
    assert str(uuid.UUID(given)) == given


def test_errors_carry_the_request_id_too(client: TestClient) -> None:
    assert client.get("/nowhere", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"


def test_a_response_names_its_checkpoint_and_its_stages_in_milliseconds(client: TestClient) -> None:
    response = client.post("/v1/rerank", json=RERANK, headers={"x-request-id": "mine"})
    assert response.json()["request_id"] == "mine"
    assert response.headers["x-fovea-model"] == "shapes@3"
    assert response.headers["server-timing"] == "queue;dur=1.500, infer;dur=250.000"


# Paths


@pytest.mark.parametrize("path", ["/ping", "/v1/ping"])
def test_a_path_answers_with_and_without_its_version(client: TestClient, path: str) -> None:
    assert client.get(path).json() == {"ok": True}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.slow
def test_a_versioned_path_answers_without_its_version_too(client: TestClient, path: str) -> None:
    assert client.post(path, json=RERANK).status_code == 200


def test_another_version_is_another_route(client: TestClient) -> None:
    error_of(client.post("/v2/rerank", json=RERANK), 404)
    error_of(client.get("/v1/v1/ping"), 404)


def test_path_parameters_survive_the_other_spelling(client: TestClient) -> None:
    response = client.put("/v1/items/a%2Bb", files={"file": ("x", b"123")})
    assert response.json() == {"name": "a+b", "size": 3}


def test_the_openapi_document_is_rendered_once() -> None:
    described: list[str] = []

    def describe() -> dict[str, Any]:
        described.append("once")
        return {"openapi": "3.1.0", "paths": {}}

    app = FastAPI(openapi_url=None)
    app.include_router(docs_router("Served", describe))
    with TestClient(app) as client:
        assert [client.get("/openapi.json").json() for _ in range(3)] == [{"openapi": "3.1.0", "paths": {}}] * 3
    assert described == ["once"]


def test_the_openapi_document_has_each_route_once_with_every_status_it_can_give(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    identifiers = [operation["operationId"] for operation in operations]
    assert len(identifiers) == len(set(identifiers))
    assert "/v1/rerank" in document["paths"]
    assert "/rerank" not in document["paths"]
    documented = {*document["paths"]["/v1/rerank"]["post"]["responses"]}
    assert {"200", "400", "404", "405", "413", "415", "422", "429", "500", "503", "504"} <= documented
    envelope = document["paths"]["/v1/rerank"]["post"]["responses"]["422"]["content"]["application/json"]["schema"]
    assert envelope == {"$ref": "#/components/schemas/ErrorEnvelope"}
    own_shape = document["paths"]["/tei"]["post"]["responses"]["422"]["content"]["application/json"]["schema"]
    assert own_shape == {"$ref": "#/components/schemas/TeiError"}


# Errors


def test_an_unknown_route_is_not_found(client: TestClient) -> None:
    assert error_of(client.get("/nowhere"), 404)["type"] == "not_found_error"
    assert "POST /v2/chat" in error_of(client.post("/v1/chat"), 404)["message"]


@pytest.mark.parametrize(
    ("path", "surplus", "rest"),
    [
        ("/v1/v1/chat/completions", "/v1", "/v1/chat/completions"),
        ("/v2/v2/chat", "/v2", "/v2/chat"),
        ("/v1/v2/chat", "/v1", "/v2/chat"),
    ],
)
def test_a_version_that_the_client_adds_to_that_of_its_base_url_is_told(
    client: TestClient, path: str, surplus: str, rest: str
) -> None:
    told = f"Take one {surplus} off the end of the client's base URL: it adds {rest} itself."
    assert error_of(client.post(path), 404)["message"].endswith(told)


@pytest.mark.parametrize("path", ["/v1/v1/messages", "/v1/v1/messages/count_tokens"])
def test_anthropics_clients_are_told_so_in_their_own_form(client: TestClient, path: str) -> None:
    response = client.post(path)
    assert response.status_code == 404
    assert response.json()["type"] == "error"
    error = response.json()["error"]
    assert error["type"] == "not_found_error"
    assert error["message"].endswith(f"Take one /v1 off the end of the client's base URL: it adds {path[3:]} itself.")


def test_a_wrong_method_is_told_which_ones_there_are(client: TestClient) -> None:
    response = client.get("/rerank")
    assert error_of(response, 405)["message"] == "/rerank does not allow GET."
    assert response.headers["allow"] == "POST"


def test_malformed_json_is_a_bad_request_that_says_where(client: TestClient) -> None:
    response = client.post("/v1/rerank", content=b'{"query": ,', headers={"content-type": "application/json"})
    error = error_of(response, 400)
    assert error["type"] == "invalid_request_error"
    assert "at character 10" in error["message"]


def test_json_nested_too_deeply_is_a_bad_request(client: TestClient) -> None:
    app = create(ProcessSettings(port=0))
    with TestClient(app, base_url="http://localhost") as client:
        body = b"[" * 200_000
        error_of(client.post("/v1/rerank", content=body, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": ["a", "b", "c", {"text": 3}]}, "documents.3.text"),
        ({"query": "q", "documents": ["a", {}]}, "documents.1.text"),
        ({"query": "q", "documents": ["a", 7]}, "documents.1"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        (["q"], "body"),
    ],
)
def test_a_field_that_does_not_fit_is_named_without_the_validators_own_words(
    client: TestClient, body: object, param: str
) -> None:
    error = error_of(client.post("/v1/rerank", json=body), 422)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"].startswith(f"{param}: ")


def test_a_missing_body_and_a_missing_parameter_are_named(client: TestClient) -> None:
    assert error_of(client.post("/v1/rerank"), 422)["param"] == "body"
    assert error_of(client.get("/slow"), 422)["param"] == "seconds"
    assert error_of(client.put("/items/a"), 422)["param"] == "file"


def test_a_content_type_that_the_route_does_not_take_is_refused_by_name(client: TestClient) -> None:
    form = client.post("/v1/rerank", content=b"query=q", headers={"content-type": "application/x-www-form-urlencoded"})
    assert "not application/x-www-form-urlencoded" in error_of(form, 415)["message"]
    assert "no content type" in error_of(client.post("/v1/rerank", content=b"{}"), 415)["message"]


def test_a_body_of_another_encoding_is_refused_by_its_name(client: TestClient) -> None:
    response = client.post("/bytes", content=b"x", headers={"content-encoding": "br"})
    assert "Content-Encoding: 'br'" in error_of(response, 415)["message"]
    assert client.post("/bytes", content=b"x", headers={"content-encoding": "identity"}).json() == {"size": 1}


def test_a_defect_says_nothing_of_its_cause_but_under_which_request_it_is_logged(client: TestClient) -> None:
    response = client.get("/fail/defect", headers={"x-request-id": "mine"})
    error = error_of(response, 500)
    assert error["type"] == "internal_error"
    assert "mine" in error["message"]
    assert SECRET not in response.text
    assert response.headers["x-should-retry"] == "false"


def test_an_overloaded_service_says_when_to_come_back(client: TestClient) -> None:
    response = client.get("/fail/overloaded")
    assert error_of(response, 503)["code"] == "queue_full"
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("1", "250")
    assert "x-should-retry" not in response.headers


def test_no_client_is_sent_away_for_longer_than_it_will_wait(client: TestClient) -> None:
    assert client.get("/fail/rate").headers["retry-after"] == "120"


def test_an_error_keeps_its_parameter(client: TestClient) -> None:
    assert error_of(client.get("/fail/missing"), 404)["param"] == "name"


def test_text_that_is_no_unicode_does_not_break_the_error_itself(client: TestClient) -> None:
    assert "not text" in error_of(client.get("/fail/surrogate"), 400)["message"]


def test_a_route_class_chooses_the_shape_of_its_errors_validation_included(client: TestClient) -> None:
    busy = client.post("/tei", json={"text": "a"})
    assert (busy.status_code, busy.json()) == (503, {"error": "busy", "error_type": "Overloaded"})
    assert client.post("/tei", json={}).json()["error_type"] == "Validation"
    malformed = client.post("/tei", content=b"{", headers={"content-type": "application/json"})
    assert malformed.status_code == 400
    assert set(malformed.json()) == {"error", "error_type"}


def test_a_handler_chooses_the_shape_once_it_knows_its_client(client: TestClient) -> None:
    assert client.get("/fail-as-client-asked").json() == {"detail": "nothing here"}


def test_a_failure_in_the_middle_of_an_event_stream_is_its_last_event(client: TestClient) -> None:
    response = client.get("/stream", params={"fail": True})
    assert response.status_code == 200
    events = response.text.split("\n\n")
    assert events[0] == 'data: {"delta": "a"}'
    assert events[1].startswith('data: {"error": {"message": ')
    assert SECRET not in response.text
    assert "[DONE]" not in response.text


# The body limit


def test_a_body_over_the_limit_is_refused_with_limit_and_value(client: TestClient, metrics: Metrics) -> None:
    error = error_of(client.post("/bytes", content=b"x" * 2001), 413)
    assert error["type"] == "request_too_large"
    assert "2001" in error["message"]
    assert "2000" in error["message"]
    assert b'fovea_rejected_total{reason="too_large"} 1.0' in metrics.render()


def test_a_refusal_while_the_framework_reads_the_body_keeps_its_status(client: TestClient) -> None:
    pieces = (b"x" * 500 for _ in range(10))  # without an announced length
    response = client.post("/v1/rerank", content=pieces, headers={"content-type": "application/json"})
    assert "2000" in error_of(response, 413)["message"]


def test_a_body_of_exactly_the_limit_is_taken(client: TestClient) -> None:
    assert client.post("/bytes", content=b"x" * 2000).json() == {"size": 2000}


# The deadline (its passing is in test_cancellation.py)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 30),
        ({"x-request-timeout": "5"}, 5),
        ({"x-stainless-read-timeout": "7.5"}, 7.5),
        ({"x-request-timeout": "5", "x-stainless-read-timeout": "7.5"}, 5),
        ({"x-request-timeout": "900"}, 50),
        ({"x-request-timeout": "inf"}, 50),
    ],
)
@pytest.mark.slow
def test_the_deadline_is_the_clients_within_the_maximum_else_the_configured_one(
    client: TestClient, headers: dict[str, str], seconds: float
) -> None:
    before_s = time.monotonic()
    deadline_s = client.get("/deadline", headers=headers).json()["deadline"]
    assert before_s + seconds <= deadline_s <= time.monotonic() + seconds


@pytest.mark.parametrize("header", ["x-request-timeout", "x-stainless-read-timeout"])
@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", ""])
def test_a_timeout_that_is_no_positive_number_is_refused_by_name(client: TestClient, header: str, value: str) -> None:
    assert header in error_of(client.get("/ping", headers={header: value}), 400)["message"]


# Metrics


def test_requests_are_counted_by_template_and_never_by_path(client: TestClient, metrics: Metrics) -> None:
    for name in ("a", "b"):
        client.put(f"/items/{name}", files={"file": ("x", b"123")})
        client.get(f"/nowhere/{name}")
    exposed = client.get("/metrics").text
    assert 'fovea_requests_total{code="200",method="PUT",route="/items/{name}",version=""} 2.0' in exposed
    assert 'fovea_requests_total{code="404",method="GET",route="unmatched",version=""} 2.0' in exposed
    assert 'fovea_request_seconds_count{route="/items/{name}",version=""} 2.0' in exposed


def test_a_made_up_method_gets_no_label_of_its_own(client: TestClient, metrics: Metrics) -> None:
    client.request("BREW", "/ping")
    assert b'method="OTHER"' in metrics.render()
    assert b"BREW" not in metrics.render()


def test_probes_do_not_count_as_load(client: TestClient, metrics: Metrics) -> None:
    client.get("/readyz")
    exposed = client.get("/metrics").text
    assert "fovea_inflight_requests 0.0" in exposed
    assert "/readyz" not in exposed
