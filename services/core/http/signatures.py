"""Signatures by which a service knows the requests of its gateway.

A service believes what the gateway's headers say of a request: who sends it, and whose data it may see. Where a file of
secrets is set, the gateway signs every request that it sends, and a service answers only signed ones, so that nobody
else who reaches it can choose a tenant. A signature covers the headers in CALLER_HEADERS, the method and the path with
its query, but no body, and can be sent again until it expires: keeping others from reading the traffic takes TLS.
"""

import hmac
import re
import time
from collections.abc import Mapping, Sequence
from typing import Self

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from services.core.errors import Unauthenticated
from services.core.exchange import CALLER_HEADERS, exchange_of, headers_of
from services.core.followed_file import FollowedFile, changes
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings, variable_of

SIGNATURE_HEADER = "X-Fovea-Signature"
# How far the clocks of a gateway and a service may differ, the time that a request takes between them included.
MAX_AGE_S = 300
POLL_S = 2.0
MAKE = "openssl rand -hex 32"

_HEADER = SIGNATURE_HEADER.lower().encode()
_SIGNATURE = re.compile(rb"t=(\d{1,12}),v1=([0-9a-f]{64})")
_SECRET = re.compile(rb"[!-~]{32,}")

log = structlog.get_logger(__name__)


class NotSigned(Unauthenticated):
    """401 whose challenge tells the gateway that the service refuses its signature, not the client's key."""

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "www-authenticate": SIGNATURE_HEADER}


def parse_secrets(content: bytes, source: str) -> tuple[bytes, ...]:
    """Return the secrets of a file, one or two. Raises ValueError with one sentence that never shows a secret."""
    lines = [(number, line.strip()) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    if len(lines) not in (1, 2):
        raise ValueError(
            f"{source} has {len(lines)} lines: one secret is needed (make it with `{MAKE}`), and a second one only "
            "while the first is replaced"
        )
    for number, line in lines:
        if _SECRET.fullmatch(line) is None:
            raise ValueError(
                f"{source}:{number}: a secret has at least 32 printable ASCII characters without spaces; make it with "
                f"`{MAKE}`"
            )
    return tuple(line for _, line in lines)


class SigningSecrets:
    """The secrets in a file, which is read again when it changes: the first signs, each of them verifies."""

    def __init__(self, file: FollowedFile[tuple[bytes, ...]], variable: str) -> None:
        self.file = file
        self.variable = variable

    @classmethod
    def of(cls, settings: ProcessSettings) -> Self | None:
        """Open the file of the settings, None where none is set. Raises SettingsError for a missing or invalid one."""
        if settings.signing_secret_file is None:
            return None
        variable = variable_of(type(settings), "signing_secret_file")
        cure = f"make it with `{MAKE}`, the same for the gateway and all services"
        return cls(FollowedFile(settings.signing_secret_file, parse_secrets, variable=variable, cure=cure), variable)

    async def follow(self) -> None:
        """Poll the file until cancelled."""
        async for _ in changes(self.file.reload, POLL_S, "signing_secrets"):
            log.info("signing_secrets_reloaded", number=len(self.file.content))

    def sign(self, method: str, target: str, headers: Mapping[str, str]) -> str:
        """Return the value of the header for a request; `target` is its path with the query, as it is sent."""
        given = [headers.get(str(name, "ascii")) for name in CALLER_HEADERS]
        signed_at = int(time.time())
        values = [None if value is None else value.encode() for value in given]
        message = _message(signed_at, method, target.encode(), values)
        return f"t={signed_at},v1={_digest(self.file.content[0], message)}"

    def check(self, scope: Scope) -> None:
        """Raises NotSigned where the request is not as one of the secrets has signed it, lately."""
        headers = headers_of(scope)
        given = headers.get(_HEADER)
        if given is None:
            raise NotSigned(
                f"This service answers only its gateway: the header {SIGNATURE_HEADER} is missing. Ask the gateway, "
                f"and give it the file that {self.variable} names here.",
                code="signature_missing",
            )
        parsed = _SIGNATURE.fullmatch(given)
        if parsed is None or not self._has_signed(scope, int(parsed[1]), str(parsed[2], "ascii")):
            raise NotSigned(
                f"The header {SIGNATURE_HEADER} is not the signature of this request: the gateway's file and that of "
                f"this service ({self.variable}) need a secret in common, which is the gateway's first.",
                code="signature_invalid",
            )
        age_s = int(time.time()) - int(parsed[1])
        if abs(age_s) > MAX_AGE_S:
            raise NotSigned(
                f"The header {SIGNATURE_HEADER} is {abs(age_s)} s {'old' if age_s > 0 else 'ahead'}, more than the "
                f"{MAX_AGE_S} s that are accepted: set the clocks of the gateway and this service alike.",
                code="signature_expired",
            )

    def _has_signed(self, scope: Scope, signed_at: int, digest: str) -> bool:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        values = [headers_of(scope).get(name) for name in CALLER_HEADERS]
        message = _message(signed_at, scope["method"], target, values)
        return any(hmac.compare_digest(digest, _digest(secret, message)) for secret in self.file.content)


class SignatureCheck:
    """Refuse what no gateway has signed: 401. Probes and metrics are asked for by others, and need no signature."""

    def __init__(self, app: ASGIApp, secrets: SigningSecrets, metrics: Metrics) -> None:
        self.app = app
        self.secrets = secrets
        self.rejected = metrics.rejected.labels("unauthenticated")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not exchange_of(scope).is_probe:
            try:
                self.secrets.check(scope)
            except NotSigned:
                self.rejected.inc()
                raise
        await self.app(scope, receive, send)


def _message(signed_at: int, method: str, target: bytes, values: Sequence[bytes | None]) -> bytes:
    """Return what is signed. Nothing in a head holds a line feed, so no two requests have one message."""
    lines = [b"-" if value is None else b"=" + value.strip(b" \t") for value in values]
    return b"\n".join([b"%d" % signed_at, method.encode(), target, *lines])


def _digest(secret: bytes, message: bytes) -> str:
    return hmac.digest(secret, message, "sha256").hex()
