"""Destinations of requests: the services, the process with the collections, canaries, pools, and a review."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from gateway.routing.pool_file import Pool
from gateway.settings import Backend, GatewaySettings, Service

COLLECTIONS = "collections"


@dataclass(frozen=True)
class Destination:
    """Processes of one service behind one name, which is unique and their label in metrics and in `/readyz`.

    `models` and `tasks` are those that a pool claims.
    """

    name: str
    service: Backend
    urls: tuple[str, ...]
    kind: Literal["service", "collections", "canary", "pool", "review"] = "service"
    models: frozenset[str] = field(default=frozenset())
    tasks: frozenset[str] = field(default=frozenset())

    @property
    def title(self) -> str:
        """The subject of a sentence about it."""
        if self.kind == "review":
            return "The review"
        return f"The pool {self.name}" if self.kind == "pool" else f"The {self.name} service"

    def not_running(self, where: str) -> str:
        """Return a sentence for clients about processes of which none takes a connection."""
        problem = f"{self.title} is not running: no response from {where}."
        if self.kind == "pool":
            return f"{problem} Start it, or correct its addresses in the file of {self.variable}."
        command = "fovea curate review" if self.kind == "review" else "fovea up"
        return f"{problem} Start it with `{command}`, or set {self.variable} to its address."

    def hangs(self) -> str:
        """Return a sentence for clients about processes that take connections and do not respond."""
        cure = "Restart it." if self.kind in ("pool", "review") else "`fovea up` restarts it."
        return f"{self.title} hangs: it accepts connections but does not respond. {cure}"

    @property
    def variable(self) -> str:
        """The setting that has its addresses."""
        if self.kind in ("pool", "canary"):
            return "FOVEA_GATEWAY_POOLS" if self.kind == "pool" else "FOVEA_GATEWAY_CANARY_URLS"
        return f"FOVEA_GATEWAY_{self.name.upper()}_URL{'' if self.kind == 'review' else 'S'}"


def destinations(settings: GatewaySettings, pools: Sequence[Pool]) -> list[Destination]:
    """Return all destinations, the pools in the order of their file.

    A service that has pools has processes beside them only where their URLs were set.
    """
    pooled = {pool.service for pool in pools}
    found = [
        Destination(service, service, settings.urls()[service])
        for service in get_args(Service)
        if service not in pooled or settings.has_own_urls(service)
    ]
    if settings.collections_urls:
        found.append(Destination(COLLECTIONS, "embed", settings.collections_urls, "collections"))
    if settings.review_url:
        found.append(Destination("review", "review", (settings.review_url,), "review"))
    found += [
        Destination(f"{service}-canary", service, urls, "canary") for service, urls in settings.canary_urls.items()
    ]
    return found + [
        Destination(pool.name, pool.service, pool.urls, "pool", frozenset(pool.models), frozenset(pool.tasks))
        for pool in pools
    ]
