"""Traces: one span per request in each process, its ids in the log lines, and the caller's trace continued.

A service also tells what its models did, by the attributes `gen_ai.*`, where the standard's own switch asks for them:
they may change with any release of the conventions. Neither prompts nor answers are among them.

Nothing here is used while `FOVEA_TELEMETRY` is off. The OpenTelemetry SDK belongs to the extra `telemetry`; its
endpoint and sampling are set by its own `OTEL_*` variables.
"""

import os
from typing import TYPE_CHECKING

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.core.exchange import RequestContext, context_of, exchange_of
from services.core.http.middleware import KNOWN_METHODS, QUIET_PATHS
from services.core.logs import REDACTED
from services.core.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

OPT_IN_VARIABLE = "OTEL_SEMCONV_STABILITY_OPT_IN"
GEN_AI_OPT_IN = "gen_ai_latest_experimental"
# The conventions' names of what routes do. They have none for ranking, classifying and comparing.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v2/chat": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/embed": "embeddings",
    "/v2/embed": "embeddings",
    "/v1/embeddings": "embeddings",
    "/collections/{name}/search": "retrieval",
}

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
    """Middleware that gives a request's span the attributes of its log line, without the query.

    With `is_of_service` also those of the model that answers, if the conventions' switch is on. A gateway leaves them
    to the service, so that a trace holds them once.
    """

    def __init__(self, app: ASGIApp, *, is_of_service: bool) -> None:
        self.app = app
        opted_in = {one.strip() for one in os.environ.get(OPT_IN_VARIABLE, "").split(",")}
        self.tells_gen_ai = is_of_service and GEN_AI_OPT_IN in opted_in

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
            elif not message.get("more_body", False):
                self._tell_gen_ai(span, scope)  # the span ends with the response
            await send(message)

        try:
            await self.app(scope, receive, send_and_describe)
        finally:
            self._tell_gen_ai(span, scope)

    def _tell_gen_ai(self, span: "Span", scope: Scope) -> None:
        operation = OPERATIONS.get(getattr(scope.get("route"), "path", ""))
        if self.tells_gen_ai and operation is not None and span.is_recording():
            span.set_attributes(_gen_ai(operation, context_of(scope)))


def _gen_ai(operation: str, context: RequestContext) -> dict[str, str | int | list[str]]:
    """Return the attributes that the conventions for generative AI have for a call; of a failed one, what is known."""
    usage = context.usage
    told: dict[str, str | int | list[str] | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "fovea",
        "gen_ai.request.model": context.asked_model,
        "gen_ai.response.model": context.model,
        "gen_ai.usage.input_tokens": usage.input_tokens if context.model else None,
        "gen_ai.usage.output_tokens": usage.output_tokens or None,
        "gen_ai.response.finish_reasons": usage.finish_reasons or None,
    }
    return {name: value for name, value in told.items() if value is not None}


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
