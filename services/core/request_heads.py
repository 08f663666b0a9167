"""What the head of a request must be before anybody acts on it: one way to read it, and only one."""

import httptools

from services.core.errors import FoveaError, InvalidRequest, TooLarge

# More than what browsers and proxies send by far; a URL may hold a thousand short captions.
MAX_HEAD_BYTES = 128 * 1024
# The parser counts places in a URL with 16 bits.
MAX_URL_BYTES = 2**16 - 1

Headers = list[tuple[bytes, bytes]]


class UrlTooLong(TooLarge):
    status = 414


class HeadTooLarge(TooLarge):
    status = 431


def head_too_large() -> FoveaError:
    return HeadTooLarge(f"The request's head is too large; the limit is {MAX_HEAD_BYTES} bytes.")


def check_head(method: bytes, version: str, url: bytes, headers: Headers, *, is_upgrade: bool) -> bool:
    """Whether a body follows. Raises FoveaError for what two readers could take for two different requests.

    `headers` have lower-case names. The parser has already refused lines that are folded or end in a bare LF, and
    lengths that are doubled, not digits, or beside a transfer coding.
    """
    if len(url) > MAX_URL_BYTES:
        raise UrlTooLong(f"The URL has {len(url)} bytes; the limit is {MAX_URL_BYTES}.")
    if version not in ("1.1", "1.0"):
        raise InvalidRequest(f"HTTP/{version} is not spoken here; send HTTP/1.1.")
    if method == b"CONNECT":
        raise InvalidRequest("CONNECT is for proxies; this server opens no tunnels.")
    num_hosts = 0
    has_body = False
    for name, value in headers:
        if name == b"host":
            num_hosts += 1
        elif name == b"content-length":
            has_body = has_body or int(value) > 0
        elif name == b"transfer-encoding":
            _check_transfer_encoding(version, value)
            has_body = True
    if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
        raise InvalidRequest(f"An HTTP/1.1 request has exactly one Host header, not {num_hosts}.")
    if is_upgrade and has_body:
        raise InvalidRequest(
            "The request has a body and asks for an upgrade of its connection; none is offered, and its body would "
            "not be read. Send it as plain HTTP/1.1: `curl --http1.1`, in Java "
            "`HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)`.",
            code="upgrade_with_body",
        )
    return has_body


def to_origin_form(url: bytes, headers: Headers) -> bytes:
    """The path and query of a URL that names its host, as clients write to a proxy; that host replaces `Host`."""
    parsed = httptools.parse_url(url)
    if parsed.host is None:
        return url
    host = parsed.host if parsed.port is None else b"%b:%d" % (parsed.host, parsed.port)
    headers[:] = [(b"host", host), *(header for header in headers if header[0] != b"host")]
    path = parsed.path or b"/"
    return path if parsed.query is None else b"%b?%b" % (path, parsed.query)


def _check_transfer_encoding(version: str, value: bytes) -> None:
    if version == "1.0":
        raise InvalidRequest("HTTP/1.0 has no Transfer-Encoding; send Content-Length or HTTP/1.1.")
    if value.strip().lower() != b"chunked":
        raise InvalidRequest(
            f"Transfer-Encoding must be chunked and nothing else, not {str(value[:100], 'latin-1')!r}."
        )
