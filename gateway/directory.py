"""What the gateway answers by asking every service: the models there are, and one document of all routes."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from gateway.openapi import Document, merge_documents, require_key
from gateway.routes import PUBLIC_PATHS, RouteTable
from gateway.settings import Service
from gateway.upstream import Upstream
from services.core.errors import NotFound

# A service that was just started is in the document after at most this long.
DOCUMENT_AGE_S = 5.0


class Model(BaseModel):
    """One model as its service describes it, with whatever the service says beyond OpenAI's fields."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "fovea"


class ModelList(BaseModel):
    object: str = "list"
    data: list[Model]


class Directory:
    """Asks all services at the same time; those that do not answer in time are left out."""

    def __init__(self, upstreams: Mapping[Service, Upstream], *, needs_key: bool) -> None:
        self._upstreams = upstreams
        self._needs_key = needs_key
        self._routes = RouteTable()
        self._document: Document | None = None
        self._document_until = 0.0

    async def models(self) -> list[Model]:
        lists = await self._ask_all("/v1/models")
        return [
            Model.model_validate(model)
            for listed in lists.values()
            for model in listed.get("data", [])
            if isinstance(model, dict) and isinstance(model.get("id"), str)
        ]

    async def document(self, own: Document) -> Document:
        """The merged OpenAPI document."""
        if self._document is None or time.monotonic() >= self._document_until:
            merged = merge_documents(own, await self._ask_all("/openapi.json"), self._belongs)
            self._document = require_key(merged, PUBLIC_PATHS) if self._needs_key else merged
            self._document_until = time.monotonic() + DOCUMENT_AGE_S
        return self._document

    def _belongs(self, service: str, path: str) -> bool:
        route = self._routes.find(path)
        return route is not None and route.service == service

    async def _ask_all(self, path: str) -> dict[str, dict[str, Any]]:
        answers = await asyncio.gather(*(upstream.fetch_json(path) for upstream in self._upstreams.values()))
        return {
            service: answer
            for service, answer in zip(self._upstreams, answers, strict=True)
            if isinstance(answer, dict)
        }


def directory_router(directory: Directory) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models", tags=["models"])
    async def list_models() -> ModelList:
        """The models of all services that answer."""
        return ModelList(data=await directory.models())

    @router.get("/v1/models/{model_id:path}", tags=["models"])
    async def show_model(model_id: str) -> Model:
        """One model, whichever service has it."""
        for model in await directory.models():
            if model.id == model_id:
                return model
        raise NotFound(f"No service that answers has a model {model_id!r}.", code="model_not_found")

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> JSONResponse:
        app: FastAPI = request.app
        return JSONResponse(await directory.document(app.openapi()))

    return router
