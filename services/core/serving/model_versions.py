"""The versions of a model, as the services list them and the gateway passes them on."""

from typing import Literal

from pydantic import BaseModel, Field


class ModelVersion(BaseModel):
    """A version of a model in the store."""

    version: str
    object: Literal["model.version"] = "model.version"
    created: int = Field(description="Unix time in seconds at which it was published.")
    size_bytes: int
    aliases: list[str] = Field(description="Aliases that name it now.")
    serving: bool = Field(description="Whether it answers requests for the model.")
    refusal: str | None = Field(None, description="Why it was not put into service, if it should have been.")


class ModelVersionList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelVersion]
    followed: str = Field(description="The alias that the service follows, or the version that it stays on.")
