"""`GET /v1/key`: what the key of a request may do, what is left of its limits, and how much it has asked for."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from gateway.access import Access, Visitor
from gateway.rate_limits import Allowance, Unit

# Of every visitor where no key is needed: counting by address would have no bound.
EVERYBODY = "everybody"
STATE = "fovea.admitted"


@dataclass(slots=True)
class RequestCounts:
    """Requests, and those among them that were refused or failed."""

    requests: int = 0
    errors: Annotated[int, Field(description="Answered with a status from 400 on.")] = 0


class UsageCounts:
    """Counts of requests since the start of this process, by key and by the service that was asked."""

    def __init__(self) -> None:
        self.since = int(time.time())
        self._by_key: dict[str, dict[str, RequestCounts]] = {}

    def of(self, visitor: Visitor) -> dict[str, RequestCounts]:
        """Return the counts of a visitor's key by service; of all visitors where no key is needed."""
        return self._by_key.setdefault(visitor.identity if visitor.name else EVERYBODY, {})

    def begin(self, visitor: Visitor, service: str) -> RequestCounts:
        """Count a request; its error is counted on what is returned."""
        by_service = self.of(visitor)
        counts = by_service.get(service) or by_service.setdefault(service, RequestCounts())
        counts.requests += 1
        return counts


@dataclass
class Admitted:
    """A request that was admitted: by whom, what is left of their limits, and where it is counted."""

    visitor: Visitor
    counts: RequestCounts
    allowances: dict[Unit, Allowance] = field(default_factory=dict)

    def note(self, allowances: Iterable[Allowance]) -> None:
        """Keep, of requests and of tokens, the limit that leaves the least."""
        self.allowances = _least([*self.allowances.values(), *allowances])


class KeyLimit(BaseModel):
    """A limit and the rest of it now: of those of the key and of its tenant the one that leaves the least."""

    rate: str
    limit: int = Field(description="Requests or tokens per window.")
    remaining: int
    reset_s: int = Field(description="Seconds until there are more.")


class KeyModelLimits(BaseModel):
    """Further limits of the requests that one model answers."""

    rate_limit: KeyLimit | None
    token_limit: KeyLimit | None


class OwnKey(BaseModel):
    """The key that a request was sent with; `name` and `scopes` are null where no key is needed."""

    object: Literal["key"] = "key"
    name: str | None
    tenant: str
    scopes: list[str] | None
    rate_limit: KeyLimit | None = Field(description="In requests.")
    token_limit: KeyLimit | None = Field(description="In tokens that models read and generate.")
    models: dict[str, KeyModelLimits] = Field(description="Limits of single models, by name.")
    since: int = Field(description="Unix time in seconds from which requests are counted: the gateway's start.")
    usage: dict[str, RequestCounts] = Field(
        description="Requests by service; `gateway` are those that no service was asked for. Each process of the "
        "gateway counts its own. Without keys, those of all clients."
    )


def own_key_router(usage: UsageCounts, access: Access) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/key", tags=["models"])
    async def show_own_key(request: Request) -> OwnKey:
        """The key of this request: its scopes, what is left of its limits, and how much it has been used."""
        admitted: Admitted = request.scope[STATE]
        visitor = admitted.visitor
        left = _least(await access.left(visitor.limits))
        of_models = {name: _least(await access.left(limits)) for name, limits in visitor.model_limits.items()}
        return OwnKey(
            name=visitor.name,
            tenant=visitor.tenant,
            scopes=None if visitor.scopes is None else sorted(visitor.scopes),
            rate_limit=_limit(left.get("requests")),
            token_limit=_limit(left.get("tokens")),
            models={
                name: KeyModelLimits(rate_limit=_limit(one.get("requests")), token_limit=_limit(one.get("tokens")))
                for name, one in of_models.items()
            },
            since=usage.since,
            usage=usage.of(visitor),
        )

    return router


def _least(allowances: Iterable[Allowance]) -> dict[Unit, Allowance]:
    """Return, of requests and of tokens, the limit that leaves the least."""
    found: dict[Unit, Allowance] = {}
    for one in sorted(allowances, key=lambda one: one.remaining):
        found.setdefault(one.unit, one)
    return found


def _limit(left: Allowance | None) -> KeyLimit | None:
    if left is None:
        return None
    return KeyLimit(rate=left.rate, limit=left.limit, remaining=left.remaining, reset_s=math.ceil(left.more_s))
