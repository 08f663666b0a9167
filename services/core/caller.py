"""The caller of a request: the client whose share it takes, and the tenant whose data it may see.

The gateway knows both from the key and tells its services in headers that it accepts from no client. A service that
is called directly counts by the peer's address, and has one tenant.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import quote, unquote

from starlette.types import Scope

from services.core.exchange import header_of

CLIENT_HEADER = b"x-fovea-client"
TENANT_HEADER = b"x-fovea-tenant"
KEY_NAME_HEADER = b"x-fovea-key-name"
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
