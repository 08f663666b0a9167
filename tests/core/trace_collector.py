"""A collector of OpenTelemetry traces: a real HTTP server that keeps the spans it is sent over OTLP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.web_server import serving


@dataclass(frozen=True)
class CollectedSpan:
    """Ids as log lines write them; `parent_id` is empty where the span began the trace in its process."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str | int | float]


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
                    attributes = {
                        entry.key: getattr(entry.value, str(entry.value.WhichOneof("value")))
                        for entry in span.attributes
                    }
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    self.spans.append(CollectedSpan(resource["service.name"], span.name, *ids, attributes))
        return web.Response()


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    application = web.Application()
    application.router.add_post("/v1/traces", collector.take)
    async with serving(application) as collector.url:
        yield collector
