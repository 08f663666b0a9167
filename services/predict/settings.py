"""The predict service's settings."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import NoDecode, SettingsConfigDict

from services.core.byte_sizes import NumBytes
from services.core.serving.model_settings import ModelSettings
from services.core.settings import MEBIBYTE


class PredictSettings(ModelSettings):
    """Settings of the predict service besides those of every service."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_PREDICT_", frozen=True, extra="forbid")

    port: int = Field(8101, ge=0, le=65535)
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        ("word-problems", "inferences"),
        min_length=1,
        description="Served models, separated by commas: `name`, or `name@alias` for another alias or a version. "
        "A request that names no model is answered by the one that has its task.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Precision of the forward pass; `auto`: bfloat16 on CUDA, float32 elsewhere."
    )
    int8: bool = Field(
        default=False,
        description="Compute with 8-bit integers on a CPU: faster and with less memory, but less accurate.",
    )
    max_body_bytes: NumBytes = Field(16 * MEBIBYTE, gt=0)
    max_inputs: int = Field(2048, ge=1, description="Maximum number of inputs in one request.")
