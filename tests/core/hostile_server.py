"""A web server that answers with whatever bytes a test gives it, and name servers that lie."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class HostileServer:
    """Answers `path` with `answers[path]`: bytes, after which it hangs up, or a coroutine that writes them."""

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.port = port
        self.answers: dict[str, bytes | Answer] = {}
        self.requests: list[bytes] = []
        self.num_connections = 0
        # one that hangs is held by nobody else, and would be collected while some later test runs
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head)
            answer = self.answers[head.split()[1].decode()]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has seen enough
        finally:
            writer.close()
            self._serving.discard(task)

    async def hang_up(self) -> None:
        """End what is still being answered."""
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def hostile_server(
    address: str, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HostileServer]:
    server = HostileServer(address, port)
    listener = await asyncio.start_server(server.serve, address, port, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        try:
            yield server
        finally:
            await server.hang_up()


def response(
    body: bytes = b"", *, status: str = "200 OK", headers: tuple[str, ...] = (), length: int | None = None
) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return response(status=status, headers=(f"Location: {location}",))


class NameServer:
    """Answers each look-up of a name with the next of its answers, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        answers = self.answers.get(host)
        if not answers:
            raise OSError(f"the name server at 10.0.0.53 does not know {host}")
        return answers.pop(0) if len(answers) > 1 else answers[0]
