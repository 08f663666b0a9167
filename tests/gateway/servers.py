"""Real servers on ports of the system's choosing: the gateway, services that a test scripts, and raw sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import aiohttp
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.addresses import Resolve, resolve_host
from gateway.app import create_gateway
from gateway.rate_limits import REDIS_TIMEOUT_S
from gateway.settings import GatewaySettings
from services.core.http.protocol import BoundedHeadProtocol
from services.core.serving.server import KEEP_ALIVE_S

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# Nobody listens there: the port is reserved, and no service needs to be probed on the real ones.
NOWHERE = "http://127.0.0.1:1"
HOPELESS_S = 300


class Server(uvicorn.Server):
    """uvicorn that starts and stops at once, inside a test's own loop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.is_up.set()
        await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own looks for what is left every 0.1 s, at least once."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await self.lifespan.shutdown()


@asynccontextmanager
async def serving(app: ASGIApp, host: str = "127.0.0.1", port: int = 0, **options: Any) -> AsyncIterator[str]:
    """The base URL of `app` while it is served, with further `options` of uvicorn."""
    # The protocol is named because asyncio turns Nagle's delay off only where it is.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, ws="none", server_header=False, proxy_headers=False, **options
    )
    server = Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await server.is_up.wait()
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.stopping.set()
        await running


@asynccontextmanager
async def gateway(
    resolve: Resolve = resolve_host, *, redis_timeout_s: float = REDIS_TIMEOUT_S, **settings: Any
) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a gateway; services without an address given are nowhere, those with None have only the default."""
    addresses = {f"{service}_urls": NOWHERE for service in ("predict", "generate", "embed", "score")}
    defaults = {"log_level": "error", **addresses}
    given = {name: value for name, value in {**defaults, **settings}.items() if value is not None}
    # Gateway and upstreams share one event loop here, and a busy machine may stall it for longer than the default.
    app = create_gateway(
        GatewaySettings(**given), resolve=resolve, connect_timeout_s=60, redis_timeout_s=redis_timeout_s
    )
    async with serving(app, http=BoundedHeadProtocol, timeout_keep_alive=KEEP_ALIVE_S) as url:
        await until(lambda: app.state.health.started().status == "ok")
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(url, auto_decompress=False, connector=connector) as client:
            yield client


class Service:
    """A service that answers with what `answer` sends, and keeps what it was asked."""

    def __init__(self, answer: ASGIApp | None = None) -> None:
        self.answer = answer or respond()
        self.requests: list[Scope] = []
        self.is_ready = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        if scope["path"] == "/readyz":
            await respond(status=200 if self.is_ready else 503)(scope, receive, send)
            return
        self.requests.append(scope)
        await self.answer(scope, receive, send)

    def header(self, name: str) -> str | None:
        """A header of the last request, None where it had none."""
        values = [value.decode("latin-1") for key, value in self.requests[-1]["headers"] if key == name.encode()]
        return ", ".join(values) if values else None


def respond(body: bytes = b"{}", *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> ASGIApp:
    """A whole answer after the whole request."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
        await send({"type": "http.response.body", "body": body})

    return answer


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """The request's body, as it came."""
    body = await read_body(receive)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive) -> bytes:
    chunks = []
    message: Message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        chunks.append(message.get("body", b""))
    return b"".join(chunks)


async def gone(receive: Receive) -> None:
    """Returns when the one who asked has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def listening(connected: Connected) -> AsyncIterator[str]:
    """A server of raw sockets, which ends all of its connections."""
    writers: list[asyncio.StreamWriter] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await connected(reader, writer)

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    try:
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        # one that is left to the garbage collector warns in whatever test runs then
        for writer in writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The head of a request and as much body as it announces; empty where the connection ended."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = 0
    for line in head.lower().splitlines():
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head + await reader.readexactly(length)


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Poll until it holds, since the gateway sends no events. Raises TimeoutError where it never does.

    pytest's own timeout raises in whatever callback happens to run, a server's among them, which may swallow it.
    """
    async with asyncio.timeout(HOPELESS_S):
        while not (result if isinstance(result := condition(), bool) else await result):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def metric(client: aiohttp.ClientSession, name: str, **labels: str) -> float:
    """The value of one metric of the gateway, 0 where it has none yet."""
    wanted = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    async with client.get("/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith(f"{name}{{{wanted}}} "):
                return float(line.rpartition(" ")[2])
    return 0.0
