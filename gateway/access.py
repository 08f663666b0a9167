"""Access to services: keys by digest, their scopes, and their rate limits.

A key is 256 random bits, so its plain SHA-256 can't be inverted by search; bcrypt and the like slow down the guessing
of passwords that people choose, and would cost each request a tenth of a second here. Looking up a digest in a
dictionary leaks nothing by its timing: an attacker would have to choose guesses by their digests, that is, to invert
SHA-256.
"""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import structlog
from pydantic import BaseModel, ConfigDict
from starlette.types import Scope as AsgiScope

from gateway.rate_limits import Allowance, RateLimits
from gateway.settings import Backend, GatewaySettings, KeyRecord, Level, Scope
from services.core.durable_files import read_regular_file
from services.core.errors import PermissionDenied, RateLimited, Unauthenticated
from services.core.exchange import DEFAULT_TENANT, Caller, client_network
from services.core.followed_file import FollowedFile, changes, parse_file
from services.core.metrics import Metrics

KEY_PREFIX = "fovea-"
# Longer than any key; anything longer is not hashed.
MAX_KEY_LENGTH = 1024

log = structlog.get_logger(__name__)


class KeyFile(BaseModel):
    """The contents of a keys file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[KeyRecord, ...] = ()


@dataclass(frozen=True)
class Visitor:
    """The sender of a request: limits are counted by `identity`.

    `permissions` and the `scopes` that grant them are None where no key is needed.
    """

    identity: str
    name: str | None = None
    permissions: frozenset[str] | None = None
    scopes: frozenset[Scope] | None = None
    rate: str | None = None
    tenant: str = DEFAULT_TENANT
    prefers_canary: bool = False

    @property
    def caller(self) -> Caller:
        """Return the caller that services are told of."""
        return Caller(self.identity, self.tenant, self.name)

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
        in_file = self.file.content.keys if self.file is not None else ()
        return _visitors([*self._configured, *in_file])


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
            problem = "The key is invalid." if key else "A key is required: send `Authorization: Bearer KEY`."
            raise KeyMissing(problem, code="invalid_api_key")
        structlog.contextvars.bind_contextvars(key=visitor.name)
        return visitor

    def stranger(self, asgi_scope: AsgiScope) -> Visitor:
        """Return the visitor of a request without a key, who may do nothing where keys are needed."""
        client = asgi_scope.get("client")
        identity = f"client:{client_network(client[0]) if client else 'unknown'}"
        return Visitor(identity, permissions=frozenset() if self._keys.is_required else None)

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
        try:
            await self._limits.take_locally(client_network(client[0]) if client else "unknown", self._failure_rate)
        except RateLimited:
            self._metrics.rejected.labels("rate_limit").inc()
            raise

    async def count(self, visitor: Visitor) -> Allowance | None:
        """Count the request against its key's limit; None where it has none. Raises RateLimited."""
        rate = visitor.rate or self._default_rate
        if rate is None:
            return None
        try:
            return await self._limits.take(visitor.identity, rate)
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


def _visitors(records: Iterable[KeyRecord]) -> dict[str, Visitor]:
    return {
        record.sha256: Visitor(
            identity=f"key:{record.sha256[:16]}",
            name=record.name,
            permissions=permissions(record.scopes),
            scopes=record.scopes,
            rate=record.rate_limit,
            tenant=record.tenant,
            prefers_canary=record.canary,
        )
        for record in records
    }
