"""The state of one request while it is answered, and its caller; the outermost middleware creates both.

The caller is the client whose share a request takes, and the tenant whose data it may see. The gateway knows both from
the key and tells its services in headers that it accepts from no client. A service that is called directly counts by
the peer's address, and has one tenant.
"""

import asyncio
import math
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import quote, unquote

from starlette.types import Scope

SCOPE_KEY = "fovea.exchange"
HEADERS_KEY = "fovea.headers"
# Whether the server had the whole body when it called the application.
WHOLE_BODY_KEY = "fovea.whole_body"


class Timing:
    """Seconds spent in the stages of one request; a service adds to it, the client reads it as `Server-Timing`.

    Where `is_private` it is in the access log only.
    """

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.is_private = False

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage; several calls for one stage sum up."""
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds

    def header(self) -> str:
        """Return the header's value, in milliseconds: `queue;dur=1.200, infer;dur=8.000`."""
        return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in self.stages.items())


@dataclass(slots=True)
class Usage:
    """Tokens that a request has taken so far, a prompt's once whatever its number of answers; and why answers ended."""

    input_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(slots=True)
class RequestContext:
    """A request as the objects that answer it know it; they see nothing of HTTP.

    `deadline` is a reading of `time.monotonic()`; `default_timer` ends a request that named none then. `model` is the
    `name@version` that answers, set once it is known, `asked_model` the request's own word for it, if any.
    """

    deadline: float = math.inf
    default_timer: asyncio.Timeout | None = None
    timing: Timing = field(default_factory=Timing)
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    asked_model: str | None = None

    def prolong(self, seconds: float) -> bool:
        """Move a deadline that the request did not name itself; return whether it was moved."""
        ends_at = self.default_timer and self.default_timer.when()
        if self.default_timer is None or ends_at is None:
            return False
        self.deadline += seconds
        self.default_timer.reschedule(ends_at + seconds)
        return True


@dataclass(slots=True)
class Exchange:
    """One request and its response; `path` is as the client wrote it, `status` None until the response begins."""

    request_id: str
    path: str
    is_probe: bool
    context: RequestContext = field(default_factory=RequestContext)
    started_s: float = field(default_factory=time.perf_counter)
    status: int | None = None
    content_type: bytes = b""
    is_complete: bool = False
    is_abandoned: bool = False
    error_type: str | None = None

    def seconds(self) -> float:
        return time.perf_counter() - self.started_s

    def code(self) -> int:
        """Return the status for logs and metrics: 499 where the client left before the response was complete."""
        if self.is_abandoned:
            return 499
        return self.status if self.status is not None else 500


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the first header of each lower-case name, in a mapping that is made once per request."""
    headers: dict[bytes, bytes] | None = scope.get(HEADERS_KEY)
    if headers is None:
        headers = scope[HEADERS_KEY] = dict(reversed(scope["headers"]))
    return headers


def forget_headers(scope: Scope) -> None:
    """Let the next reader make the mapping anew: the headers were replaced."""
    scope.pop(HEADERS_KEY, None)


def header_of(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this lower-case name."""
    value = headers_of(scope).get(name)
    return None if value is None else str(value, "latin-1")


def announces_body(scope: Scope) -> bool:
    headers = headers_of(scope)
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def exchange_of(scope: Scope) -> Exchange:
    exchange: Exchange = scope[SCOPE_KEY]
    return exchange


def context_of(scope: Scope) -> RequestContext:
    return exchange_of(scope).context


CLIENT_HEADER = b"x-fovea-client"
TENANT_HEADER = b"x-fovea-tenant"
KEY_NAME_HEADER = b"x-fovea-key-name"
# What a service believes of a request, and a gateway's signature covers; never taken from a client.
CALLER_HEADERS = (CLIENT_HEADER, TENANT_HEADER, KEY_NAME_HEADER)
# By which a gateway asks for the tokens of a request, and a service tells those so far: in the response's head, and in
# a stream before each event, in a comment `: tokens 17`, so that they are known of one that is broken off as well.
TOKENS_HEADER = b"x-fovea-tokens"
DEFAULT_TENANT = "default"
# Also the name of a folder, so it has no slash and does not begin with a dot.
TENANT_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"


@dataclass(frozen=True)
class Caller:
    """A caller: shares and limits are counted by `client`, collections and cached results belong to `tenant`.

    `key_name` is the key's name in the audit log; None where no key was needed.
    """

    client: str
    tenant: str = DEFAULT_TENANT
    key_name: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers that `caller_of` reads. Key names may hold any characters, so they are percent-encoded."""
        named = {CLIENT_HEADER: self.client, TENANT_HEADER: self.tenant}
        if self.key_name is not None:
            named[KEY_NAME_HEADER] = quote(self.key_name, safe=" ")
        return {str(name, "ascii"): value for name, value in named.items()}


@lru_cache(4096)
def client_network(address: str) -> str:
    """Return what a client is counted by: its IPv4 address, or the /64 network that an IPv6 client has to itself."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped) if ip.ipv4_mapped else str(ip_network((ip, 64), strict=False))


NOBODY = Caller("nobody")
_current: ContextVar[Caller] = ContextVar("fovea_caller", default=NOBODY)


def caller_of(scope: Scope) -> Caller:
    """Return the caller that the gateway names, or else the peer."""
    peer = scope.get("client")
    client = header_of(scope, CLIENT_HEADER) or f"client:{client_network(peer[0]) if peer else 'unknown'}"
    key_name = header_of(scope, KEY_NAME_HEADER)
    return Caller(client, header_of(scope, TENANT_HEADER) or DEFAULT_TENANT, key_name and unquote(key_name))


def current_caller() -> Caller:
    """Return the caller of the current request; NOBODY outside of one."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Set the caller of everything that this task, and the tasks that it starts, do from now on."""
    _current.set(caller)
