"""Checks of request heads, against request smuggling: a head must have one reading, and only one."""

from enum import Enum

import httptools

from services.core.errors import FoveaError, InvalidRequest, TooLarge

# Far more than browsers and proxies send; a URL may hold a thousand short captions.
MAX_HEAD_BYTES = 128 * 1024
# The parser has 16 bits for offsets in a URL.
MAX_URL_BYTES = 2**16 - 1

Headers = list[tuple[bytes, bytes]]


class Body(Enum):
    """The framing of the body that follows a head, if any."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"


class UrlTooLong(TooLarge):
    status = 414


class HeadTooLarge(TooLarge):
    status = 431


def head_too_large() -> FoveaError:
    return HeadTooLarge(f"The request's head is too large; the limit is {MAX_HEAD_BYTES} bytes.")


def check_size(method: bytes, url: bytes, headers: Headers) -> int:
    """Return the usual size of a head in bytes. Raises HeadTooLarge, and UrlTooLong where the URL alone is too long."""
    line_bytes = len(method) + len(url) + len(b"  HTTP/1.1\r\n")
    num_bytes = line_bytes + len(b": \r\n") * len(headers) + len(b"\r\n")
    for name, value in headers:
        num_bytes += len(name) + len(value)
    if num_bytes > MAX_HEAD_BYTES:
        raise head_too_large()
    if len(url) > MAX_URL_BYTES:
        raise UrlTooLong(f"The URL has {len(url)} bytes; the limit is {MAX_URL_BYTES}.")
    return num_bytes


def check_head(method: bytes, version: str, headers: Headers, *, is_upgrade: bool) -> Body:
    """Return the framing of the body. Raises FoveaError for a head that two parsers could read differently.

    `headers` have lower-case names. The parser has already refused lines that are folded or end in a bare LF, and
    lengths that are repeated, not digits, or beside a transfer coding.
    """
    if version not in ("1.1", "1.0"):
        raise InvalidRequest(f"HTTP/{version} is not supported; send HTTP/1.1.")
    if method == b"CONNECT":
        raise InvalidRequest("CONNECT is not supported; this server is not a proxy.")
    named = dict(headers)
    num_hosts = 1 if b"host" in named else 0
    if len(named) < len(headers):
        num_hosts = sum(name == b"host" for name, _ in headers)
    body = Body.NONE
    if b"transfer-encoding" in named:
        for name, value in headers:
            if name == b"transfer-encoding":
                _check_transfer_encoding(version, value)
        body = Body.CHUNKED
    elif int(named.get(b"content-length", b"0")) > 0:
        body = Body.LENGTH
    if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
        raise InvalidRequest(f"An HTTP/1.1 request must have exactly one Host header, not {num_hosts}.")
    if is_upgrade and body is not Body.NONE:
        raise InvalidRequest(
            "The request has a body and asks for a connection upgrade, which is not supported. Send it as plain "
            "HTTP/1.1: `curl --http1.1`, in Java "
            "`HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)`.",
            code="upgrade_with_body",
        )
    return body


def to_origin_form(url: bytes, headers: Headers) -> bytes:
    """Return the path and query of an absolute URL, as clients send to a proxy; its host replaces `Host`."""
    parsed = httptools.parse_url(url)
    if not parsed.host:
        return url
    host = b"%b:%d" % (parsed.host, parsed.port) if parsed.port else parsed.host
    headers[:] = [(b"host", host), *(header for header in headers if header[0] != b"host")]
    path = parsed.path or b"/"
    return b"%b?%b" % (path, parsed.query) if parsed.query else path


def _check_transfer_encoding(version: str, value: bytes) -> None:
    if version == "1.0":
        raise InvalidRequest("HTTP/1.0 has no Transfer-Encoding; send Content-Length or HTTP/1.1.")
    if value.strip().lower() != b"chunked":
        raise InvalidRequest(
            f"Transfer-Encoding must be chunked and nothing else, not {str(value[:100], 'latin-1')!r}."
        )
