"""Pools for tests: services that say who they are, and files that name them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from starlette.types import Receive, Scope, Send

from tests.gateway.servers import Service, respond

POSTS = {"generate": "/generate", "embed": "/embed", "score": "/score", "predict": "/predict"}


def named(name: str, lists: Mapping[str, Any] | None = None) -> Service:
    """A service that answers with its name, and with `lists` by path."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        listed = (lists or {}).get(path)
        if listed is None and path in ("/v1/models", "/tasks", "/openapi.json"):
            await respond(status=404)(scope, receive, send)
            return
        body = json.dumps({"by": name} if listed is None else listed).encode()
        await respond(body, headers=((b"content-type", b"application/json"),))(scope, receive, send)

    return Service(answer)


def pool(name: str, service: str, url: str, **fields: Any) -> dict[str, Any]:
    """A pool that claims the model of its own name unless told otherwise."""
    return {"name": name, "service": service, "models": [name], "urls": [url], **fields}


def write_pools(path: Path, *pools: Mapping[str, Any]) -> Path:
    """Write the file as `kubectl` and editors do, in one step."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"pools": pools}))
    return beside.replace(path)


async def answered_by(client: aiohttp.ClientSession, path: str, **request: Any) -> str:
    """The name of the service that answered, or the status of a refusal."""
    async with client.post(path, **request) as response:
        return str((await response.json())["by"]) if response.status == 200 else str(response.status)


async def asked_for(client: aiohttp.ClientSession, service: str, model: str | None) -> str:
    """The name of the service that answers a request in JSON for a model."""
    return await answered_by(client, POSTS[service], json={} if model is None else {"model": model})
