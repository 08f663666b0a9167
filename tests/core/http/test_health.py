import asyncio

import pytest
from starlette.testclient import TestClient

from services.core.http.health import Health
from services.core.settings import ProcessSettings
from tests.core.served_app import create, fail_to_warm_up

SETTINGS = ProcessSettings(port=0)


def test_a_started_process_is_live_started_and_ready() -> None:
    with TestClient(create(SETTINGS), base_url="http://localhost") as client:
        for path in ("/livez", "/startupz", "/readyz", "/health"):
            response = client.get(path)
            assert (response.status_code, response.json()["status"]) == (200, "ok")


def test_probes_may_be_asked_by_head() -> None:
    with TestClient(create(SETTINGS), base_url="http://localhost") as client:
        for path in ("/livez", "/startupz", "/readyz", "/health"):
            response = client.head(path)
            assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")


@pytest.mark.slow
def test_until_it_is_warm_a_process_is_live_but_neither_started_nor_ready() -> None:
    warm = asyncio.Event()

    async def wait_for_checkpoint() -> None:
        await warm.wait()

    with TestClient(create(SETTINGS, warm_up=wait_for_checkpoint), base_url="http://localhost") as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/startupz").status_code == 503
        assert client.get("/readyz").json()["checks"]["startup"] == {"ok": False, "detail": "loading"}
        assert client.portal is not None
        client.portal.call(warm.set)
        assert client.get("/readyz").status_code == 200


def test_a_failed_warm_up_turns_the_process_unlive_without_naming_its_cause() -> None:
    health = Health()
    with TestClient(create(SETTINGS, health=health, warm_up=fail_to_warm_up), base_url="http://localhost") as client:
        response = client.get("/livez")
    assert response.status_code == 503
    assert "no checkpoint" not in response.text
    assert health.has_failed


def test_a_failing_liveness_check_turns_both_probes_red_and_names_itself() -> None:
    health = Health()
    health.add_liveness_check("compute", lambda: (False, "stalled for 130 s"))
    with TestClient(create(SETTINGS, health=health), base_url="http://localhost") as client:
        for path in ("/livez", "/readyz"):
            response = client.get(path)
            assert response.status_code == 503
            assert response.json()["checks"]["compute"] == {"ok": False, "detail": "stalled for 130 s"}
        assert client.get("/startupz").status_code == 200


def test_a_failing_readiness_check_asks_for_no_restart() -> None:
    health = Health()
    health.add_readiness_check("store", lambda: (False, "version 3 refused"))
    with TestClient(create(SETTINGS, health=health), base_url="http://localhost") as client:
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200


def test_a_failing_check_that_is_not_vital_is_told_and_leaves_the_process_ready() -> None:
    health, vital = Health(), [False]
    health.add_readiness_check("spare", lambda: (False, "not found"), lambda: vital[0])
    with TestClient(create(SETTINGS, health=health), base_url="http://localhost") as client:
        response = client.get("/readyz")
        assert (response.status_code, response.json()["status"]) == (200, "ok")
        assert response.json()["checks"]["spare"] == {"ok": False, "detail": "not found"}
        vital[0] = True
        assert client.get("/readyz").status_code == 503


def test_a_draining_process_is_not_ready_and_asks_clients_to_close() -> None:
    health = Health()
    with TestClient(create(SETTINGS, health=health), base_url="http://localhost") as client:
        assert "connection" not in client.get("/ping").headers
        health.begin_drain()
        assert client.get("/readyz").json()["checks"]["drain"] == {"ok": False, "detail": "draining"}
        assert client.get("/livez").status_code == 200
        assert client.get("/ping").headers["connection"] == "close"
