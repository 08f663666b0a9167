"""The gateway's answers combined from those of every service: the list of models, and one document of all routes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from gateway.openapi import Document, merge_documents, require_key
from gateway.routes import PUBLIC_PATHS, RouteTable
from gateway.settings import Destination
from gateway.upstream import Upstream
from services.core.errors import NotFound

# Seconds after which at most a newly started service is in the document, and its models are listed.
DOCUMENT_AGE_S = 5.0
MODELS_AGE_S = 1.0

AnswerT = TypeVar("AnswerT")


class Model(BaseModel):
    """A model as its service describes it, including any fields beyond OpenAI's."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "fovea"


class ModelList(BaseModel):
    object: str = "list"
    data: list[Model]


class Kept(Generic[AnswerT]):
    """A cached answer that is fetched again once it is older than `age_s`, by one of the requests that need it then."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._lock = asyncio.Lock()
        self._answer: AnswerT | None = None
        self._until_s = 0.0

    async def get(self, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        async with self._lock:
            if self._answer is None or time.monotonic() >= self._until_s:
                self._answer = await ask()
                self._until_s = time.monotonic() + self._age_s
            return self._answer


class Directory:
    """Asks all services at the same time; those that do not answer in time are omitted.

    Answers are cached briefly, so that frequent requests do not reach the services.
    """

    def __init__(self, upstreams: Mapping[Destination, Upstream], *, needs_key: bool) -> None:
        self._upstreams = upstreams
        self._needs_key = needs_key
        self._routes = RouteTable()
        self._document = Kept[Document](DOCUMENT_AGE_S)
        self._models = Kept[list[Model]](MODELS_AGE_S)

    async def models(self) -> list[Model]:
        return await self._models.get(self._ask_for_models)

    async def _ask_for_models(self) -> list[Model]:
        lists = await self._ask_all("/v1/models")
        return [
            Model.model_validate(model)
            for listed in lists.values()
            for model in listed.get("data", [])
            if isinstance(model, dict) and isinstance(model.get("id"), str)
        ]

    async def document(self, own: Document) -> Document:
        """Return the merged OpenAPI document."""

        async def ask() -> Document:
            merged = merge_documents(own, await self._ask_all("/openapi.json"), self._belongs)
            return require_key(merged, PUBLIC_PATHS) if self._needs_key else merged

        return await self._document.get(ask)

    def _belongs(self, service: str, path: str) -> bool:
        route = self._routes.find(path)
        return route is not None and route.service == service

    async def _ask_all(self, path: str) -> dict[str, dict[str, Any]]:
        # The process that has the collections is one of embed's, and would only say the same again.
        services = [name for name in self._upstreams if name != "collections"]
        answers = await asyncio.gather(*(self._upstreams[service].fetch_json(path) for service in services))
        return {service: answer for service, answer in zip(services, answers, strict=True) if isinstance(answer, dict)}


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
        raise NotFound(f"No available service has a model {model_id!r}.", code="model_not_found")

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> JSONResponse:
        app: FastAPI = request.app
        return JSONResponse(await directory.document(app.openapi()))

    return router
