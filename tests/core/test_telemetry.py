"""Traces over OTLP to a collector that is a real HTTP server."""

from collections.abc import Callable

import aiohttp
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.core.served_process import ServedProcess


async def traced_names(serve: Callable[..., ServedProcess], *, telemetry: bool) -> list[str]:
    """Names of the spans that the collector was sent for one request and one probe."""
    names: list[str] = []

    async def collect(request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        names.extend(span.name for r in message.resource_spans for s in r.scope_spans for span in s.spans)
        return web.Response()

    collector = web.Application()
    collector.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(collector)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    served = serve(telemetry=telemetry, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{host}:{port}"})
    await served.started()
    async with aiohttp.ClientSession() as session:
        for path in ("/items/a", "/readyz"):
            async with session.get(f"{served.url}{path}") as response:
                await response.read()
    served.terminate()
    assert await served.exit_status() == 0
    await runner.cleanup()
    return names


async def test_requests_are_traced_by_template_and_probes_are_not(serve: Callable[..., ServedProcess]) -> None:
    names = await traced_names(serve, telemetry=True)
    assert "GET /items/{name}" in names
    assert not [name for name in names if "readyz" in name]


async def test_nothing_is_sent_unless_it_is_asked_for(serve: Callable[..., ServedProcess]) -> None:
    assert await traced_names(serve, telemetry=False) == []
