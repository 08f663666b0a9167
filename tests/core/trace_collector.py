"""A collector of OpenTelemetry traces: a real HTTP server that keeps the spans it is sent over OTLP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.web_server import serving


@dataclass(frozen=True)
class CollectedSpan:
    """Ids as log lines write them; `parent_id` is empty where the span began the trace in its process."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]

    def gen_ai(self) -> dict[str, Any]:
        """The attributes of the conventions for generative AI, without their common beginning."""
        return {
            name.removeprefix("gen_ai."): value for name, value in self.attributes.items() if name.startswith("gen_ai.")
        }


@dataclass
class Collector:
    """`environment` sends a process's traces here, with `FOVEA_TELEMETRY`."""

    url: str = ""
    spans: list[CollectedSpan] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url}

    def requests(self) -> list[CollectedSpan]:
        """The spans of whole requests, without those of the framework's own operations."""
        return [span for span in self.spans if not span.name.startswith("fastapi.")]

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource_spans in message.resource_spans:
            resource = {entry.key: entry.value.string_value for entry in resource_spans.resource.attributes}
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    attributes = {entry.key: _value(entry.value) for entry in span.attributes}
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    self.spans.append(CollectedSpan(resource["service.name"], span.name, *ids, attributes))
        return web.Response()


def _value(given: AnyValue) -> Any:
    kind = str(given.WhichOneof("value"))
    return [_value(one) for one in given.array_value.values] if kind == "array_value" else getattr(given, kind)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    application = web.Application()
    application.router.add_post("/v1/traces", collector.take)
    async with serving(application) as collector.url:
        yield collector


async def gen_ai_told(
    patch: pytest.MonkeyPatch, serve_and_ask: Callable[[], None], opt_in: str
) -> list[dict[str, Any]]:
    """What the spans of a service in this process tell of its models, by request; `opt_in` is the standard's switch.

    `serve_and_ask` starts it, with telemetry, and ends it, which sends what is left.
    """
    async with collecting() as collector:
        for name, value in {**collector.environment, "OTEL_SEMCONV_STABILITY_OPT_IN": opt_in}.items():
            patch.setenv(name, value)
        await asyncio.to_thread(serve_and_ask)
    assert collector.requests(), "nothing was traced"
    return [told for span in collector.requests() if (told := span.gen_ai())]
