"""Bodies of the page's requests and their answers."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.curate.review.agreement import Agreement
from services.curate.review.image_folder import ImageFolder
from services.curate.review.review import Review, Stage, Summary, Turn, reviewer_name
from services.curate.review.verdicts import VERDICT_NAMES, Round, VerdictName
from services.curate.review.word_difference import Run, word_difference
from services.jobs.sugarcrepe import Pair

Reviewer = Annotated[str, AfterValidator(reviewer_name)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TokenBody(Body):
    token: str = Field(max_length=1024)


class VerdictBody(Body):
    reviewer: Reviewer
    id: str
    round: Round
    verdict: VerdictName
    note: str = Field("", max_length=2000)


class UndoBody(Body):
    reviewer: Reviewer
    round: Round


class EarlierVerdict(BaseModel):
    reviewer: str
    verdict: VerdictName
    round: Round
    note: str


class ShownPair(BaseModel):
    """A pair with its captions as runs of text, marked where they differ. `problem`: why there is no image."""

    id: str
    kind: str
    filename: str
    problem: str | None
    caption: list[Run]
    negative_caption: list[Run]
    second_caption: str | None
    earlier: list[EarlierVerdict]
    note: str


class TurnAnswer(BaseModel):
    stage: Stage
    round: Round
    num_pairs: int
    num_judged: int
    num_left: int
    num_complete: int
    num_disputed: int
    can_undo: bool
    pair: ShownPair | None


class ReviewerProgress(BaseModel):
    name: str
    num_judged: int


class SummaryAnswer(BaseModel):
    num_pairs: int
    reviewers_per_pair: int
    num_complete: int
    reviewers: list[ReviewerProgress]
    verdicts: dict[VerdictName, int]
    agreement: Agreement
    num_disputed: int


def render_turn(turn: Turn, review: Review, images: ImageFolder) -> TurnAnswer:
    own = {name: getattr(turn, name) for name in TurnAnswer.model_fields.keys() - {"num_pairs", "pair"}}
    return TurnAnswer(**own, num_pairs=len(review.pairs), pair=turn.pair and _render_pair(turn.pair, turn, images))


def _render_pair(pair: Pair, turn: Turn, images: ImageFolder) -> ShownPair:
    caption, negative_caption = word_difference(pair.caption, pair.negative_caption)
    own = turn.withdrawn if turn.withdrawn and turn.withdrawn.id == pair.id else None
    return ShownPair(
        id=pair.id,
        kind=pair.kind,
        filename=pair.filename,
        problem=images.problem(pair.filename),
        caption=caption,
        negative_caption=negative_caption,
        second_caption=pair.second_caption,
        earlier=[EarlierVerdict(**one.model_dump(include={*EarlierVerdict.model_fields})) for one in turn.earlier],
        note=own.note if own else "",
    )


def render_summary(summary: Summary, review: Review) -> SummaryAnswer:
    return SummaryAnswer(
        num_pairs=len(review.pairs),
        reviewers_per_pair=review.reviewers_per_pair,
        num_complete=summary.num_complete,
        reviewers=[ReviewerProgress(name=name, num_judged=num) for name, num in sorted(summary.num_judged.items())],
        verdicts={name: summary.verdicts.get(name, 0) for name in VERDICT_NAMES},
        agreement=summary.agreement,
        num_disputed=summary.num_disputed,
    )
