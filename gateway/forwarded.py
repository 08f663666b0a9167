"""The address of a client behind proxies: only a trusted one's `X-Forwarded-For` is believed."""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, ip_network

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from services.core.exchange import client_network, headers_of

# Strangers may send the header too; so many of them may not fill the log, nor one of them hide the proxy.
MAX_REPORTED = 10

log = structlog.get_logger(__name__)


class ForwardedClient:
    """Put the client's address in the place of a trusted proxy's: the last in the header that is no trusted proxy.

    Each address that sends the header without being trusted is reported once: most likely it is a proxy that was
    forgotten, all of whose clients count as one.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        self._proxied = ProxyHeadersMiddleware(app, trusted_hosts=list(_spellings(trusted)))  # type: ignore[arg-type]
        self._reported: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(self._reported) < MAX_REPORTED:
            self._report(scope)
        await self._proxied(scope, receive, send)  # type: ignore[arg-type] # the same types by other names

    def _report(self, scope: Scope) -> None:
        headers, peer = headers_of(scope), scope["client"][0] if scope.get("client") else ""
        if not (b"x-forwarded-for" in headers or b"forwarded" in headers) or peer in self._proxied.trusted_hosts:
            return
        if (address := client_network(peer)) not in self._reported:
            self._reported.add(address)
            hint = "if it is your proxy, add it to FOVEA_GATEWAY_TRUSTED_PROXIES; until then its clients count as one"
            log.warning("forwarded_for_not_trusted", address=peer, hint=hint)


def _spellings(trusted: Sequence[str]) -> Iterator[str]:
    """Yield each address or network, and IPv4's also as proxies that listen on both kinds of address write them."""
    for one in trusted:
        yield one
        if isinstance(network := ip_network(one), IPv4Network):
            yield f"::ffff:{network.network_address}/{96 + network.prefixlen}"
