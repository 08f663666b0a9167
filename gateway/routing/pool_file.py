"""The file of pools: processes of one service, all alike, that serve some of its models."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from gateway.followed_file import FollowedFile, parse_file
from gateway.settings import GatewaySettings, Service, check_base_urls

MAX_NAME_LENGTH = 256
# Names of other upstreams in metrics, and of other checks in `/readyz`.
TAKEN = frozenset(
    {
        *get_args(Service),
        *(f"{service}-canary" for service in get_args(Service)),
        "collections",
        "review",
        "startup",
        "drain",
        "keys",
        "addresses",
        "pools",
    }
)

# As a label of DNS, so that a pool can have the name of its Service in a cluster.
PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
# An alias or a version, which would follow an `@`, is the request's.
ModelName = Annotated[str, StringConstraints(pattern=r"^[^@\s]+$", max_length=MAX_NAME_LENGTH)]
TaskName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_LENGTH)]
BaseUrls = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(check_base_urls)]


class Pool(BaseModel):
    """One pool: the models of its service that it claims, and for predict the tasks of requests that name no model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PoolName
    service: Service
    models: tuple[ModelName, ...] = Field(min_length=1)
    tasks: tuple[TaskName, ...] = ()
    urls: BaseUrls

    @field_validator("name")
    @classmethod
    def is_free(cls, name: str) -> str:
        if name in TAKEN:
            raise ValueError(f"{name!r} is a name of the gateway's own")
        return name

    @model_validator(mode="after")
    def has_tasks_only_of_predict(self) -> Self:
        if self.tasks and self.service != "predict":
            raise ValueError(f"tasks: only predict has any, and {self.name!r} is of {self.service}")
        return self


class PoolFile(BaseModel):
    """The contents of a file of pools, in the order in which pools are tried for what names no model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pools: tuple[Pool, ...]

    @field_validator("pools")
    @classmethod
    def are_disjoint(cls, pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
        _check_unique("name", "pools", (pool.name for pool in pools))
        for service in get_args(Service):
            of_service = [pool for pool in pools if pool.service == service]
            claimed = (model for pool in of_service for model in pool.models)
            _check_unique("models", f"pools of {service}", claimed)
            _check_unique("tasks", f"pools of {service}", (task for pool in of_service for task in pool.tasks))
        return pools


def follow_pools(settings: GatewaySettings) -> FollowedFile[PoolFile] | None:
    """Open the file of pools, None where there is none. Raises SettingsError where it is missing or invalid."""
    if settings.pools is None:
        return None
    return FollowedFile(settings.pools, _read, variable="FOVEA_GATEWAY_POOLS", cure="create it, or unset the setting")


def _read(path: Path) -> PoolFile:
    return parse_file(PoolFile, path.read_bytes(), str(path), "file of pools")


def _check_unique(field: str, whose: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{field}: two {whose} have {value!r}")
        seen.add(value)
