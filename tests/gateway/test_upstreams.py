"""Pools that come, change and go while the gateway serves, as their file says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.gateway.routing.pools import asked_for, named, pool, write_pools
from tests.gateway.servers import NOWHERE, Service, gateway, metric, serving, until

FOLLOWED: dict[str, Any] = {"pools_poll_s": 0.01, "generate_urls": None}


def is_answered_by(client: aiohttp.ClientSession, model: str | None, name: str) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return await asked_for(client, "generate", model) == name

    return asked


async def readiness(client: aiohttp.ClientSession) -> dict[str, Any]:
    async with client.get("/readyz") as response:
        assert response.status == 200
        found: dict[str, Any] = (await response.json())["checks"]
        return found


async def labels(client: aiohttp.ClientSession) -> set[str]:
    """The values of `service` in all of the gateway's metrics."""
    async with client.get("/metrics") as response:
        text = await response.text()
    return {part.split('"')[1] for line in text.splitlines() for part in line.split(",") if 'service="' in part}


async def test_a_pool_that_is_added_gets_its_requests_at_once(tmp_path: Path) -> None:
    async with serving(named("vicuna")) as vicuna, serving(named("tulu")) as tulu:
        path = write_pools(tmp_path / "pools", pool("vicuna", "generate", vicuna))
        async with gateway(pools=path, **FOLLOWED) as client:
            assert await asked_for(client, "generate", "tulu") == "404"
            write_pools(path, pool("vicuna", "generate", vicuna), pool("tulu", "generate", tulu))
            found = set()
            while "tulu" not in found:
                found.add(await asked_for(client, "generate", "tulu"))
            # Never 503, as it would be before its name was looked up.
            assert found <= {"404", "tulu"}
            assert await asked_for(client, "generate", "vicuna") == "vicuna"
            assert (await readiness(client))["tulu"] == {"ok": True, "detail": "1 of 1 addresses ready"}
            assert await metric(client, "fovea_upstream_ready_addresses", service="tulu") == 1


async def test_a_pool_that_is_removed_leaves_no_trace_and_its_last_requests_are_answered(tmp_path: Path) -> None:
    probes = 0
    leave = asyncio.Event()
    tulu = named("tulu")
    answer = tulu.answer

    class Slow(Service):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            nonlocal probes
            if scope["path"] == "/readyz":
                probes += 1
            elif scope["path"] == "/generate":
                await leave.wait()
            await super().__call__(scope, receive, send)

    async with serving(named("vicuna")) as vicuna, serving(Slow(answer)) as url:
        both = (pool("vicuna", "generate", vicuna), pool("tulu", "generate", url))
        path = write_pools(tmp_path / "pools", *both)
        async with gateway(pools=path, probe_interval_s=0.001, **FOLLOWED) as client:
            last = asyncio.create_task(asked_for(client, "generate", "tulu"))

            async def has_come() -> bool:
                return await metric(client, "fovea_gateway_inflight_requests", service="tulu") == 1

            await until(has_come)
            assert await labels(client) >= {"tulu", "vicuna"}
            write_pools(path, both[0])
            # A pool's requests go on being sent until the new file applies as a whole.
            async with asyncio.timeout(30):
                while "tulu" in await readiness(client):
                    pass
            assert await labels(client) == {"predict", "embed", "score", "vicuna"}
            seen = probes
            while await asked_for(client, "generate", "tulu") != "404":
                pass
            await asyncio.sleep(0.1)
            assert probes <= seen + 1
            leave.set()
            assert await last == "tulu"
            assert "tulu" not in await labels(client)
            # It may come back.
            write_pools(path, *both)
            await until(is_answered_by(client, "tulu", "tulu"))
            assert await metric(client, "fovea_upstream_requests_total", service="tulu", code="200") == 1


async def test_a_pool_whose_urls_change_keeps_what_stays_and_asks_no_others(tmp_path: Path) -> None:
    async with serving(named("a")) as a, serving(named("b")) as b, serving(named("c")) as c:
        path = write_pools(tmp_path / "pools", pool("tulu", "generate", a, urls=[a, b]))
        async with gateway(pools=path, **FOLLOWED) as client:

            async def answers() -> set[str]:
                return {await asked_for(client, "generate", "tulu") for _ in range(40)}

            assert await answers() == {"a", "b"}
            asked = await metric(client, "fovea_upstream_requests_total", service="tulu", code="200")
            write_pools(path, pool("tulu", "generate", b, urls=[b, c]))
            await until(is_answered_by(client, "tulu", "c"))
            assert await answers() == {"b", "c"}
            assert await metric(client, "fovea_upstream_requests_total", service="tulu", code="200") > asked


async def test_a_pool_may_take_other_models_and_move_to_another_service(tmp_path: Path) -> None:
    async with serving(named("one")) as url, serving(named("own")) as own:
        path = write_pools(tmp_path / "pools", pool("one", "generate", url, models=["a", "b"]))
        async with gateway(pools=path, embed_urls=own, **FOLLOWED) as client:
            assert await asked_for(client, "generate", "a") == "one"
            write_pools(path, pool("one", "generate", url, models=["b", "c"]))
            await until(is_answered_by(client, "c", "one"))
            assert await asked_for(client, "generate", "b") == "one"
            assert await asked_for(client, "generate", "a") == "404"
            write_pools(path, pool("one", "embed", url, models=["c"]))

            async def has_moved() -> bool:
                return await asked_for(client, "embed", "c") == "one"

            await until(has_moved)
            assert await metric(client, "fovea_upstream_requests_total", service="one", code="200") >= 1
            assert (await readiness(client))["one"]["ok"]


