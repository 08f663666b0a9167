"""The gateway: the shared application with the proxy inside its middleware, and its upkeep in the background."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware

from gateway.access import Access, KeyRing
from gateway.addresses import Resolve, resolve_host
from gateway.console.routes import console_paths, console_router
from gateway.directory import Directory, directory_router
from gateway.forwarded import ForwardedClient
from gateway.keys.limited_models import warn_of_unserved_models
from gateway.keys.own_key import UsageCounts, own_key_router
from gateway.proxy import BodyMemory, Proxy
from gateway.rate_limits import REDIS_TIMEOUT_S, RateLimits
from gateway.routes import PUBLIC_PATHS, REVIEW_ROUTES, ROUTES, RouteTable
from gateway.routing.destinations import follow_pools
from gateway.settings import GatewaySettings
from gateway.upstream import CONNECT_TIMEOUT_S, Upstream, open_session
from gateway.upstreams import Upstreams
from services.core.http.app import AppParts, create_app
from services.core.http.health import Check, CheckReport, Health, HealthReport
from services.core.http.signatures import SigningSecrets
from services.core.metrics import Metrics


class GatewayHealth(Health):
    """Reports each service and each followed file in `/readyz`, but is ready without them.

    A gateway that became unready with its services would be taken out of its load balancer, and clients would get a
    refused connection where they now get a 503 that says what is missing and when to retry; and a service that scales
    to zero comes back only because the gateway still accepts requests for it. A review is reported while it runs. What
    a file said before it became unreadable holds on.
    """

    def __init__(self, upstreams: Upstreams, files: Mapping[str, Check]) -> None:
        super().__init__()
        self._upstreams = upstreams
        self._files = files

    def ready(self) -> HealthReport:
        report = super().ready()
        found = {one.name: _describe(one) for one in self._upstreams if _is_reported(one)}
        for name, check in self._files.items():
            ok, detail = check()
            found[name] = CheckReport(ok=ok, detail=detail)
        return HealthReport(status=report.status, checks={**report.checks, **found})


def _is_reported(upstream: Upstream) -> bool:
    kind = upstream.destination.kind
    return kind != "canary" and (kind != "review" or upstream.addresses.has_ready)


def _describe(upstream: Upstream) -> CheckReport:
    if not upstream.addresses.is_configured:
        return CheckReport(ok=False, detail="not configured")
    ready = upstream.addresses.num_ready
    return CheckReport(ok=ready > 0, detail=f"{ready} of {len(list(upstream.addresses))} addresses ready")


def create_gateway(
    settings: GatewaySettings,
    *,
    resolve: Resolve = resolve_host,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    redis_timeout_s: float = REDIS_TIMEOUT_S,
) -> FastAPI:
    """Create the gateway; `resolve` turns a service's host name into IPs. Slow machines need longer timeouts.

    Raises SettingsError for a bad file of keys, pools or signing secrets.
    """
    metrics = Metrics("gateway")
    pools = follow_pools(settings)
    keys = KeyRing(settings)
    limits = RateLimits(settings.redis_url, timeout_s=redis_timeout_s)
    # Connected when the application starts: a client session belongs to the event loop that it was opened in.
    upstreams = Upstreams(settings, metrics, resolve)
    secrets = SigningSecrets.of(settings)
    files = {"keys file": keys.file, "pools file": pools, "signing secrets file": secrets.file if secrets else None}
    health = GatewayHealth(upstreams, {name: file.check for name, file in files.items() if file is not None})
    usage = UsageCounts()
    of_console = console_paths() if settings.console else frozenset[str]()
    routes = RouteTable(ROUTES + REVIEW_ROUTES if settings.review_url else ROUTES, PUBLIC_PATHS | of_console)
    directory = Directory(upstreams, routes, needs_key=keys.is_required)
    access = Access(keys, limits, settings, metrics)

    @asynccontextmanager
    async def services_connected() -> AsyncIterator[None]:
        async with open_session(
            connect_timeout_s=connect_timeout_s, telemetry=settings.telemetry, secrets=secrets
        ) as session:
            upstreams.connect(session, pools.content.pools if pools else ())
            yield

    app = create_app(
        settings,
        AppParts(
            service="gateway",
            title="Fovea",
            metrics=metrics,
            health=health,
            routers=_routers(settings, directory, own_key_router(usage, access)),
            resources=[
                limits.opened,
                services_connected,
                lambda: health.upkeep("keys", keys.follow),
                lambda: health.upkeep("addresses", upstreams.keep_up),
                lambda: health.upkeep("limits", lambda: warn_of_unserved_models(keys, directory, settings.keys_poll_s)),
                *([lambda: health.upkeep("pools", lambda: upstreams.follow(pools))] if pools else []),
                *([lambda: health.upkeep("signing secrets", secrets.follow)] if secrets else []),
            ],
            warm_up=upstreams.look_up_and_probe,
            needs_key=keys.is_required,
            linked_paths=of_console,
        ),
    )
    app.user_middleware.insert(0, Middleware(ForwardedClient, trusted=settings.trusted_proxies))
    body_memory = BodyMemory(settings, metrics)
    app.user_middleware.append(
        Middleware(Proxy, access=access, directory=directory, body_memory=body_memory, usage=usage)
    )
    return app


def _routers(settings: GatewaySettings, directory: Directory, own_key: APIRouter) -> list[APIRouter]:
    """Return the gateway's own routes."""
    routers = [directory_router(directory), own_key]
    return [*routers, console_router()] if settings.console else routers
