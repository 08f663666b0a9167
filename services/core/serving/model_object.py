"""A served model as OpenAI's model object."""

from typing import Any, Literal, Protocol

from pydantic import BaseModel, Field

from services.core.store.manifest import Manifest


class ModelObject(BaseModel):
    """OpenAI's model object with what a client of Fovea may want to know of any model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time in seconds.")
    owned_by: str = "fovea"
    kind: str
    version: str
    revision: str = Field(description="Content digest of the checkpoint.")


class Served(Protocol):
    """The properties of a served checkpoint that do not depend on its engine."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def manifest(self) -> Manifest: ...


def model_fields(served: Served) -> dict[str, Any]:
    """Return the fields of a ModelObject."""
    return {
        "id": served.name,
        "created": int(served.manifest.created.timestamp()),
        "kind": served.manifest.kind,
        "version": served.version,
        "revision": served.digest,
    }
