"""The score service's settings."""

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from services.core.settings import MEBIBYTE, ImageSettings


class ScoreSettings(ImageSettings):
    """Settings of the score service besides those of every service."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_SCORE_", frozen=True, extra="forbid")

    port: int = Field(8104, ge=0, le=65535)
    model: str = Field("fsc-clip-scenes")
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
    max_image_bytes: int = Field(20 * MEBIBYTE, ge=1, description="Maximum size of an image file, in bytes.")
    max_image_pixels: int = Field(
        64_000_000, ge=1, description="Maximum number of pixels of an image (width × height)."
    )

    num_negative_threads: int = Field(1, ge=1, description="Threads that generate hard negatives.")
    max_waiting_negatives: int = Field(
        256, ge=1, description="Maximum number of captions queued for hard negatives; further requests get 503."
    )
    max_negative_characters: int = Field(
        1000, ge=1, description="Maximum length of a caption for hard negatives, in characters."
    )
    wordnet_dir: Path | None = Field(
        None, description="Folder of WordNet's data files. Unset: the default locations are searched."
    )

    @field_validator("wordnet_dir")
    @classmethod
    def expand_home_of_wordnet(cls, folder: Path | None) -> Path | None:
        return None if folder is None else folder.expanduser()
