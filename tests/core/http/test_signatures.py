"""Services with a signing secret answer their gateway alone."""

import hashlib
import hmac
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import SettingsConfigDict
from starlette.testclient import TestClient

from services.core.http import signatures
from services.core.metrics import Metrics
from services.core.settings import ServiceSettings, SettingsError
from tests.core.served_app import create

SECRET, NEXT = "a" * 64, "b" * 64
CALLER = {"X-Fovea-Client": "key:0123", "X-Fovea-Tenant": "north", "X-Fovea-Key-Name": "web%20site"}


class EmbedSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="FOVEA_EMBED_")


def signature(method: str, target: str, caller: Mapping[str, str], *, secret: str = SECRET, age_s: int = 0) -> str:
    """Sign as the gateway does, from the description of what is signed."""
    signed_at = int(time.time()) - age_s
    names = ("X-Fovea-Client", "X-Fovea-Tenant", "X-Fovea-Key-Name")
    lines = [str(signed_at), method, target, *(f"={caller[name]}" if name in caller else "-" for name in names)]
    digest = hmac.new(secret.encode(), "\n".join(lines).encode(), hashlib.sha256).hexdigest()
    return f"t={signed_at},v1={digest}"


def signed(method: str, target: str, **options: Any) -> dict[str, str]:
    return {**CALLER, "X-Fovea-Signature": signature(method, target, CALLER, **options)}


def settings_of(secrets: Path | None) -> ServiceSettings:
    return EmbedSettings(port=0, signing_secret_file=secrets)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "signing.secret"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("served")


@pytest.fixture
def client(secrets: Path, metrics: Metrics) -> Iterator[TestClient]:
    with TestClient(create(settings_of(secrets), metrics=metrics), base_url="http://localhost") as client:
        yield client


def code_of(client: TestClient, method: str, target: str, headers: Mapping[str, str]) -> str:
    """The code of a refusal, after checking that it names header and setting; empty for an answer."""
    response = client.request(method, target, headers=headers)
    if response.status_code != 401:
        assert response.status_code == 200, response.text
        return ""
    error = response.json()["error"]
    assert response.headers["www-authenticate"] == "X-Fovea-Signature"
    assert "X-Fovea-Signature" in error["message"]
    assert SECRET not in response.text
    return str(error["code"])


def test_a_request_as_the_gateway_signed_it_is_answered(client: TestClient) -> None:
    for target in ("/ping", "/v1/ping", "/ping?a=b%20c+d&a", "/p%69ng"):
        assert code_of(client, "GET", target, signed("GET", target)) == ""
    nobody = {"X-Fovea-Client": "client:10.0.0.1"}
    assert code_of(client, "GET", "/ping", {**nobody, "X-Fovea-Signature": signature("GET", "/ping", nobody)}) == ""


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"X-Fovea-Signature": None}, "signature_missing"),
        ({"X-Fovea-Tenant": "south"}, "signature_invalid"),
        ({"X-Fovea-Tenant": None}, "signature_invalid"),
        ({"X-Fovea-Client": "key:4567"}, "signature_invalid"),
        ({"X-Fovea-Key-Name": "admin"}, "signature_invalid"),
        ({"X-Fovea-Key-Name": ""}, "signature_invalid"),
        ({"X-Fovea-Signature": ""}, "signature_invalid"),
        ({"X-Fovea-Signature": "t=1,v1=" + "0" * 64}, "signature_invalid"),
        ({"X-Fovea-Signature": f"t={'9' * 5000},v1={'0' * 64}"}, "signature_invalid"),
        ({"X-Fovea-Signature": SECRET}, "signature_invalid"),
    ],
)
def test_a_caller_that_the_gateway_has_not_signed_is_refused(
    client: TestClient, metrics: Metrics, changed: dict[str, str | None], code: str
) -> None:
    headers = {name: value for name, value in {**signed("GET", "/ping"), **changed}.items() if value is not None}
    assert code_of(client, "GET", "/ping", headers) == code
    assert 'fovea_rejected_total{reason="unauthenticated"} 1.0' in metrics.render().decode()


