"""The score service's settings."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.core.byte_sizes import NumBytes
from services.core.serving.model_settings import ModelSettings
from services.core.settings import MEBIBYTE, ImageSettings


class ScoreSettings(ModelSettings, ImageSettings):
    """Settings of the score service besides those of every service."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_SCORE_", frozen=True, extra="forbid")

    port: int = Field(8104, ge=0, le=65535)
    models: Annotated[tuple[str, ...], NoDecode] = Field(("fsc-clip-scenes",), min_length=1)
    num_decode_threads: int = Field(4, ge=1, description="Threads that decode images and tokenize captions.")
    max_captions: int = Field(
        1024, ge=1, description="Maximum number of captions, or of pairs of an image and a text, in one request."
    )
    max_images: int = Field(64, ge=1, description="Maximum number of images in one request in vLLM's format.")
    max_explained_captions: int = Field(64, ge=1, description="Maximum number of captions in a request with `explain`.")
    max_heatmap_numbers: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of values in the heatmaps of one response: captions x tokens x patches.",
    )
    max_image_bytes: NumBytes = Field(20 * MEBIBYTE, ge=1, description="Maximum size of an image file, in bytes.")
    max_image_pixels: int = Field(
        64_000_000, ge=1, description="Maximum number of pixels of an image (width × height)."
    )

    max_negative_characters: int = Field(
        1000, ge=1, description="Maximum length of a caption for hard negatives, in characters."
    )
    max_negative_captions: int = Field(
        32, ge=1, description="Maximum number of captions in one request for hard negatives."
    )
    teacher_url: str | None = Field(
        None,
        description="Base URL of an OpenAI-compatible endpoint that writes hard negatives with method `llm`, such as"
        " `http://127.0.0.1:8080/v1`. Unset: that method is refused.",
    )
    teacher_model: str | None = Field(None, description="Name of the model there.")
    teacher_key: SecretStr | None = Field(None, description="Key of that endpoint.")
    teacher_timeout_s: float = Field(60.0, gt=0, description="Seconds to wait for one of its answers.")
    teacher_concurrency: int = Field(8, ge=1, description="Number of concurrent requests to it.")

    vqa_url: str | None = Field(
        None,
        description="Base URL of an OpenAI-compatible endpoint of a vision-language model, which answers `vqa_top_k`,"
        " such as `http://127.0.0.1:8000/v1`. Unset: that field is refused.",
    )
    vqa_model: str | None = Field(None, description="Name of the model there.")
    vqa_key: SecretStr | None = Field(None, description="Key of that endpoint.")
    vqa_timeout_s: float = Field(60.0, gt=0, description="Seconds to wait for one of its answers.")
    vqa_concurrency: int = Field(8, ge=1, description="Number of concurrent requests to it.")
    vqa_image_side: int = Field(
        1024, ge=1, le=8192, description="Longer side, in pixels, to which larger images are reduced for it."
    )
    max_vqa_captions: int = Field(16, ge=1, description="Maximum of `vqa_top_k`.")

    wordnet_dir: Path | None = Field(
        None, description="Folder of WordNet's data files. Unset: the default locations are searched."
    )

    @field_validator("wordnet_dir")
    @classmethod
    def expand_home_of_wordnet(cls, folder: Path | None) -> Path | None:
        return None if folder is None else folder.expanduser()

    @model_validator(mode="after")
    def has_endpoints_with_models(self) -> Self:
        if (self.teacher_url is None) != (self.teacher_model is None):
            raise ValueError("FOVEA_SCORE_TEACHER_URL and FOVEA_SCORE_TEACHER_MODEL belong together")
        if (self.vqa_url is None) != (self.vqa_model is None):
            raise ValueError("FOVEA_SCORE_VQA_URL and FOVEA_SCORE_VQA_MODEL belong together")
        return self
