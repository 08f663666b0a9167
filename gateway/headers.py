"""The headers that pass through the gateway, and those that belong to one connection or to the gateway alone."""

from collections.abc import Iterable

from multidict import CIMultiDict
from starlette.types import Scope

from services.core.admission.admission import PERMITS_HEADER
from services.core.exchange import CALLER_HEADERS, TOKENS_HEADER, Caller, Timing
from services.core.http.signatures import SIGNATURE_HEADER

# RFC 9110, 7.6.1: about one connection, not about the message. `Expect` is answered by the gateway's own server, and
# `HTTP2-Settings` belongs to an upgrade.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"expect",
    }
)
# Keys are dropped: a service has no use for them, and they must not reach its logs. The others are set anew.
REPLACED = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"host",
        b"x-request-id",
        b"x-request-timeout",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"forwarded",
        # Checked by the gateway itself.
        b"origin",
        b"sec-fetch-dest",
        b"sec-fetch-mode",
        b"sec-fetch-site",
        b"sec-fetch-user",
        *CALLER_HEADERS,
        TOKENS_HEADER,
        SIGNATURE_HEADER.lower().encode(),
    }
)
# The length is that of the body as it was read, which is known only on sending.
NOT_FORWARDED = HOP_BY_HOP | REPLACED | {b"content-length"}
# The gateway's own server dates every response, and names the model; permits and tokens are for the gateway only.
NOT_RETURNED = HOP_BY_HOP | {b"date", b"x-fovea-model", PERMITS_HEADER, TOKENS_HEADER}

RawHeaders = Iterable[tuple[bytes, bytes]]


def request_headers(scope: Scope, caller: Caller) -> CIMultiDict[str]:
    """Return the service's headers, except `Host`, `X-Request-Timeout` and `Content-Length`, which each attempt adds.

    `X-Forwarded-For` gets the peer's address appended; `X-Forwarded-Proto` and `-Host` are kept where a proxy in
    front has set them.
    """
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    named = dict(raw)
    dropped = NOT_FORWARDED
    if b"connection" in named:
        dropped = dropped | _named_by_connection(raw)
    headers = CIMultiDict([(str(name, "latin-1"), _text(value)) for name, value in raw if name not in dropped])
    peer = scope["client"][0] if scope.get("client") else "unknown"
    forwarded_for = [str(value, "latin-1") for name, value in raw if name == b"x-forwarded-for"]
    headers["X-Forwarded-For"] = ", ".join([*forwarded_for, peer])
    headers["X-Forwarded-Proto"] = str(named.get(b"x-forwarded-proto", b""), "latin-1") or scope["scheme"]
    if host := named.get(b"x-forwarded-host") or named.get(b"host"):
        headers["X-Forwarded-Host"] = str(host, "latin-1")
    headers["X-Request-ID"] = scope["state"]["request_id"]
    headers.update(caller.headers())
    return headers


def response_headers(raw: RawHeaders, status: int, timing: Timing) -> list[tuple[bytes, bytes]]:
    """Return the client's headers. The service's `Server-Timing` moves into `timing`, to be sent together with ours."""
    headers = [(name.lower(), value) for name, value in raw]
    dropped = NOT_RETURNED
    if any(name == b"connection" for name, _ in headers):
        dropped = dropped | _named_by_connection(headers)
    if status in (204, 304):
        # No body follows, whatever length the service announces.
        dropped = dropped | {b"content-length"}
    return [
        (name, value)
        for name, value in headers
        if name not in dropped and not (name == b"server-timing" and _move_stages(value, timing))
    ]


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    return frozenset(
        token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")
    )


def _move_stages(server_timing: bytes, timing: Timing) -> bool:
    """Move stages with durations; False where the header has anything else, which is left unchanged."""
    try:
        stages = {
            str(name.strip(), "ascii"): float(milliseconds) / 1000
            for name, milliseconds in (metric.split(b";dur=") for metric in server_timing.split(b","))
        }
    except ValueError:
        return False
    for name, seconds in stages.items():
        timing.add(name, seconds)
    return True


def _text(value: bytes) -> str:
    """Decode a value so that UTF-8 is sent on unchanged, and Latin-1, which HTTP once allowed, as UTF-8."""
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return str(value, "latin-1")
