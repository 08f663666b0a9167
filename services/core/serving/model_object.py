"""A served model as OpenAI's model object."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, Field

from services.core.serving.model_versions import ModelVersionList
from services.core.serving.served_models import Resident, ServedModels


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
    decides: bool = Field(False, description="Whether it can answer `/v1/decisions`.")
    loaded: bool = Field(description="Whether the model is in memory; otherwise its next request loads it.")


ModelT = TypeVar("ModelT", bound=ModelObject)
DescriptionT = TypeVar("DescriptionT")


def model_fields(resident: Resident[Any, Any, Any]) -> dict[str, Any]:
    """Return the fields of a ModelObject for a model that has been loaded."""
    manifest = resident.checkpoint.manifest
    assert manifest is not None, "what has been loaded has a version"
    return {
        "id": manifest.name,
        "created": int(manifest.created.timestamp()),
        "kind": manifest.kind,
        "version": manifest.version,
        "revision": manifest.digest,
        "statement": manifest.statement,
        "loaded": resident.checkpoint.is_loaded,
    }


def models_router(
    models: ServedModels[Any, DescriptionT, Any],
    describe: Callable[[Resident[Any, DescriptionT, Any], DescriptionT], ModelT],
    *,
    one: type[ModelT],
    listing: type[BaseModel],
) -> APIRouter:
    """The routes that tell what a service serves; a `listing` has models as its `data`."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", response_model=listing)
    async def list_models() -> Any:
        """List the served models, also those that are not in memory."""
        return {"data": [describe(resident, description) for resident, description in models.described()]}

    @router.get("/v1/models/{model_id}/versions")
    async def list_versions(model_id: str) -> ModelVersionList:
        """List the versions of a model in the store, newest first, with their aliases."""
        return await models.versions(model_id)

    @router.get("/v1/models/{model_id}", response_model=one)
    async def show_model(model_id: str) -> Any:
        resident = await models.find(model_id)
        if resident.description is None:
            raise resident.checkpoint.not_loaded()
        return describe(resident, resident.description)

    return router
