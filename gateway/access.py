"""Access to services: keys by digest, their scopes, and their rate limits.

A key is 256 random bits, so its plain SHA-256 can't be inverted by search; bcrypt and the like slow down the guessing
of passwords that people choose, and would cost each request a tenth of a second here. Looking up a digest in a
dictionary leaks nothing by its timing: an attacker would have to choose guesses by their digests, that is, to invert
SHA-256.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

import structlog
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.types import Scope as AsgiScope

from gateway.rate_limits import Allowance, Limit, RateLimits, Unit
from gateway.settings import Backend, GatewaySettings, KeyRecord, Level, Limits, LimitsByModel, Scope
from services.core.durable_files import read_regular_file
from services.core.errors import PermissionDenied, RateLimited, Unauthenticated
from services.core.exchange import DEFAULT_TENANT, TENANT_PATTERN, Caller, client_network
from services.core.followed_file import FollowedFile, changes, parse_file
from services.core.metrics import Metrics

KEY_PREFIX = "fovea-"
# Longer than any key; anything longer is not hashed.
MAX_KEY_LENGTH = 1024

log = structlog.get_logger(__name__)


class KeyFile(BaseModel):
    """The contents of a keys file: keys, and limits that all keys of a tenant share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[KeyRecord, ...] = ()
    tenants: dict[Annotated[str, StringConstraints(pattern=TENANT_PATTERN)], LimitsByModel] = {}


@dataclass(frozen=True)
class Visitor:
    """The sender of a request: permits and turns are shared out by `identity`.

    `limits` are those of all requests, `model_limits` further ones of those that a model answers. `permissions` and the
    `scopes` that grant them are None where no key is needed.
    """

    identity: str
    name: str | None = None
    permissions: frozenset[str] | None = None
    scopes: frozenset[Scope] | None = None
    limits: tuple[Limit, ...] = ()
    model_limits: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    tenant: str = DEFAULT_TENANT
    prefers_canary: bool = False

    @property
    def caller(self) -> Caller:
        """Return the caller that services are told of."""
        return Caller(self.identity, self.tenant, self.name)

    @property
    def counts_tokens(self) -> bool:
        every = (self.limits, *self.model_limits.values())
        return any(one.unit == "tokens" for limits in every for one in limits)

    def may(self, permission: str) -> bool:
        """Whether the key has a permission such as `embed:write` or `metrics`."""
        return self.permissions is None or permission in self.permissions or "admin" in self.permissions


class KeyMissing(Unauthenticated):
    """401 with the challenge that RFC 9110 asks for."""

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "www-authenticate": "Bearer"}


def new_key() -> str:
    """Return a new key of 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """Return the digest by which a key is stored."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_key_file(path: Path) -> KeyFile:
    """Read a keys file. Raises OSError, and ValueError with one sentence for an invalid one."""
    return parse_key_file(read_regular_file(path), str(path))


def parse_key_file(content: bytes, source: str) -> KeyFile:
    """Parse what a keys file holds. Raises ValueError with one sentence that names the source."""
    return parse_file(KeyFile, "keys file", content, source)


