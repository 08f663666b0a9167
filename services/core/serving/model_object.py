"""A served model as OpenAI's model object."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, Field

from services.core.serving.served_checkpoint import Served, ServedCheckpoint


class ModelObject(BaseModel):
    """OpenAI's model object with what a client of Fovea may want to know of any model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time in seconds.")
    owned_by: str = "fovea"
    kind: str
    version: str
    revision: str = Field(description="Content digest of the checkpoint.")
    statement: str | None = Field(None, description="What the model was trained on and what it knows, in a sentence.")


ModelT = TypeVar("ModelT", bound=ModelObject)
EngineT = TypeVar("EngineT", bound=Any)
BatcherT = TypeVar("BatcherT", bound=Any)


def model_fields(served: Served[Any, Any]) -> dict[str, Any]:
    """Return the fields of a ModelObject."""
    return {
        "id": served.name,
        "created": int(served.manifest.created.timestamp()),
        "kind": served.manifest.kind,
        "version": served.version,
        "revision": served.digest,
        "statement": served.manifest.statement,
    }


def models_router(
    checkpoint: ServedCheckpoint[EngineT, BatcherT],
    describe: Callable[[Served[EngineT, BatcherT]], ModelT],
    *,
    one: type[ModelT],
    listing: type[BaseModel],
) -> APIRouter:
    """The routes that tell what a service of one checkpoint serves; a `listing` has models as its `data`."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", response_model=listing)
    async def models() -> Any:
        with checkpoint.lease() as served:
            return {"data": [describe(served)]}

    @router.get("/v1/models/{model_id}", response_model=one)
    async def model(model_id: str) -> Any:
        with checkpoint.lease() as served:
            checkpoint.check_model(served, model_id)
            return describe(served)

    return router
