"""Who a request comes from: the client whose share it takes, and the tenant whose data it may see.

The gateway knows both from the key and tells its services in two headers, which it takes from no client. A service
that is asked directly counts by the peer's address, and has one tenant.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import Scope

from services.core.exchange import header_of

CLIENT_HEADER = b"x-fovea-client"
TENANT_HEADER = b"x-fovea-tenant"
DEFAULT_TENANT = "default"


@dataclass(frozen=True)
class Caller:
    """`client` is what shares and limits are counted by, `tenant` what collections and cached results belong to."""

    client: str
    tenant: str = DEFAULT_TENANT


@lru_cache(4096)
def client_network(address: str) -> str:
    """What one client is counted by: an IPv4 address, or the /64 network that an IPv6 client has to itself."""
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
    """The caller that the gateway names, or the peer."""
    peer = scope.get("client")
    client = header_of(scope, CLIENT_HEADER) or f"client:{client_network(peer[0]) if peer else 'unknown'}"
    return Caller(client, header_of(scope, TENANT_HEADER) or DEFAULT_TENANT)


def current_caller() -> Caller:
    """The caller of the request that runs here; NOBODY outside of one."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Name the caller of everything that this task, and the tasks that it starts, do from now on."""
    _current.set(caller)
