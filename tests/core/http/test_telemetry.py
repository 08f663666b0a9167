"""Traces over OTLP to a collector that is a real HTTP server."""

import subprocess
import sys
from collections.abc import Callable

import aiohttp
import pytest

from tests.core.served_process import ServedProcess
from tests.core.trace_collector import Collector, collecting

pytestmark = pytest.mark.process

Serve = Callable[..., ServedProcess]


async def traced(serve: Serve, *, telemetry: bool, **environment: str) -> tuple[Collector, ServedProcess]:
    """Collect the traces and logs of one process for a request that a model answers, one that fails, and a probe."""
    async with collecting() as collector:
        served = serve(telemetry=telemetry, environment={**collector.environment, **environment})
        await served.started()
        async with aiohttp.ClientSession(served.url) as session:
            body = {"query": "q", "documents": ["d"]}
            async with session.post("/v1/rerank?private=1", json=body, headers={"x-request-id": "well"}) as response:
                assert response.status == 200
            async with session.get("/fail/defect", headers={"x-request-id": "defect"}) as response:
                assert response.status == 500
            async with session.get("/readyz") as response:
                await response.read()
        served.terminate()
        assert await served.exit_status() == 0
    return collector, served


async def test_a_request_is_a_span_named_by_its_route_that_tells_what_its_log_line_tells(serve: Serve) -> None:
    collector, _ = await traced(serve, telemetry=True)
    (span,) = [span for span in collector.requests() if span.attributes.get("fovea.request_id") == "well"]
    assert (span.service, span.name) == ("fovea-served", "POST /v1/rerank")
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["fovea.model"] == "shapes@3"
    assert (span.attributes["fovea.queue_seconds"], span.attributes["fovea.infer_seconds"]) == (0.0015, 0.25)


async def test_probes_are_not_traced_and_neither_queries_nor_messages_leave_the_process(serve: Serve) -> None:
    collector, _ = await traced(serve, telemetry=True)
    assert {span.name for span in collector.requests()} == {"POST /v1/rerank", "GET /fail/{kind}"}
    assert "private" not in str(collector.spans)
    assert "nobody may read" not in str(collector.spans)


async def test_the_lines_of_a_request_carry_the_ids_of_its_span(serve: Serve) -> None:
    collector, served = await traced(serve, telemetry=True)
    ids = {span.attributes["fovea.request_id"]: (span.trace_id, span.span_id) for span in collector.requests()}
    lines = [line for line in served.log() if "request_id" in line]
    assert [line["message"] for line in lines] == ["request", "unhandled exception", "request"]
    for line in lines:
        trace_id, span_id = ids[line["request_id"]]
        # A line that is logged inside one of the framework's own operations names that one's span.
        assert line["trace_id"] == trace_id
        assert line["message"] != "request" or line["span_id"] == span_id
    assert not [line for line in served.log() if "request_id" not in line and "trace_id" in line]


async def test_the_operator_may_give_the_process_another_name(serve: Serve) -> None:
    collector, _ = await traced(serve, telemetry=True, OTEL_SERVICE_NAME="embed-eu")
    assert {span.service for span in collector.spans} == {"embed-eu"}


async def test_nothing_is_sent_or_logged_unless_it_is_asked_for(serve: Serve) -> None:
    collector, served = await traced(serve, telemetry=False)
    assert collector.spans == []
    assert not [line for line in served.log() if "trace_id" in line]


def test_without_the_sdk_the_process_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; "
        "from services.core.http.telemetry import traces; traces('embed')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "FOVEA_TELEMETRY needs OpenTelemetry: pip install 'fovea-serving[telemetry]'.\n"
