"""The embed service's settings."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from services.core.byte_sizes import NumBytes
from services.core.serving.model_settings import ModelSettings
from services.core.settings import MEBIBYTE, ImageSettings

GIBIBYTE = 1024 * MEBIBYTE


class EmbedSettings(ModelSettings, ImageSettings):
    """Settings of the embed service in addition to those of all services."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_EMBED_", frozen=True, extra="forbid")

    port: int = Field(8103, ge=0, le=65535)
    models: Annotated[tuple[str, ...], NoDecode] = Field(("focallens-shapes",), min_length=1)
    max_inputs: int = Field(4096, ge=1, description="Maximum number of images and texts in one request.")
    max_conditions: int = Field(64, ge=1, description="Maximum number of conditions in one request.")
    max_image_bytes: NumBytes = Field(20 * MEBIBYTE, ge=1, description="Maximum size of an image file, in bytes.")
    max_image_pixels: int = Field(
        64_000_000, ge=1, description="Maximum number of pixels of an image (width × height)."
    )

    collections_dir: Path = Field(Path("~/.fovea/collections"), description="Folder of the image collections.")
    collections_url: str | None = Field(
        None,
        repr=False,
        description="`postgresql://…`: database, with pgvector, of collections that all processes of embed share. "
        "Unset: each process has its own, in the folder.",
    )
    collections_store_url: str | None = Field(
        None,
        description="Object store for the images of shared collections: `file://` (a disk that all processes share), "
        "`s3://` or `gs://`. Unset: the model store.",
    )
    collection_lease_s: float = Field(
        60.0,
        gt=0,
        description="Seconds without progress after which another process indexes the rows that one has leased.",
    )
    max_collections: int = Field(100, ge=0, description="Maximum number of collections of a tenant.")
    collection_max_images: int = Field(1_000_000, ge=1, description="Maximum number of images in one collection.")
    collection_max_bytes: NumBytes = Field(
        100 * GIBIBYTE, ge=1, description="Maximum total size of the images in one collection, in bytes."
    )
    collection_max_conditions: int = Field(
        32, ge=1, description="Maximum number of conditions that one collection indexes."
    )
    collection_max_metadata_bytes: NumBytes = Field(
        16 * 1024, ge=2, description="Maximum size of an image's metadata as JSON, in bytes."
    )
    collection_state_bytes: NumBytes = Field(
        4 * GIBIBYTE,
        ge=0,
        description="Maximum size of the image states that one collection stores so that new conditions need not "
        "encode images again (`readout` checkpoints), in bytes; 0: none.",
    )
    index_max_exact: int = Field(
        50_000, ge=1, description="Maximum number of images for which a condition's index is exact."
    )
    index_min_recall: float = Field(
        0.95, gt=0, le=1, description="Recall@10 that an approximate index must reach; otherwise the index stays exact."
    )
    index_device: Literal["cpu", "cuda"] = Field(
        "cpu",
        description="Device for searches; `cuda` needs the extra `search-gpu`, and without a GPU is the same as `cpu`.",
    )
    index_device_bytes: NumBytes = Field(
        8 * GIBIBYTE,
        ge=0,
        description="Most bytes of vectors of one index on the GPU, where search is exact; of more, lists of codes are "
        "searched there, which take a quarter.",
    )
    index_save_every_s: float = Field(30.0, gt=0, description="Seconds between saves of changed indexes.")
    max_k: int = Field(1000, ge=1, description="Maximum number of results of one search.")
    shortlist_size: int = Field(
        512,
        ge=1,
        description="Number of images that a search under a new condition encodes while the condition's index is being "
        "built; more if it must return more results.",
    )

    @field_validator("collections_dir")
    @classmethod
    def expand_home_of_collections(cls, folder: Path) -> Path:
        return folder.expanduser()

    @field_validator("collections_store_url")
    @classmethod
    def expand_home_of_images(cls, url: str | None) -> str | None:
        return None if url is None else cls.expand_home(url)

    @model_validator(mode="after")
    def check_shared_collections(self) -> "EmbedSettings":
        if self.collections_url is None:
            if self.collections_store_url is not None:
                raise ValueError(
                    "FOVEA_EMBED_COLLECTIONS_STORE_URL is for shared collections, which need "
                    "FOVEA_EMBED_COLLECTIONS_URL, too"
                )
            return self
        if not self.collections_url.startswith(("postgresql://", "postgres://")):
            raise ValueError("FOVEA_EMBED_COLLECTIONS_URL must begin with postgresql://")
        if (self.collections_store_url or self.store_url).startswith("memory://"):
            raise ValueError(
                "FOVEA_EMBED_COLLECTIONS_STORE_URL (unset: FOVEA_STORE_URL) must not be memory://, which no process "
                "shares with another"
            )
        return self
