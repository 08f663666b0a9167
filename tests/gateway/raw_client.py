"""A client that writes bytes as they are, and reads the answers that come back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp


@dataclass(frozen=True)
class Answer:
    """One response; `headers` with names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One connection to a server of HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)

    async def answer(self, method: str = "POST") -> Answer | None:
        """The next response, those with a status of 1xx left out; None where the connection ended instead."""
        while True:
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            lines = head.decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
            if status >= 200:
                break
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"")
        if "content-length" in headers:
            return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        return Answer(status, headers, await self._chunks())

    async def rest(self) -> bytes:
        """Read everything until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return body


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawConnection]:
    """A connection to the server at a base URL."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def url_of(client: aiohttp.ClientSession) -> str:
    """The base URL that a client session was opened for."""
    return str(client._base_url).rstrip("/")
