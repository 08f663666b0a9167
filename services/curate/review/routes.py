"""Routes of a review: turns, verdicts, images and the export, for whoever has access; the page itself for all.

All but the page's own address are below `/review`, where the gateway has them too.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import FileResponse

from services.core.http.pages import page_router
from services.curate.review.access import Access
from services.curate.review.image_folder import ImageFolder
from services.curate.review.review import Review, export_lines
from services.curate.review.schemas import (
    Reviewer,
    SummaryAnswer,
    TokenBody,
    TurnAnswer,
    UndoBody,
    VerdictBody,
    render_summary,
    render_turn,
)

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

    @router.get("/reviewers")
    def reviewers() -> list[str]:
        """Names of all who have given a verdict."""
        return review.reviewers()

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
        return Response(b"".join(export_lines(review.verdicts())), media_type="application/jsonl", headers=headers)

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
