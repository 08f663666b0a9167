"""Protection of a process without keys from requests that web pages make browsers send (CSRF, DNS rebinding).

A page of any site can post a form to 127.0.0.1, and one whose name is made to resolve to 127.0.0.1 can read the
answers too. Against the first the request's origin is checked, against the second its `Host`.
"""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from services.core.errors import PermissionDenied
from services.core.exchange import header_of, headers_of
from services.core.http.health import PROBE_PATHS
from services.core.http.pages import DOCS_PATHS
from services.core.metrics import Metrics

# Pages may link to these; they reveal no secret and change nothing.
LINKED_PATHS = PROBE_PATHS | DOCS_PATHS | {"/openapi.json"}
# The response headers that a page may read.
EXPOSED_HEADERS = (
    "Retry-After",
    "retry-after-ms",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "Server-Timing",
    "X-Fovea-Model",
    "X-Request-ID",
    "x-should-retry",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
)


def is_loopback(host: str) -> bool:
    """Whether this is a name or an address by which only this machine is reached."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class HostCheck:
    """Refuse a request whose `Host` is neither `localhost`, an IP address nor in `allowed`: 403.

    An address is always allowed: no name was resolved, so none can have been rebound to this machine. An entry of
    `allowed` that begins with a dot is all names that end in it. A request without a `Host` is not from a
    browser. `setting` is the variable or option that errors name.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str], metrics: Metrics, *, setting: str) -> None:
        self.app = app
        self.setting = setting
        self.names = frozenset(name.lower() for name in allowed)
        self.suffixes = tuple(name for name in self.names if name.startswith("."))
        self.rejected = metrics.rejected.labels("foreign_host")
        # Clients use few spellings; looking one up costs less than parsing it.
        self.known: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (host := header_of(scope, b"host")) and host not in self.known:
            if not self._is_allowed(_name_of(host)):
                self.rejected.inc()
                raise PermissionDenied(
                    f"This server does not accept the host {host[:100]!r}; add it to {self.setting}.",
                    code="foreign_host",
                )
            if len(self.known) < 100:
                self.known.add(host)
        await self.app(scope, receive, send)

    def _is_allowed(self, name: str) -> bool:
        return is_loopback(name) or _is_address(name) or name in self.names or name.endswith(self.suffixes)


class OriginCheck:
    """Refuse a request that a browser sends for a page of another origin, unless it is in `allowed`: 403.

    Browsers name the origin in `Sec-Fetch-Site`, and older ones, or those that reach this server by plain HTTP under a
    name, in `Origin`. Other clients send neither. Probes, the documentation and `linked_paths` may be linked to.

    Where requests need a key, which no browser adds by itself, only preflights are checked: they carry none, and would
    be told that it is missing. `setting` is what errors name, empty where nothing allows an origin.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed: Collection[str],
        metrics: Metrics,
        *,
        needs_key: bool,
        setting: str,
        linked_paths: Collection[str] = (),
    ) -> None:
        self.app = app
        self.allowed = frozenset(allowed)
        self.needs_key = needs_key
        self.setting = setting
        self.linked_paths = LINKED_PATHS.union(linked_paths)
        self.rejected = metrics.rejected.labels("foreign_origin")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_foreign(scope):
            self.rejected.inc()
            origin = header_of(scope, b"origin")
            page = f"the origin {origin[:100]!r}" if origin else "another site"
            remedy = f"; add its origin to {self.setting}" if self.setting else ""
            raise PermissionDenied(f"A page of {page} may not use this server{remedy}.", code="foreign_origin")
        await self.app(scope, receive, send)

    def _is_foreign(self, scope: Scope) -> bool:
        headers = headers_of(scope)
        if b"sec-fetch-site" not in headers and b"origin" not in headers:
            return False
        if self.needs_key and not (scope["method"] == "OPTIONS" and b"access-control-request-method" in headers):
            return False
        site, origin, host = (header_of(scope, name) for name in (b"sec-fetch-site", b"origin", b"host"))
        if "*" in self.allowed or origin in self.allowed:
            return False
        if scope["method"] in ("GET", "HEAD") and scope["path"] in self.linked_paths:
            return False
        if site is not None:
            return site not in ("same-origin", "none")
        return origin is not None and urlsplit(origin).netloc != host


class AllowedOrigins(CORSMiddleware):
    """CORS for pages of the given origins (`*`: of all); to responses for other origins it adds nothing."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=tuple(allowed),
            allow_methods=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = header_of(scope, b"origin") if scope["type"] == "http" else None
        if origin is not None and self.is_allowed_origin(origin):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _name_of(host: str) -> str:
    """Return the name of a `Host`, lower-case, without its port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
