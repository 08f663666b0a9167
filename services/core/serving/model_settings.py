"""The settings of a service that runs models of a store."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from services.core.byte_sizes import NumBytes
from services.core.settings import DeviceName, DtypeName, ServiceSettings
from services.core.store.errors import InvalidCheckpoint
from services.core.store.manifest import check_alias, check_model_name, is_version_id


class ModelSettings(ServiceSettings):
    """Settings of a service that follows checkpoints; each gives `models` a default."""

    models: Annotated[tuple[str, ...], NoDecode] = Field(
        min_length=1,
        description="Served models, separated by commas: `name`, or `name@alias` for another alias or a version. "
        "A request that names no model is answered by the first.",
    )
    alias: str = Field("latest", description="Alias that the service follows of models without one in the list.")
    memory_bytes: NumBytes = Field(
        0,
        ge=0,
        description="Maximum size of the parameters of all loaded models, in bytes. The least recently used model is "
        "unloaded to make room for another and loaded again on its next request. 0: no limit.",
    )
    device: DeviceName = Field(
        "auto", description="`cuda`, `mps` or `cpu`; `auto` selects the first that is available."
    )
    dtype: DtypeName = Field(
        "auto", description="Precision of the forward pass; `auto`: bfloat16 on CUDA, float32 elsewhere."
    )
    memory_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of a GPU's memory that torch may take in this process, for other processes on the same GPU.",
    )
    num_threads: int = Field(
        0, ge=0, description="Threads of a forward pass on a CPU; 0: one for a small model, otherwise all."
    )

    @field_validator("models", mode="before")
    @classmethod
    def split_models(cls, models: Any) -> Any:
        return tuple(one.strip() for one in models.split(",") if one.strip()) if isinstance(models, str) else models

    @field_validator("models")
    @classmethod
    def check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        named = [model.partition("@") for model in models]
        for name, at, alias in named:
            _check(check_model_name, name)
            if at and not is_version_id(alias):
                _check(check_alias, alias)
        names = [name for name, _, _ in named]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{twice!r} is named twice; another version of it runs in a process of its own")
        return models

    @field_validator("alias")
    @classmethod
    def check_default_alias(cls, alias: str) -> str:
        return alias if is_version_id(alias) else _check(check_alias, alias)

    @property
    def followed(self) -> tuple[tuple[str, str], ...]:
        """Name of each model, and the alias or the version of it that is served."""
        named = (model.partition("@") for model in self.models)
        return tuple((name, alias or self.alias) for name, _, alias in named)


def cure_of_absence(name: str, alias: str, variable: str) -> str:
    """Tell what helps where the store lacks a model that a setting names; no command makes a version of a given id."""
    if is_version_id(alias):
        return f"change {variable}"
    target = f"--name {name} --alias {alias}"
    return f"fovea store import SOURCE {target}, or fovea store publish FOLDER {target}, or change {variable}"


def _check(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except InvalidCheckpoint as error:
        raise ValueError(str(error)) from None
