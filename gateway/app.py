"""The gateway: the shared application with the proxy inside its middleware, and its upkeep in the background."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gateway.access import Access, KeyRing
from gateway.addresses import Addresses, EjectionPolicy, Resolve, resolve_host
from gateway.client_body import BodyMemory
from gateway.client_session import open_session
from gateway.directory import Directory, directory_router
from gateway.proxy import Proxy
from gateway.rate_limits import RateLimits
from gateway.settings import Destination, GatewaySettings, Service
from gateway.upstream import Upstream
from services.core.http.app import AppParts, create_app
from services.core.http.health import CheckReport, Health, HealthReport
from services.core.metrics import Metrics


class GatewayHealth(Health):
    """Reports each service in `/readyz`, but is ready without them.

    A gateway that became unready with its services would be taken out of its load balancer, and clients would get a
    refused connection where they now get a 503 that says what is missing and when to retry; and a service that scales
    to zero comes back only because the gateway still accepts requests for it.
    """

    def __init__(self, upstreams: Mapping[Destination, Upstream]) -> None:
        super().__init__()
        self._upstreams = upstreams

    def ready(self) -> HealthReport:
        report = super().ready()
        services = {service: _describe(upstream) for service, upstream in self._upstreams.items()}
        return HealthReport(status=report.status, checks={**report.checks, **services})


def _describe(upstream: Upstream) -> CheckReport:
    if not upstream.addresses.is_configured:
        return CheckReport(ok=False, detail="not configured")
    ready = upstream.addresses.num_ready
    return CheckReport(ok=ready > 0, detail=f"{ready} of {len(list(upstream.addresses))} addresses ready")


def create_gateway(settings: GatewaySettings, *, resolve: Resolve = resolve_host) -> FastAPI:
    """Create the gateway; `resolve` turns a service's host name into IPs. Raises SettingsError for a bad keys file."""
    metrics = Metrics("gateway")
    # Filled when the application starts: a client session belongs to the event loop that it was opened in.
    upstreams: dict[Destination, Upstream] = {}
    canaries: dict[Service, Upstream] = {}
    keys = KeyRing(settings)
    limits = RateLimits(settings.redis_url, timeout_s=settings.rate_limit_timeout_s)
    health = GatewayHealth(upstreams)

    @asynccontextmanager
    async def services_connected() -> AsyncIterator[None]:
        async with open_session(connect_timeout_s=settings.connect_timeout_s, telemetry=settings.telemetry) as session:
            policy = EjectionPolicy(unanswered_probes=settings.unanswered_probes)

            def connect(destination: Destination, base_urls: tuple[str, ...], *, is_canary: bool = False) -> Upstream:
                addresses = Addresses(base_urls, resolve=resolve, policy=policy)
                return Upstream(destination, addresses, session, settings, metrics, is_canary=is_canary)

            upstreams.update((service, connect(service, urls)) for service, urls in settings.urls().items())
            if settings.collections_urls:
                upstreams["collections"] = connect("collections", settings.collections_urls)
            canaries.update((one, connect(one, urls, is_canary=True)) for one, urls in settings.canary_urls.items())
            yield

    def every_upstream() -> list[Upstream]:
        return [*upstreams.values(), *canaries.values()]

    async def look_up_and_probe() -> None:
        await asyncio.gather(*(upstream.addresses.refresh() for upstream in every_upstream()))
        await asyncio.gather(*(upstream.probe() for upstream in every_upstream()))

    app = create_app(
        settings,
        AppParts(
            service="gateway",
            title="Fovea",
            metrics=metrics,
            health=health,
            routers=[directory_router(Directory(upstreams, needs_key=keys.is_required))],
            resources=[
                limits.opened,
                services_connected,
                lambda: _beside(keys.follow, "keys", health),
                lambda: _beside(lambda: _keep_up(every_upstream(), settings), "addresses", health),
            ],
            warm_up=look_up_and_probe,
            needs_key=keys.is_required,
        ),
    )
    # The framework's own document covers only the gateway; the directory serves the merged one in its place.
    app.router.routes = [route for route in app.router.routes if not _serves_own_document(route, app)]
    if settings.trusted_proxies:
        app.user_middleware.insert(0, Middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies)))
    access = Access(keys, limits, settings, metrics)
    body_memory = BodyMemory(settings, metrics)
    proxy = Middleware(Proxy, access=access, upstreams=upstreams, canaries=canaries, body_memory=body_memory)
    app.user_middleware.append(proxy)
    return app


async def _keep_up(upstreams: Iterable[Upstream], settings: GatewaySettings) -> None:
    """Look up every service's name and probe its addresses, each at its own interval, until cancelled."""

    async def again_and_again(interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await work()

    async with asyncio.TaskGroup() as group:
        # Each in its own task, so that no service waits for another that hangs.
        for upstream in upstreams:
            group.create_task(again_and_again(settings.dns_refresh_s, upstream.addresses.refresh))
            group.create_task(again_and_again(settings.probe_interval_s, upstream.probe))


@asynccontextmanager
async def _beside(work: Callable[[], Coroutine[Any, Any, None]], name: str, health: Health) -> AsyncIterator[None]:
    """Run `work` in the background; if it ever ends by itself, `/livez` answers 503."""
    task = asyncio.create_task(work())
    health.add_liveness_check(name, lambda: (not task.done(), "ended" if task.done() else "followed"))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _serves_own_document(route: BaseRoute, app: FastAPI) -> bool:
    """Whether this is the route that the framework itself added for the application's OpenAPI document."""
    return isinstance(route, Route) and not isinstance(route, APIRoute) and route.path == app.openapi_url
