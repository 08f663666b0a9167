"""The application that every process serves: its routes inside the shared middleware, with probes and metrics."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from services.core.admission.admission import Admission
from services.core.admission.bodies import BodyBudget, BodyLimit, BodyPace
from services.core.http.browsers import AllowedOrigins, HostCheck, OriginCheck, is_loopback
from services.core.http.error_responses import ERROR_RESPONSES, raise_for_http_exception, raise_for_validation
from services.core.http.health import Health, health_router
from services.core.http.middleware import (
    AccessLog,
    Deadline,
    DisconnectCancellation,
    ErrorResponses,
    RequestIdentity,
    RequestMetrics,
    VersionPrefix,
)
from services.core.http.pages import docs_router
from services.core.http.signatures import SignatureCheck, SigningSecrets
from services.core.http.telemetry import NO_TRACES, RequestSpan, traces
from services.core.metrics import CONTENT_TYPE, Metrics
from services.core.settings import ProcessSettings, ServiceSettings, own_prefix_of


@dataclass(frozen=True)
class AppParts:
    """The parts that one service adds to the shared application.

    `resources` are opened in order before the first request and closed in reverse after the last. `warm_up` runs
    concurrently with the server, which answers probes meanwhile; until it returns the process does not count as
    started, and if it raises the process ends. `needs_key` says that requests are answered only with a key. Pages of
    other sites may link to `linked_paths`, which reveal no secret and change nothing.
    """

    service: str
    title: str
    metrics: Metrics
    health: Health
    routers: Sequence[APIRouter] = ()
    resources: Sequence[Callable[[], AbstractAsyncContextManager[object]]] = ()
    warm_up: Callable[[], Awaitable[None]] | None = None
    description: str = ""
    needs_key: bool = False
    linked_paths: frozenset[str] = frozenset()


def create_app(settings: ProcessSettings, parts: AppParts) -> FastAPI:
    """Create the application. Its routes answer with and without `/v1`; `app.state.health` is the process's health.

    Raises SettingsError for a bad file of a service's signing secrets.
    """
    secrets = SigningSecrets.of(settings) if isinstance(settings, ServiceSettings) else None
    middleware = _middleware(settings, parts, secrets)
    if settings.telemetry:
        is_of_service = isinstance(settings, ServiceSettings)
        middleware.insert(1, Middleware(RequestSpan, is_of_service=is_of_service))  # the request has its id by then
    app = FastAPI(
        title=parts.title,
        description=parts.description,
        version=version("fovea-serving"),
        lifespan=_lifespan(parts, secrets),
        middleware=middleware,
        exception_handlers={
            RequestValidationError: raise_for_validation,
            HTTPException: raise_for_http_exception,
        },
        responses=ERROR_RESPONSES,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        telemetry=traces(parts.service) if settings.telemetry else NO_TRACES,
    )
    app.state.health = parts.health
    app.state.metrics = parts.metrics
    # Routers are tried in this order; probes come last, since each miss costs time.
    own = (health_router(parts.health), _metrics_router(parts.metrics), docs_router(parts.title, app.openapi))
    for router in (*parts.routers, *own):
        app.include_router(router)
    return app


def _middleware(settings: ProcessSettings, parts: AppParts, secrets: SigningSecrets | None) -> list[Middleware]:
    """Return the middleware, outermost first. With `secrets` only signed requests are answered."""
    metrics, health = parts.metrics, parts.health
    hosts, origins = settings.allowed_hosts, settings.allowed_origins
    checks_host = "*" not in hosts and (hosts or is_loopback(settings.host))
    own = own_prefix_of(type(settings))
    origin_check = Middleware(
        OriginCheck,
        allowed=origins,
        metrics=metrics,
        needs_key=parts.needs_key,
        setting=settings.set_by.get("allowed_origins", f"{own}ALLOWED_ORIGINS"),
        linked_paths=parts.linked_paths,
    )
    host_check = Middleware(
        HostCheck,
        allowed=hosts,
        metrics=metrics,
        setting=settings.set_by.get("allowed_hosts", f"{own}ALLOWED_HOSTS"),
    )
    # The gateway has its own admission, since it knows which service a request is for, and does not parse bodies.
    for_services = (
        [Middleware(Admission, settings=settings, metrics=metrics), _body_budget(settings, metrics)]
        if isinstance(settings, ServiceSettings)
        else []
    )
    return [
        Middleware(RequestIdentity, health=health),
        Middleware(AccessLog, has_gateway=isinstance(settings, ServiceSettings)),
        Middleware(RequestMetrics, metrics=metrics),
        *([Middleware(AllowedOrigins, allowed=origins)] if origins else []),
        Middleware(ErrorResponses, health=health),
        *([Middleware(SignatureCheck, secrets=secrets, metrics=metrics)] if secrets else []),
        *([host_check] if checks_host else []),
        origin_check,
        Middleware(BodyPace, settings=settings, metrics=metrics),
        Middleware(BodyLimit, settings=settings, metrics=metrics),
        Middleware(Deadline, settings=settings, metrics=metrics),
        Middleware(DisconnectCancellation, metrics=metrics),
        *for_services,
        # The route templates answer with and without `/v1`.
        Middleware(
            VersionPrefix,
            paths=tuple(getattr(route, "path", "/") for router in parts.routers for route in router.routes),
        ),
    ]


def _body_budget(settings: ServiceSettings, metrics: Metrics) -> Middleware:
    return Middleware(
        BodyBudget,
        max_body_bytes=settings.max_body_bytes,
        max_held_bytes=settings.max_held_body_bytes,
        max_json_values=settings.max_json_values,
        metrics=metrics,
    )


def _metrics_router(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus_metrics() -> Response:
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE})

    return router


def _lifespan(
    parts: AppParts, secrets: SigningSecrets | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if secrets is not None:
                await stack.enter_async_context(parts.health.upkeep("signing secrets", secrets.follow))
            for resource in parts.resources:
                await stack.enter_async_context(resource())
            warming = asyncio.ensure_future(_warm_up(parts))
            warming.add_done_callback(lambda task: _report_failure(task, parts.health))
            stack.push_async_callback(_stop, warming)
            yield

    return lifespan


async def _warm_up(parts: AppParts) -> None:
    if parts.warm_up is not None:
        await parts.warm_up()
    parts.health.mark_started()


def _report_failure(warming: asyncio.Future[None], health: Health) -> None:
    if warming.cancelled() or (error := warming.exception()) is None:
        return
    structlog.get_logger("fovea.app").error("warm-up failed", exc_info=error)
    health.fail(f"warm-up failed with {type(error).__name__}")


async def _stop(warming: asyncio.Future[None]) -> None:
    warming.cancel()
    await asyncio.wait([warming])
