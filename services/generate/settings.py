"""The generate service's settings."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.core.byte_sizes import NumBytes
from services.core.serving.model_settings import ModelSettings
from services.core.settings import MEBIBYTE, ImageSettings
from services.generate.capacity import DEFAULT_SHARE


class GenerateSettings(ModelSettings, ImageSettings):
    """Settings of the generate service besides those of every service."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_GENERATE_", frozen=True, extra="forbid")

    port: int = Field(8102, ge=0, le=65535)
    models: Annotated[tuple[str, ...], NoDecode] = Field(("open-facts",), min_length=1)
    engine: Literal["own", "vllm"] = Field(
        "own", description="What computes: `own`, or a server of `vllm` with Fovea's plug-in at `vllm_url`."
    )
    vllm_url: str = Field(
        "http://127.0.0.1:8000",
        pattern="(?i)^https?://",
        description="Address of the vLLM server, for `engine` = `vllm`; `device`, `dtype`, `num_threads`, "
        "`memory_bytes`, `max_cached_tokens`, `memory_share` and `prefix_cache_bytes` are then vLLM's own to choose.",
    )
    vllm_model: str = Field(
        "",
        description="Name by which vLLM serves the model (`--served-model-name`), or one of its LoRA adapters. "
        "Default: the model's own.",
    )
    vllm_key: SecretStr = Field(SecretStr(""), description="Key of the vLLM server (`--api-key`), if it has one.")
    max_body_bytes: NumBytes = Field(16 * MEBIBYTE, gt=0)
    max_documents: int = Field(256, ge=1, description="Most documents in one request.")
    max_image_bytes: NumBytes = Field(20 * MEBIBYTE, ge=1, description="Maximum size of an image file, in bytes.")
    max_image_pixels: int = Field(
        64_000_000, ge=1, description="Maximum number of pixels of an image (width × height)."
    )
    max_tokens: int = Field(4096, ge=1, description="Most tokens of one answer that a request may ask for.")
    max_choices: int = Field(16, ge=1, description="Most answers to one prompt (`n`).")
    max_cached_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens of prompts and answers in the running batch; further requests wait. Default: as many "
        "as fit into `memory_share` of the device's memory beside the weights, on a CPU at most 65,536.",
    )
    memory_share: float = Field(
        DEFAULT_SHARE,
        gt=0,
        le=1,
        description="Share of the device's memory for weights and the tokens of the running batch.",
    )
    max_running: int = Field(64, ge=1, description="Most answers in the running batch.")
    max_waiting: int = Field(1024, ge=1, description="Most answers that may wait for a place in the running batch.")
    max_wait_s: float = Field(
        10.0,
        gt=0,
        description="Longest wait for a place, in seconds: a request that would probably wait longer "
        "is refused with 503, unless it is among the first 32.",
    )
    prefix_cache_bytes: NumBytes = Field(
        512 * MEBIBYTE, ge=0, description="Most bytes kept of computed prompts, for others that begin alike; 0: none."
    )

    @model_validator(mode="after")
    def _one_model_of_vllm(self) -> Self:
        if self.engine == "vllm" and len(self.models) > 1:
            raise ValueError(
                "FOVEA_GENERATE_MODELS: a server of vLLM serves one; another model needs a service of its own"
            )
        return self
