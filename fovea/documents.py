"""Calls of either client, and documents as `/generate` takes them, for the adapters of frameworks."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from fovea.client import AsyncClient, Client, Event
from fovea.schemas import DocumentInput, SearchResult

AnyClient = Client | AsyncClient
QueryKind = Literal["text", "image", "id"]  # as `search` names them; an image is a path, a URL or a data URI


def sync(client: AnyClient) -> Client:
    """Return a client for a synchronous call. Raises TypeError for an AsyncClient."""
    if isinstance(client, AsyncClient):
        raise TypeError("`client` is an AsyncClient: give a Client for synchronous calls, which serves both kinds")
    return client


async def asked(client: AnyClient, method: str, *arguments: Any, **fields: Any) -> Any:
    """Return the answer of either client; a synchronous one waits in a thread."""
    call = getattr(client, method)
    if isinstance(client, Client):
        return await asyncio.to_thread(call, *arguments, **fields)
    return await call(*arguments, **fields)


async def events(
    client: AnyClient, query: str, documents: Sequence[DocumentInput], **fields: Any
) -> AsyncIterator[Event]:
    """Stream an answer by either client; a synchronous one waits in a thread."""
    if isinstance(client, AsyncClient):
        async for event in client.generate_stream(query, documents, **fields):
            yield event
        return
    stream = client.generate_stream(query, documents, **fields)

    def following() -> Event | None:
        return next(stream, None)

    while (one := await asyncio.to_thread(following)) is not None:
        yield one


def text_of(result: SearchResult, text_field: str | None) -> str:
    """Return the text of a found image: that of a field of its metadata where it has one, otherwise its id."""
    text = result["metadata"].get(text_field) if text_field else None
    return text if isinstance(text, str) else result["id"]


def document(text: str, id: str | None, metadata: Mapping[str, Any]) -> DocumentInput:
    """Return a framework's document for `/generate`, with its title if its metadata has one."""
    title = metadata.get("title")
    given: DocumentInput = {"text": text, "title": title if isinstance(title, str) else ""}
    if id is not None:
        given["id"] = id
    return given