async def test_a_service_has_its_default_address_only_while_it_has_no_pools(tmp_path: Path) -> None:
    async with serving(named("tulu")) as url:
        path = write_pools(tmp_path / "pools")

        async def found(host: str, port: int) -> list[str]:
            return ["127.0.0.1"] if port != 8102 else ["127.0.0.9"]  # nobody listens there

        async with gateway(pools=path, resolve=found, **FOLLOWED) as client:
            assert {"generate", "predict"} <= (await readiness(client)).keys()
            assert await asked_for(client, "generate", "tulu") == "503"
            write_pools(path, pool("tulu", "generate", url))
            await until(is_answered_by(client, "tulu", "tulu"))
            assert "generate" not in await readiness(client)
            assert "generate" not in await labels(client)
            write_pools(path)
            await until(is_answered_by(client, "tulu", "503"))
            assert "generate" in await labels(client)


def config_map(folder: Path) -> Callable[..., Path]:
    """A folder as the kubelet mounts a ConfigMap: links through `..data`, which changes in one step."""
    folder.mkdir()
    versions = iter(range(1000))

    def write(*pools: dict[str, Any]) -> Path:
        version = folder / f"..{next(versions)}"
        version.mkdir()
        (version / "pools.json").write_text(json.dumps({"pools": pools}))
        (folder / "..new").symlink_to(version.name)
        (folder / "..new").replace(folder / "..data")
        if not (folder / "pools.json").is_symlink():
            (folder / "pools.json").symlink_to(Path("..data", "pools.json"))
        return folder / "pools.json"

    return write


async def test_a_config_map_is_followed(tmp_path: Path) -> None:
    async with serving(named("a")) as a, serving(named("b")) as b:
        write = config_map(tmp_path / "mounted")
        path = write(pool("tulu", "generate", a))
        async with gateway(pools=path, **FOLLOWED) as client:
            assert await asked_for(client, "generate", "tulu") == "a"
            write(pool("tulu", "generate", b))
            await until(is_answered_by(client, "tulu", "b"))


@pytest.mark.parametrize("content", ["{", '{"pools": [{"name": "generate"}]}', None])
async def test_a_file_that_becomes_invalid_is_reported_once_and_the_pools_stay(
    content: str | None, tmp_path: Path
) -> None:
    async with serving(named("a")) as a, serving(named("b")) as b:
        path = write_pools(tmp_path / "pools", pool("tulu", "generate", a))
        with capture_logs() as logs:
            async with gateway(pools=path, **FOLLOWED) as client:
                if content is None:
                    path.unlink()
                else:  # at once: a file that is written may be read while it is empty, which is another fault
                    beside = tmp_path / "other"
                    beside.write_text(content)
                    beside.replace(path)
                await until(lambda: any(one["event"] == "pools_not_reloaded" for one in logs))
                for _ in range(20):
                    assert await asked_for(client, "generate", "tulu") == "a"
                await asyncio.sleep(0.1)
                reported = [one for one in logs if one["event"] == "pools_not_reloaded"]
                assert len(reported) == 1
                assert "pools" in reported[0]["reason"]
                report = await readiness(client)
                assert report["pools"]["ok"]
                unread = {"ok": False, "detail": "as before: it can't be read; the log says why"}
                assert report["pools file"] == unread
                write_pools(path, pool("tulu", "generate", b))
                await until(is_answered_by(client, "tulu", "b"))
                await until(lambda: [one["pools"] for one in logs if one["event"] == "pools_reloaded"] == [1])


async def test_a_pool_whose_name_cannot_be_looked_up_holds_up_no_other(tmp_path: Path) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        if host == "nowhere":
            raise OSError("no such name")
        return ["127.0.0.1"]

    async with serving(named("b")) as b:
        path = write_pools(tmp_path / "pools")
        async with gateway(pools=path, resolve=resolve, **FOLLOWED) as client:
            write_pools(path, pool("tulu", "generate", "http://nowhere:8102"), pool("vicuna", "generate", b))
            await until(is_answered_by(client, "vicuna", "b"))
            async with client.post("/generate", json={"model": "tulu"}) as response:
                assert response.status == 503
                assert "pool tulu" in (await response.json())["error"]["message"]


async def test_requests_wait_for_a_pool_that_is_being_scaled_from_zero(tmp_path: Path) -> None:
    tulu = named("tulu")
    tulu.is_ready = False
    async with serving(tulu) as url:
        path = write_pools(tmp_path / "pools", pool("tulu", "generate", url), pool("vicuna", "generate", NOWHERE))
        async with gateway(pools=path, wait_for_service_s=3600, probe_interval_s=0.01, **FOLLOWED) as client:
            waiting = asyncio.create_task(asked_for(client, "generate", "tulu"))

            async def is_seen() -> bool:
                return await metric(client, "fovea_gateway_queued_requests", service="tulu") == 1

            await until(is_seen)
            assert await metric(client, "fovea_gateway_recent_requests", service="tulu") == 1
            assert await metric(client, "fovea_gateway_recent_requests", service="vicuna") == 0
            tulu.is_ready = True
            assert await waiting == "tulu"
