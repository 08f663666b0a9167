"""One trace through the gateway and a service, each a process of its own, to a collector over OTLP/HTTP."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.processes import Process, start_process
from tests.core.trace_collector import CollectedSpan, collecting
from tests.gateway.servers import Service, gateway, serving

pytestmark = pytest.mark.process

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"


@dataclass(frozen=True)
class Traced:
    """One request's line in each log, and what the collector was sent of it."""

    gateway_line: dict[str, Any]
    service_line: dict[str, Any]
    spans: list[CollectedSpan]

    def span_of(self, service: str) -> CollectedSpan:
        (span,) = [span for span in self.spans if span.service == service]
        return span


async def traced(folder: Path, headers: dict[str, str]) -> Traced:
    """Both processes from start to end, and one request through them."""
    async with collecting() as collector:
        environment = {"FOVEA_TELEMETRY": "true", **collector.environment}
        service = start_process("tests.gateway.served_service", folder / "service", environment)
        processes = [service]
        try:
            settings = {"FOVEA_GATEWAY_EMBED_URLS": service.url, "FOVEA_GATEWAY_PORT": "0"}
            processes.append(start_process("gateway", folder / "gateway", {**environment, **settings}))
            for process in processes:
                await asyncio.to_thread(process.wait_until_ready)
            async with (
                aiohttp.ClientSession() as client,
                client.post(f"{processes[-1].url}/embed?secret=1", data=b"x", headers=headers) as response,
            ):
                assert response.status == 200
        finally:
            # The collector has to answer while they send what they have left.
            statuses = [await asyncio.to_thread(process.stop) for process in reversed(processes)]
        assert statuses == [0, 0]
    return Traced(request_line(processes[1]), request_line(service), collector.requests())


def request_line(process: Process) -> dict[str, Any]:
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    (line,) = [line for line in lines if line["message"] == "request"]
    return dict(line)


async def test_a_request_is_one_trace_in_both_logs_and_the_services_says_that_it_came_by_the_gateway(
    tmp_path: Path,
) -> None:
    seen = await traced(tmp_path, {})
    outer, inner = seen.span_of("fovea-gateway"), seen.span_of("fovea-embed")
    assert (outer.name, inner.name) == ("POST /embed", "POST /embed")
    assert (outer.trace_id, outer.span_id) == (inner.trace_id, inner.parent_id)
    assert outer.parent_id == ""
    assert (seen.gateway_line.get("via"), seen.service_line.get("via")) == (None, "gateway")
    for line, span in ((seen.gateway_line, outer), (seen.service_line, inner)):
        assert (line["trace_id"], line["span_id"]) == (span.trace_id, span.span_id)
        assert line["request_id"] == span.attributes["fovea.request_id"]
    assert "fovea.upstream_seconds" in outer.attributes
    assert "secret" not in str(seen)


async def test_a_trace_that_the_client_began_is_carried_on(tmp_path: Path) -> None:
    seen = await traced(tmp_path, {"traceparent": f"00-{TRACE_ID}-{CALLER}-01", "tracestate": "shop=1"})
    outer, inner = seen.span_of("fovea-gateway"), seen.span_of("fovea-embed")
    assert {outer.trace_id, inner.trace_id} == {TRACE_ID}
    assert (outer.parent_id, inner.parent_id) == (CALLER, outer.span_id)
    assert {seen.gateway_line["trace_id"], seen.service_line["trace_id"]} == {TRACE_ID}


async def test_a_trace_that_its_client_does_not_record_is_logged_and_not_sent(tmp_path: Path) -> None:
    seen = await traced(tmp_path, {"traceparent": f"00-{TRACE_ID}-{CALLER}-00"})
    assert seen.spans == []
    assert {seen.gateway_line["trace_id"], seen.service_line["trace_id"]} == {TRACE_ID}


async def test_without_telemetry_the_gateway_passes_a_client_s_trace_on_as_it_came() -> None:
    service = Service()
    sent = {"traceparent": f"00-{TRACE_ID}-{CALLER}-01", "tracestate": "shop=1"}
    async with serving(service) as url, gateway(embed_urls=url) as client:
        await client.post("/embed", data=b"{}", headers=sent)
    assert {name: service.header(name) for name in sent} == sent