class KeyRing:
    """The keys of the settings and of the keys file, which is read again when it changes.

    A keys file that is configured but missing or invalid prevents the start, with SettingsError: a typing error must
    not leave a gateway open. One that becomes invalid later is reported and the keys stay as they were.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._poll_s = settings.keys_poll_s
        self._default_rate = settings.rate_limit
        self._configured = settings.keys
        self.file: FollowedFile[KeyFile] | None = None
        if settings.keys_file is not None:
            cure = "create it with `fovea keys create`"
            variable = "FOVEA_GATEWAY_KEYS_FILE"
            self.file = FollowedFile(settings.keys_file, parse_key_file, variable=variable, cure=cure)
        self._visitors = self._known()
        self.is_required = settings.keys_file is not None or bool(settings.keys)

    def find(self, key: str) -> Visitor | None:
        return self._visitors.get(digest(key))

    def limited_models(self) -> dict[str, list[str]]:
        """Return the models that have limits, each with what these are called in errors."""
        found: dict[str, list[str]] = {}
        for visitor in self._visitors.values():
            for model, limits in visitor.model_limits.items():
                found[model] = sorted({*found.get(model, ()), *(one.whose for one in limits)})
        return found

    def reload(self) -> bool:
        """Read the file if it has changed since, and return whether it had. Raises OSError and ValueError."""
        if self.file is None or not self.file.reload():
            return False
        self._visitors = self._known()
        return True

    async def follow(self) -> None:
        """Poll the file until cancelled."""
        async for _ in changes(self.reload, self._poll_s, "keys"):
            log.info("keys_reloaded", keys=len(self._visitors))

    def _known(self) -> dict[str, Visitor]:
        file = self.file.content if self.file is not None else KeyFile()
        records = (*self._configured, *file.keys)
        return {one.sha256: _visitor(one, file.tenants.get(one.tenant), self._default_rate) for one in records}


class Access:
    """Authentication, rate limit and authorisation, in that order."""

    def __init__(self, keys: KeyRing, limits: RateLimits, settings: GatewaySettings, metrics: Metrics) -> None:
        self._keys = keys
        self._limits = limits
        self._default_rate = settings.rate_limit
        self._failure_rate = settings.failed_key_limit
        self._metrics = metrics

    def authenticate(self, asgi_scope: AsgiScope) -> Visitor:
        """Return the visitor. Raises Unauthenticated where a key is needed and no known one was sent."""
        if not self._keys.is_required:
            return self.stranger(asgi_scope)
        key, visitor = self._known(asgi_scope)
        if visitor is None:
            self._metrics.rejected.labels("unauthenticated").inc()
            missing = "A key is required: send `Authorization: Bearer KEY` or `X-API-Key: KEY`."
            problem = "The key is invalid." if key else missing
            raise KeyMissing(problem, code="invalid_api_key")
        structlog.contextvars.bind_contextvars(key=visitor.name)
        return visitor

    def stranger(self, asgi_scope: AsgiScope) -> Visitor:
        """Return the visitor of a request without a key, who may do nothing where keys are needed."""
        client = asgi_scope.get("client")
        identity = f"client:{client_network(client[0]) if client else 'unknown'}"
        limits = tuple(_limits("A client", identity, Limits(rate_limit=self._default_rate)))
        return Visitor(identity, permissions=frozenset() if self._keys.is_required else None, limits=limits)

    def authorize(self, visitor: Visitor, permission: str) -> None:
        """Raises PermissionDenied where no scope of the key grants the permission."""
        if not visitor.may(permission):
            self._metrics.rejected.labels("forbidden").inc()
            service, _, level = permission.partition(":")
            scopes = f"{service!r} or {permission!r}" if level else repr(permission)
            raise PermissionDenied(f"The key {visitor.name!r} lacks the scope {scopes}.", code="missing_scope")

    async def count_public(self, asgi_scope: AsgiScope) -> None:
        """Count a request that needs no key: against the limit of its key if it has one, else as one without a key.

        Raises RateLimited.
        """
        _, visitor = self._known(asgi_scope)
        if visitor is None and self._keys.is_required:
            await self.count_failure(asgi_scope)
        else:
            await self.count(visitor or self.stranger(asgi_scope))

    def _known(self, asgi_scope: AsgiScope) -> tuple[str | None, Visitor | None]:
        """Return the key that was sent, and its visitor if it is known."""
        key = presented_key(asgi_scope["headers"])
        return key, self._keys.find(key) if key and len(key) <= MAX_KEY_LENGTH else None

    async def count_failure(self, asgi_scope: AsgiScope) -> None:
        """Count a failed authentication against its client's limit. Raises RateLimited."""
        if self._failure_rate is None:
            return
        client = asgi_scope.get("client")
        identity = client_network(client[0]) if client else "unknown"
        try:
            await self._limits.take_locally(Limit("A client without a valid key", identity, self._failure_rate))
        except RateLimited:
            self._metrics.rejected.labels("rate_limit").inc()
            raise

    async def count(self, visitor: Visitor) -> list[Allowance]:
        """Count the request against the limits in requests of its key and tenant. Raises RateLimited."""
        return await self._take(visitor.limits, "requests")

    async def check_tokens(self, visitor: Visitor) -> list[Allowance]:
        """See that the key and its tenant have tokens left. Raises RateLimited."""
        return await self._take(visitor.limits, "tokens")

    async def count_model(self, visitor: Visitor, model: str) -> list[Allowance]:
        """Count the request against the limits of a model, and see that it has tokens left. Raises RateLimited."""
        limits = visitor.model_limits.get(model, ())
        return await self._take(limits, "tokens") + await self._take(limits, "requests")

    async def spend(self, visitor: Visitor, model: str, num_tokens: int) -> list[Allowance]:
        """Take the tokens that a request used from every limit that it counts against, and return what is left."""
        limits = (*visitor.limits, *visitor.model_limits.get(model, ()))
        return [await self._limits.spend(one, num_tokens) for one in limits if one.unit == "tokens" and num_tokens]

    async def left(self, limits: Iterable[Limit]) -> list[Allowance]:
        """Return what limits leave, and take nothing."""
        return [await self._limits.left(limit) for limit in limits]

    async def _take(self, limits: Iterable[Limit], unit: Unit) -> list[Allowance]:
        try:
            return [await self._limits.take(limit) for limit in limits if limit.unit == unit]
        except RateLimited:
            self._metrics.rejected.labels("rate_limit").inc()
            raise


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the key in `Authorization: Bearer KEY`, `Authorization: KEY` or `X-API-Key: KEY`, the first present."""
    named = dict(headers)
    authorization = str(named.get(b"authorization", b""), "latin-1").strip()
    scheme, separator, credentials = authorization.partition(" ")
    if not separator and scheme:
        return scheme
    if scheme.lower() == "bearer":
        return credentials.strip()
    return str(named.get(b"x-api-key", b""), "latin-1").strip() or None


def permissions(scopes: Iterable[Scope]) -> frozenset[str]:
    """Return the permissions of scopes, such as `embed:read`; a scope without a level grants up to `write`."""
    granted: set[str] = set()
    for scope in scopes:
        name, _, level = scope.partition(":")
        if name in get_args(Backend):
            levels = get_args(Level)
            granted |= {f"{name}:{each}" for each in levels[: levels.index(level or "write") + 1]}
        else:
            granted.add(scope)
    return frozenset(granted)


def _visitor(record: KeyRecord, tenant: LimitsByModel | None, default_rate: str | None) -> Visitor:
    identity = f"key:{record.sha256[:16]}"
    of_key = record if record.rate_limit else record.model_copy(update={"rate_limit": default_rate})
    holders: list[tuple[str, str, LimitsByModel]] = [(f"The key {record.name!r}", identity, of_key)]
    if tenant is not None:
        holders.append((f"The tenant {record.tenant!r}", f"tenant:{record.tenant}", tenant))
    by_model: dict[str, tuple[Limit, ...]] = {}
    for whose, counted_as, held in holders:
        for model, limits in held.models.items():
            more = _limits(f"{whose} with the model {model!r}", f"{counted_as}:{model}", limits)
            by_model[model] = (*by_model.get(model, ()), *more)
    return Visitor(
        identity=identity,
        name=record.name,
        permissions=permissions(record.scopes),
        scopes=record.scopes,
        limits=tuple(limit for holder in holders for limit in _limits(*holder)),
        model_limits=by_model,
        tenant=record.tenant,
        prefers_canary=record.canary,
    )


def _limits(whose: str, identity: str, limits: Limits) -> Iterator[Limit]:
    if limits.rate_limit:
        yield Limit(whose, identity, limits.rate_limit)
    if limits.token_limit:
        yield Limit(whose, identity, limits.token_limit, "tokens")
