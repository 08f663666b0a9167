"""Routes of a review: turns, verdicts, images and the export, for whoever has access; the page itself for all.

All but the page's own address are below `/review`, where the gateway has them too.
"""

import os
import re
import secrets
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse

from services.core.errors import Unauthenticated
from services.core.exchange import caller_of, header_of
from services.core.http.browsers import is_loopback
from services.core.http.pages import page_router
from services.curate.review.review import Review
from services.curate.review.schemas import (
    AboutAnswer,
    ImageFolder,
    Reviewer,
    SummaryAnswer,
    TokenBody,
    TurnAnswer,
    UndoBody,
    VerdictBody,
    render_summary,
    render_turn,
)

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


PAGE = Path(__file__).with_name("page")
BELOW = "/review"
PRIVATE = {"cache-control": "private, no-store"}


def own_page_router() -> APIRouter:
    """Return the routes of the page. None of its files tells anything about the pairs."""
    return page_router(PAGE, address="/", files=f"{BELOW}/page")


def review_router(review: Review, images: ImageFolder, access: Access) -> APIRouter:
    """Return the routes that the page calls. They write to disk, so each runs in a thread of its own."""
    router = APIRouter(prefix=BELOW, tags=["review"], dependencies=[Depends(access.check)])
    turn_of = partial(render_turn, review=review, images=images)

    @router.get("/about")
    def about() -> AboutAnswer:
        """The review's task, and the names of all who have given a verdict."""
        return AboutAnswer(task=review.task.name, reviewers=review.reviewers())

    @router.get("/turn")
    def turn(
        reviewer: Annotated[Reviewer, Query()], after: str | None = None, second_round: bool = False
    ) -> TurnAnswer:
        """The reviewer's next pair: the first, or the one that follows the pair `after` in turn."""
        return turn_of(review.turn(reviewer, after=after, begins_second_round=second_round))

    @router.post("/verdicts")
    def judge(body: VerdictBody) -> TurnAnswer:
        """Record a verdict, in place of an earlier one of this reviewer and round, and return the next turn."""
        return turn_of(review.judge(**body.model_dump()))

    @router.post("/undo")
    def undo(body: UndoBody) -> TurnAnswer:
        """Withdraw the reviewer's last verdict of a round and show its pair again."""
        return turn_of(review.undo(**body.model_dump()))

    @router.get("/summary")
    def summary() -> SummaryAnswer:
        """Progress, and agreement of the first round."""
        return render_summary(review.summary(), review)

    @router.get("/verdicts.jsonl", response_class=Response)
    def export() -> Response:
        """All verdicts as JSON lines."""
        headers = {**PRIVATE, "content-disposition": 'attachment; filename="verdicts.jsonl"'}
        return Response(b"".join(review.export()), media_type="application/jsonl", headers=headers)

    @router.get("/images/{filename:path}", response_class=FileResponse)
    def image(filename: str) -> FileResponse:
        """The image of a pair."""
        found = images.find(filename)
        return FileResponse(found.path, media_type=found.media_type, headers={"cache-control": "private"})

    return router


def session_router(access: Access) -> APIRouter:
    """Return the route that exchanges the token for a cookie."""
    router = APIRouter(prefix=BELOW, tags=["review"])

    @router.post("/session", status_code=204)
    def session(body: TokenBody, response: Response) -> None:
        """Exchange the review's token for a cookie."""
        access.admit(body.token, response)

    return router
