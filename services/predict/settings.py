"""The predict service's settings."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.core.settings import MEBIBYTE, DeviceName, ServiceSettings
from services.core.store.errors import InvalidCheckpoint
from services.core.store.manifest import check_alias, check_model_name, is_version_id


class PredictSettings(ServiceSettings):
    """Settings of the predict service besides those of every service."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_PREDICT_", frozen=True, extra="forbid")

    port: int = Field(8101, ge=0, le=65535)
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        ("word-problems", "inferences"),
        min_length=1,
        description="Served models, separated by commas: `name` for the alias `latest`, or `name@alias`.",
    )
    memory_bytes: int = Field(
        0,
        ge=0,
        description="Maximum size of the parameters of all loaded models, in bytes. The least recently used model is "
        "unloaded to make room for another and loaded again on its next request. 0: no limit.",
    )
    device: DeviceName = Field(
        "auto", description="`cuda`, `mps` or `cpu`; `auto` selects the first that is available."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Precision of the forward pass; `auto`: bfloat16 on CUDA, float32 elsewhere."
    )
    int8: bool = Field(
        default=False,
        description="Compute with 8-bit integers on a CPU: faster and with less memory, but less accurate.",
    )
    num_threads: int = Field(
        0, ge=0, description="Threads of a forward pass on a CPU; 0: one for a small model, otherwise all."
    )
    max_body_bytes: int = Field(16 * MEBIBYTE, gt=0)
    max_inputs: int = Field(2048, ge=1, description="Maximum number of inputs in one request.")

    @field_validator("models", mode="before")
    @classmethod
    def split_models(cls, models: Any) -> Any:
        return tuple(one.strip() for one in models.split(",") if one.strip()) if isinstance(models, str) else models

    @field_validator("models")
    @classmethod
    def check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        followed = [split_model(model) for model in models]
        for name, alias in followed:
            try:
                check_model_name(name)
                if not is_version_id(alias):
                    check_alias(alias)
            except InvalidCheckpoint as error:
                raise ValueError(str(error)) from None
        if len({name for name, _ in followed}) < len(followed):
            raise ValueError("a model can be named once")
        return models


def split_model(model: str) -> tuple[str, str]:
    """Split `name` or `name@alias` into name and alias."""
    name, _, alias = model.partition("@")
    return name, alias or "latest"
