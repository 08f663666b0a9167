"""Destinations of requests: services, their canaries, collections and reviews, and the pools of a file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from gateway.settings import Backend, GatewaySettings, Service, check_base_urls
from services.core.followed_file import FollowedFile, parse_file
from services.core.refusals import did_you_mean
from services.core.settings import SettingsError

COLLECTIONS = "collections"
MAX_NAME_LENGTH = 256
# Names of other upstreams in metrics, and of other checks in `/readyz`.
TAKEN = frozenset(
    {
        *get_args(Service),
        *(f"{service}-canary" for service in get_args(Service)),
        COLLECTIONS,
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
    """Open the file of pools, None where there is none.

    Raises SettingsError where it is missing or invalid, and for seconds of a name that nothing has.
    """
    pools: FollowedFile[PoolFile] | None = None
    if settings.pools is not None:
        cure = "create it, or unset the setting"
        parse = partial(parse_file, PoolFile, "file of pools")
        pools = FollowedFile(settings.pools, parse, variable="FOVEA_GATEWAY_POOLS", cure=cure)
    names = [one.name for one in destinations(settings, pools.content.pools if pools else ())]
    for name in sorted(settings.wake_s.keys() - names):
        told = did_you_mean(name, names) or f"; known are {', '.join(names)}."
        raise SettingsError(f"FOVEA_GATEWAY_WAKE_S: no service and no pool is named {name!r}{told}")
    return pools


def _check_unique(field: str, whose: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{field}: two {whose} have {value!r}")
        seen.add(value)


@dataclass(frozen=True)
class Destination:
    """Processes of one service behind one name, which is unique and their label in metrics and in `/readyz`.

    `models` and `tasks` are those that a pool claims.
    """

    name: str
    service: Backend
    urls: tuple[str, ...]
    kind: Literal["service", "collections", "canary", "pool", "review"] = "service"
    models: frozenset[str] = field(default=frozenset())
    tasks: frozenset[str] = field(default=frozenset())

    @property
    def title(self) -> str:
        """The subject of a sentence about it."""
        if self.kind == "review":
            return "The review"
        return f"The pool {self.name}" if self.kind == "pool" else f"The {self.name} service"

    def not_running(self, where: str) -> str:
        """Return a sentence for clients about processes of which none takes a connection."""
        problem = f"{self.title} is not running: no response from {where}."
        if self.kind == "pool":
            return f"{problem} Start it, or correct its addresses in the file of {self.variable}."
        command = "fovea curate review" if self.kind == "review" else "fovea up"
        return f"{problem} Start it with `{command}`, or set {self.variable} to its address."

    def hangs(self) -> str:
        """Return a sentence for clients about processes that take connections and do not respond."""
        cure = "Restart it." if self.kind in ("pool", "review") else "`fovea up` restarts it."
        return f"{self.title} hangs: it accepts connections but does not respond. {cure}"

    @property
    def variable(self) -> str:
        """The setting that has its addresses."""
        if self.kind in ("pool", "canary"):
            return "FOVEA_GATEWAY_POOLS" if self.kind == "pool" else "FOVEA_GATEWAY_CANARY_URLS"
        return f"FOVEA_GATEWAY_{self.name.upper()}_URL{'' if self.kind == 'review' else 'S'}"


def destinations(settings: GatewaySettings, pools: Sequence[Pool]) -> list[Destination]:
    """Return all destinations, the pools in the order of their file.

    A service that has pools has processes beside them only where their URLs were set.
    """
    pooled = {pool.service for pool in pools}
    found = [
        Destination(service, service, settings.urls()[service])
        for service in get_args(Service)
        if service not in pooled or settings.has_own_urls(service)
    ]
    if settings.collections_urls:
        found.append(Destination(COLLECTIONS, "embed", settings.collections_urls, "collections"))
    if settings.review_url:
        found.append(Destination("review", "review", (settings.review_url,), "review"))
    found += [
        Destination(f"{service}-canary", service, urls, "canary") for service, urls in settings.canary_urls.items()
    ]
    return found + [
        Destination(pool.name, pool.service, pool.urls, "pool", frozenset(pool.models), frozenset(pool.tasks))
        for pool in pools
    ]
