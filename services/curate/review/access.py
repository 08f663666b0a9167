"""Access to a review beyond this machine: whoever has the token may judge, under any name, or a key of the gateway."""

import os
import re
import secrets
from pathlib import Path

from fastapi import Request, Response

from services.core.errors import Unauthenticated
from services.core.exchange import caller_of, header_of
from services.core.http.browsers import is_loopback

COOKIE = "fovea_review"
COOKIE_S = 30 * 24 * 3600
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")


class BadToken(OSError):
    """A file of a token that can't be used; the message names it."""


class Access:
    """Checks that requests carry the token, in a cookie or as `Authorization: Bearer TOKEN`.

    The cookie reaches no script, and browsers send it for no page of another site. Without a token all may pass who
    reach the server; of those whom the gateway lets through, its own machine's and those with one of its keys.
    """

    def __init__(self, token: str | None) -> None:
        self._token = token

    def check(self, request: Request) -> None:
        """Raises Unauthenticated."""
        if self._token is None:
            _check_is_near(request)
            return
        authorization = header_of(request.scope, b"authorization") or ""
        scheme, _, credentials = authorization.partition(" ")
        given = credentials.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        self._compare(given)

    def admit(self, token: str, response: Response) -> None:
        """Give a browser that sends the token the cookie. Raises Unauthenticated for another token."""
        self._compare(token)
        # Without a path: browsers then send it back to what is beside this route, and the gateway to no service.
        response.set_cookie(COOKIE, token, max_age=COOKIE_S, path=None, httponly=True, samesite="strict")

    def _compare(self, given: str) -> None:
        if self._token is not None and not secrets.compare_digest(_bytes(given), _bytes(self._token)):
            raise Unauthenticated(
                "The token is wrong." if given else "A token is needed: open the address with it.",
                code="invalid_token",
            )


def _check_is_near(request: Request) -> None:
    """Raises Unauthenticated for what a proxy forwards from elsewhere without a key.

    All addresses count: of several proxies on this machine, only the first names who has sent the request.
    """
    senders = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    is_near = all(is_loopback(sender.strip()) for sender in senders if sender.strip())
    if caller_of(request.scope).key_name is None and not is_near:
        raise Unauthenticated(
            "This review is for its own machine, or needs a key of the gateway; start it with --token-file for others.",
            code="review_not_shared",
        )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def read_or_make_token(path: Path) -> str:
    """Return a file's token; a file that does not exist is made, with a new one, for its owner's eyes only.

    Raises BadToken for a file without one, and OSError.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        token = path.read_text(encoding="utf-8", errors="replace").strip()
        if TOKEN.fullmatch(token) is None:
            raise BadToken(
                f"{path} holds no token: 16 or more letters, digits, - and _. Delete it for a new one."
            ) from None
        return token
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n")
    return token
