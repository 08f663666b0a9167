"""The one client session through which the gateway talks to its services."""

import time
from dataclasses import dataclass, field

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from opentelemetry import propagate

# Shorter than the services keep idle connections, so that they seldom close one just as it is used again.
KEEP_ALIVE_S = 30.0


@dataclass(eq=False)
class Attempt:
    """One attempt, on which the session notes whether it reused an idle connection instead of opening one."""

    started_s: float = field(default_factory=time.monotonic)
    is_on_reused_connection: bool = False


def open_session(*, connect_timeout_s: float, telemetry: bool = False) -> aiohttp.ClientSession:
    """Open a session that passes bodies unchanged and takes nothing from the environment.

    With `telemetry` its requests belong to the trace of the request that they are sent for. Without, a trace that the
    client began is passed on unchanged.
    """
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_note_reuse)
    if telemetry:
        tracing.on_request_start.append(_carry_trace_on)
    return aiohttp.ClientSession(
        connector=_CleanConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        trace_configs=[tracing],
    )


class _CleanConnector(aiohttp.TCPConnector):
    """Reuses no idle connection on which anything is in transit.

    Unexpected bytes would be read as the answer to the next request; and where an answer came before its request was
    written completely, the next request would be taken for the rest of it.
    """

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            protocol, transport = connection.protocol, connection.transport
            assert protocol is not None
            if transport is not None and not protocol.should_close and not transport.get_write_buffer_size():
                return connection
            connection.close()
        return None


async def _note_reuse(session: aiohttp.ClientSession, context: object, params: object) -> None:
    attempt = getattr(context, "trace_request_ctx", None)
    if isinstance(attempt, Attempt):
        attempt.is_on_reused_connection = True


async def _carry_trace_on(
    session: aiohttp.ClientSession, context: object, params: aiohttp.TraceRequestStartParams
) -> None:
    # In place of the client's own `traceparent`, which the gateway's span has as its parent.
    propagate.inject(params.headers)
