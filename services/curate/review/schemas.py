"""Bodies of the page's requests and their answers, with the words in which two captions differ."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.core.errors import NotFound, UnsupportedMediaType
from services.core.images.headers import media_type_of
from services.curate.review.review import Agreement, Review, Stage, Summary, Turn, reviewer_name
from services.curate.review.tasks import Comparison, Task, TaskName, VerdictName
from services.curate.review.verdicts import Round
from services.jobs.sugarcrepe import Pair

# Longer than what tells a file's type.
NUM_BYTES_READ = 32


@dataclass(frozen=True)
class ImageFile:
    path: Path
    media_type: str


class ImageFolder:
    """A folder, of which only the named files are shown, and only those that lie in it: no link leads out of it."""

    def __init__(self, folder: Path, filenames: Iterable[str]) -> None:
        self._folder = folder.resolve()
        self._filenames = frozenset(filenames)

    def find(self, filename: str) -> ImageFile:
        """Return an image. Raises NotFound for a file that is absent, elsewhere or of no pair, and
        UnsupportedMediaType for one that is no image that browsers show.
        """
        path = self._folder / filename
        if filename not in self._filenames or "\0" in filename or not self._is_inside(path):
            raise NotFound(f"No pair has an image {filename[:200]!r} in the folder of images.")
        try:
            with path.open("rb") as file:
                media_type = media_type_of(file.read(NUM_BYTES_READ))
        except OSError as missing:
            reason = "is not in the folder of images" if isinstance(missing, FileNotFoundError) else missing.strerror
            raise NotFound(f"The image {filename!r} {reason}.") from None
        if media_type is None:
            raise UnsupportedMediaType(f"{filename!r} is not a JPEG, PNG, WebP, GIF or BMP.")
        return ImageFile(path, media_type)

    def problem(self, filename: str) -> str | None:
        """Return why an image can't be shown, or None if it can."""
        try:
            self.find(filename)
        except (NotFound, UnsupportedMediaType) as refused:
            return refused.message
        return None

    def _is_inside(self, path: Path) -> bool:
        try:
            return path.resolve().is_relative_to(self._folder)
        except (OSError, RuntimeError):  # a loop of links, or a name that is too long
            return False


# Words with their hyphens and apostrophes, single other signs, and what lies between them.
_TOKENS = re.compile(r"\w+(?:[-'’]\w+)*|\s+|[^\w\s]")
# A run of text, and whether the other caption lacks it.
Run = tuple[str, bool]


def word_difference(first: str, second: str) -> tuple[list[Run], list[Run]]:
    """Return both captions as runs of text, those marked that the other lacks; the runs of each join to the whole.

    Words are compared as written, except for their case.
    """
    tokens = (_TOKENS.findall(first), _TOKENS.findall(second))
    words = [[(place, token) for place, token in enumerate(side) if not token.isspace()] for side in tokens]
    first_words, second_words = ([token.casefold() for _, token in side] for side in words)
    matcher = SequenceMatcher(None, first_words, second_words, autojunk=False)
    same: tuple[set[int], set[int]] = (set(), set())
    for block in matcher.get_matching_blocks():
        same[0].update(place for place, _ in words[0][block.a : block.a + block.size])
        same[1].update(place for place, _ in words[1][block.b : block.b + block.size])
    return _runs(tokens[0], same[0]), _runs(tokens[1], same[1])


def _runs(tokens: Sequence[str], same: set[int]) -> list[Run]:
    def is_marked(place: int) -> bool:
        if tokens[place].isspace():  # between two marked words
            return 0 < place < len(tokens) - 1 and is_marked(place - 1) and is_marked(place + 1)
        return place not in same

    return list(_joined((token, is_marked(place)) for place, token in enumerate(tokens)))


def _joined(runs: Iterable[Run]) -> list[Run]:
    joined: list[Run] = []
    for text, is_marked in runs:
        if joined and joined[-1][1] == is_marked:
            joined[-1] = (joined[-1][0] + text, is_marked)
        else:
            joined.append((text, is_marked))
    return joined


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


class AboutAnswer(BaseModel):
    task: TaskName
    reviewers: list[str]


class EarlierVerdict(BaseModel):
    reviewer: str
    verdict: VerdictName
    round: Round
    note: str


Role = Literal["caption", "negative_caption", "second_caption", "first", "second"]


class ShownText(BaseModel):
    """A text as runs, and what the reviewer is told of it: the first or the second of two where that is all."""

    role: Role
    runs: list[Run]


class ShownPair(BaseModel):
    """A pair with its place and its texts, which are marked where they differ unless reviewers are to read them whole.

    `kind` and `filename` are None where the task does not show them. `problem`: why there is no image.
    """

    id: str
    number: int
    kind: str | None
    filename: str | None
    problem: str | None
    texts: list[ShownText]
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
    pair = turn.pair and _render_pair(turn.pair, turn, review, images)
    return TurnAnswer(**own, num_pairs=len(review.pairs), pair=pair)


def _render_pair(pair: Pair, turn: Turn, review: Review, images: ImageFolder) -> ShownPair:
    task = review.task
    own = turn.withdrawn if turn.withdrawn and turn.withdrawn.id == pair.id else None
    return ShownPair(
        id=pair.id,
        number=review.places[pair.id] + 1,
        kind=None if task.is_blind else pair.kind,
        filename=None if task.compares_sets else pair.filename,
        problem=None if task.compares_sets else images.problem(pair.filename),
        texts=[ShownText(role=role, runs=runs) for role, runs in _texts(pair, task)],
        earlier=[EarlierVerdict(**one.model_dump(include={*EarlierVerdict.model_fields})) for one in turn.earlier],
        note=own.note if own else "",
    )


def _texts(pair: Pair, task: Task) -> Iterator[tuple[Role, list[Run]]]:
    texts = {"caption": pair.caption, "negative_caption": pair.negative_caption, "ours": pair.negative_caption}
    if isinstance(pair, Comparison):
        texts["theirs"] = pair.theirs
        yield "caption", [(pair.caption, False)]
    if task.is_blind:
        first, second = task.order(pair)
        yield from (("first", [(texts[first], False)]), ("second", [(texts[second], False)]))
    else:
        caption, negative_caption = word_difference(pair.caption, pair.negative_caption)
        yield from (("caption", caption), ("negative_caption", negative_caption))
        if pair.second_caption:
            yield "second_caption", [(pair.second_caption, False)]


def render_summary(summary: Summary, review: Review) -> SummaryAnswer:
    return SummaryAnswer(
        num_pairs=len(review.pairs),
        reviewers_per_pair=review.reviewers_per_pair,
        num_complete=summary.num_complete,
        reviewers=[ReviewerProgress(name=name, num_judged=num) for name, num in sorted(summary.num_judged.items())],
        verdicts={name: summary.verdicts.get(name, 0) for name in review.task.verdicts},
        agreement=summary.agreement,
        num_disputed=summary.num_disputed,
    )
