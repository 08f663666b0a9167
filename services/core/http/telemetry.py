"""Traces: one span per request in each process, its ids in the log lines, and the caller's trace continued.

Nothing here is used while `FOVEA_TELEMETRY` is off. The OpenTelemetry SDK belongs to the extra `telemetry`; its
endpoint and sampling are set by its own `OTEL_*` variables.
"""

from typing import TYPE_CHECKING

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.exchange import context_of, exchange_of
from services.core.http.middleware import KNOWN_METHODS, QUIET_PATHS
from services.core.logs import REDACTED
from services.core.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

NO_TRACES = TelemetryConfig(tracing=False, metrics=False, logs=False, auto_configure=False)


def traces(service: str) -> TelemetryConfig:
    """Configure traces only: metrics are Prometheus's, and exported logs would carry exception messages outside.

    Raises SettingsError where the SDK is not installed.
    """
    return TelemetryConfig(
        tracer_provider=_provider(service),
        tracing=True,
        metrics=False,
        logs=False,
        auto_configure=True,
        exclude=lambda scope: scope["path"] in QUIET_PATHS,
    )


def _provider(service: str) -> "TracerProvider":
    """Return the provider of spans, named `fovea-embed` and the like unless `OTEL_SERVICE_NAME` gives another name."""
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        raise SettingsError("FOVEA_TELEMETRY needs OpenTelemetry: pip install 'fovea-serving[telemetry]'.") from None
    resource = Resource.create({SERVICE_NAME: f"fovea-{service}"}).merge(OTELResourceDetector().detect())
    # The framework flushes and shuts down its exporters.
    return TracerProvider(resource=resource, shutdown_on_exit=False)


class RequestSpan:
    """Middleware that gives a request's span the attributes of its log line, without the query."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        span = trace.get_current_span()
        if scope["type"] != "http" or not span.is_recording():
            await self.app(scope, receive, send)
            return
        if scope["query_string"]:
            span.set_attribute("url.query", REDACTED)
        span.set_attribute("fovea.request_id", exchange_of(scope).request_id)

        async def send_and_describe(message: Message) -> None:
            if message["type"] == "http.response.start":
                _describe(span, scope)
            await send(message)

        await self.app(scope, receive, send_and_describe)


def _describe(span: "Span", scope: Scope) -> None:
    """Set the route, which the gateway's proxy finds without the framework, the model, and the stages so far."""
    if (path := getattr(scope.get("route"), "path", None)) is not None:
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "HTTP"
        span.update_name(f"{method} {path}")
        span.set_attribute("http.route", path)
    context = context_of(scope)
    if context.model is not None:
        span.set_attribute("fovea.model", context.model)
    for stage, seconds in context.timing.stages.items():
        span.set_attribute(f"fovea.{stage}_seconds", seconds)