def test_of_two_headers_of_a_name_the_one_that_is_believed_is_the_one_that_is_checked(client: TestClient) -> None:
    both = [("X-Fovea-Tenant", "south"), *signed("GET", "/ping").items()]
    assert client.get("/ping", headers=both).status_code == 401


@pytest.mark.parametrize(
    ("method", "target"), [("POST", "/ping"), ("GET", "/v1/ping"), ("GET", "/ping?a"), ("GET", "/x")]
)
def test_a_signature_holds_for_its_own_method_and_address_only(client: TestClient, method: str, target: str) -> None:
    assert code_of(client, method, target, signed("GET", "/ping")) == "signature_invalid"


@pytest.mark.parametrize(
    ("age_s", "code"), [(280, ""), (320, "signature_expired"), (-280, ""), (-320, "signature_expired")]
)
def test_clocks_may_differ_by_five_minutes(client: TestClient, age_s: int, code: str) -> None:
    assert code_of(client, "GET", "/ping", signed("GET", "/ping", age_s=age_s)) == code


def test_probes_and_metrics_need_no_signature_and_documents_do(client: TestClient) -> None:
    for path in ("/livez", "/readyz", "/startupz", "/health", "/metrics"):
        assert client.get(path).status_code == 200
    for path in ("/openapi.json", "/docs", "/v1/metrics", "/metrics/", "/readyz/x", "/"):
        assert client.get(path).status_code == 401


def test_without_a_file_of_secrets_everybody_is_answered() -> None:
    with TestClient(create(settings_of(None)), base_url="http://localhost") as client:
        assert code_of(client, "GET", "/ping", CALLER) == ""
        assert code_of(client, "GET", "/ping", signed("GET", "/ping", secret=NEXT)) == ""


def test_secrets_are_replaced_one_after_another_without_a_restart(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "POLL_S", 0.01)
    accepted: dict[str, tuple[str, str]] = {
        f"{SECRET}\n{NEXT}\n": ("", ""),
        f"\r\n{NEXT}\r\n{SECRET}": ("", ""),
        NEXT: ("signature_invalid", ""),
        "": ("signature_invalid", ""),  # what can't be used changes nothing
    }
    with TestClient(create(settings_of(secrets)), base_url="http://localhost") as client:

        def codes() -> tuple[str, str]:
            old, new = (code_of(client, "GET", "/ping", signed("GET", "/ping", secret=one)) for one in (SECRET, NEXT))
            return old, new

        assert codes() == ("", "signature_invalid")
        for content, expected in accepted.items():
            secrets.write_text(content)
            while codes() != expected:
                time.sleep(0.001)  # a file that was read again is only seen by its effect


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has 0 lines"),
        (b"\n \n", "has 0 lines"),
        (f"{SECRET}\n{NEXT}\n{SECRET}".encode(), "has 3 lines"),
        (b"short", ":1: a secret has at least 32"),
        (f"{SECRET}\nhunter2 {NEXT}".encode(), ":2: a secret has at least 32"),
        ("\ufeff".encode() + SECRET.encode(), ":1: a secret has at least 32"),
        (SECRET.encode("utf-16"), "a secret has at least 32"),
    ],
)
def test_a_file_without_usable_secrets_prevents_the_start_and_none_is_shown(
    secrets: Path, content: bytes, told: str
) -> None:
    secrets.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        create(settings_of(secrets))
    message = str(refused.value)
    assert message.startswith(f"FOVEA_SIGNING_SECRET_FILE: {secrets}")
    assert told in message
    assert "openssl rand -hex 32" in message
    assert not any(secret in message for secret in (SECRET, NEXT, "short", "hunter2"))


def test_a_file_of_secrets_that_is_missing_prevents_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"FOVEA_SIGNING_SECRET_FILE: there is no file .*; make it with `openssl"):
        create(settings_of(tmp_path / "none"))
