"""Limits on a process's open connections, in all and for one client; further ones are answered 503 and closed."""

import math
from collections import Counter
from typing import Any

import structlog

from services.core.errors import Overloaded
from services.core.exchange import client_network
from services.core.http.protocol import BoundedHeadProtocol
from services.core.metrics import Metrics

# Descriptors for listeners, files of models and stores, caches, threads' pipes.
RESERVED_DESCRIPTORS = 128
# Refused connections that are being answered at a time; further ones are closed without an answer.
MAX_REFUSALS = 64
REPORT_EVERY_S = 60.0

log = structlog.get_logger("fovea.connections")


def most_connections(wanted: int, descriptors: int) -> int:
    """Return the number wanted, or as many as leave each a second descriptor for what it asks; at least one."""
    return max(1, min(wanted, (descriptors - RESERVED_DESCRIPTORS) // 2))


class ConnectionLimits:
    """The open connections of one process. At most `most` in all, and `client_share` of them of one client.

    Where there is no room, the connection that has been idle for longest is closed, the same client's where it is the
    client's own share that is used up. Where none is idle, the new one is refused.
    """

    def __init__(self, most: int, client_share: float, metrics: Metrics) -> None:
        self.most = most
        self.most_per_client = max(1, int(most * client_share))
        self.num_refusals = 0
        self._rejected = metrics.rejected.labels("connections")
        self._clients: dict[LimitedProtocol, str] = {}
        self._num_of_client: Counter[str] = Counter()
        # Connections without a request in progress, idle for longest first.
        self._idle: dict[LimitedProtocol, None] = {}
        self._reported_at_s = -math.inf

    def admit(self, connection: "LimitedProtocol", client: str) -> bool:
        """Count a new connection; False where there is no room for it."""
        if self._num_of_client[client] >= self.most_per_client:
            has_room = self._close_idle(client)
        else:
            has_room = len(self._clients) < self.most or self._close_idle()
        if not has_room:
            self._report(connection, client)
            return False
        self._clients[connection] = client
        self._num_of_client[client] += 1
        self._idle[connection] = None
        return True

    def forget(self, connection: "LimitedProtocol") -> None:
        """Stop counting a connection that is closed, or about to be."""
        self._idle.pop(connection, None)
        client = self._clients.pop(connection, None)
        if client is None:
            return
        self._num_of_client[client] -= 1
        if not self._num_of_client[client]:
            del self._num_of_client[client]

    def mark_busy(self, connection: "LimitedProtocol") -> None:
        self._idle.pop(connection, None)

    def mark_idle(self, connection: "LimitedProtocol") -> None:
        if connection in self._clients:
            self._idle[connection] = None

    def _close_idle(self, client: str | None = None) -> bool:
        for connection in self._idle:
            if client is None or self._clients[connection] == client:
                self.forget(connection)
                connection.transport.close()
                return True
        return False

    def _report(self, connection: "LimitedProtocol", client: str) -> None:
        self._rejected.inc()
        now_s = connection.loop.time()
        if now_s - self._reported_at_s >= REPORT_EVERY_S:
            self._reported_at_s = now_s
            log.warning(
                "connections_refused", open=len(self._clients), client=client, of_client=self._num_of_client[client]
            )


class LimitedProtocol(BoundedHeadProtocol):
    """HTTP on a connection that `limits` admits; others are answered 503 and closed."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._has_refusal = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        client = client_network(self.client[0]) if self.client else "unknown"
        if self._limits.admit(self, client):
            return
        if self._limits.num_refusals >= MAX_REFUSALS:
            self.transport.abort()
            return
        self._limits.num_refusals += 1
        self._has_refusal = True
        self._refuse(Overloaded("This server has reached its limit of open connections.", code="too_many_connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.forget(self)
        if self._has_refusal:
            self._limits.num_refusals -= 1
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._limits.mark_busy(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._limits.mark_idle(self)
