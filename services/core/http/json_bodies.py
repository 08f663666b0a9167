"""JSON bodies that hold nothing but JSON: no NaN, and no half of a character.

Python's own parser takes both, and what is later computed from them or written back fails far from the request's
fault.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, JsonValue

from services.core.scarce_memory import check_memory

ItemT = TypeVar("ItemT")

# A body under this size is parsed faster than a thread is woken for it.
MAX_INLINE_BYTES = 128 * 1024

# A list in a request. Only its first bad item is complained of: complaints of a million of them, several each, would
# take seconds of the event loop and a gigabyte.
JsonList = Annotated[list[ItemT], Field(fail_fast=True)]

# An image in a request: its forms are told apart, and refused by name, when it is read.
JsonImage = str | dict[str, JsonValue]


# orjson brings the process down where it finds no memory half-way. A list of small objects takes about so many bytes
# for each of its text.
PARSED_BYTES_PER_BYTE = 32


class JsonRoute(APIRoute):
    """A route whose body is read strictly, and beside the event loop where it is large."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


class _JsonRequest(Request):
    async def json(self) -> Any:
        """The parsed body. Raises `json.JSONDecodeError`, as whoever calls it expects, and MemoryError."""
        if not hasattr(self, "_json"):
            body = await self.body()
            inline = len(body) <= MAX_INLINE_BYTES
            self._json = parse_json(body) if inline else await asyncio.to_thread(parse_json, body)
        return self._json


def parse_json(text: bytes | str) -> Any:
    """What `orjson.loads` returns. The garbage collector, which would look at all objects of the process several times
    while a hundred thousand lists are made, waits meanwhile, as every other thread does.

    Raises what orjson raises, and MemoryError where what a long text means may not fit.
    """
    if len(text) > MAX_INLINE_BYTES:
        check_memory(PARSED_BYTES_PER_BYTE * len(text))
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if "memory" in error.msg:  # for its own copy of the text
            raise MemoryError(error.msg) from None
        raise
    finally:
        if was_enabled:
            gc.enable()


def request_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a request that a handler reads by itself, with nothing outside to refer to."""
    schema = model.model_json_schema(ref_template="{model}")
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(value) for value in node]
        if not isinstance(node, dict):
            return node
        name = node.get("$ref")
        if name == "JsonValue":
            return {}
        return inline(definitions[name]) if name else {key: inline(value) for key, value in node.items()}

    inlined: dict[str, Any] = inline(schema)
    return inlined
