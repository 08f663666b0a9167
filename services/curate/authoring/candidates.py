"""Candidates: the hard negatives to be made, what became of each, and the files of those kept and rejected."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from services.core.durable_files import write_durably
from services.core.printable import json_line
from services.curate.data.captions import Caption
from services.jobs.sugarcrepe import Pair, PairKind, write_pairs
from services.score.negatives.prompting.checks import Problem, compared_words

KEPT, REJECTED = "pairs.jsonl", "rejected.jsonl"
DIGEST_CHARACTERS = 8

# Reasons beside an unusable answer: an equal negative of the same caption was kept before, it is another true caption
# of the image, the endpoint rejects the request, it has not answered (the next run asks again), or the rules have no
# counterpart of this caption.
Reason = Problem | Literal["repeated", "true_caption", "refused", "unanswered", "no_counterpart"]


@dataclass(frozen=True)
class Candidate:
    """One hard negative to be made of a caption; `draw` numbers those of one type."""

    caption: Caption
    kind: PairKind
    draw: int = 0

    @property
    def id(self) -> str:
        """Its id before there is a negative: the caption's, the type and the draw."""
        return f"{self.caption.id}-{self.kind}" + (f"-{self.draw}" if self.draw else "")


@dataclass(frozen=True)
class Outcome:
    """A candidate's negative, or the `reason` that it has none; `text` is then the rejected one, or the answer."""

    candidate: Candidate
    text: str
    made_by: str
    reason: Reason | None = None


class Rejected(BaseModel):
    """A line of the file of rejected candidates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: PairKind
    filename: str
    caption: str
    reason: Reason
    text: str
    made_by: str


def separated(outcomes: Iterable[Outcome]) -> tuple[list[Pair], list[Rejected]]:
    """Separate outcomes into pairs and rejected ones, in order.

    The second of two equal pairs is rejected, and a negative that is another true caption of the same image. A pair's
    id ends with a digest of its texts, so that a verdict on one never counts for another.
    """
    outcomes = list(outcomes)
    true = {
        (caption.filename, *compared_words(text))
        for caption in {one.candidate.caption for one in outcomes}
        for text in (caption.text, caption.second or "")
    }
    pairs: dict[tuple[str, str, str], Pair] = {}
    rejected: list[Rejected] = []
    for one in outcomes:
        caption, kind = one.candidate.caption, one.candidate.kind
        key = (caption.filename, caption.text.casefold(), one.text.casefold())
        reason = one.reason or ("repeated" if key in pairs else None)
        if reason is None and kind != "shuffle" and (caption.filename, *compared_words(one.text)) in true:
            reason = "true_caption"
        if reason is not None:
            rejected.append(
                Rejected(
                    id=one.candidate.id, kind=kind, filename=caption.filename, caption=caption.text, reason=reason,
                    text=one.text, made_by=one.made_by,
                )
            )  # fmt: skip
            continue
        digest = hashlib.sha256("\n".join((caption.text, one.text)).encode("utf-8", "surrogatepass")).hexdigest()
        pairs[key] = Pair(
            id=f"{one.candidate.id}-{digest[:DIGEST_CHARACTERS]}", kind=kind, filename=caption.filename,
            caption=caption.text, negative_caption=one.text, made_by=one.made_by, second_caption=caption.second,
        )  # fmt: skip
    return list(pairs.values()), rejected


def write_outcomes(folder: Path, pairs: Sequence[Pair], rejected: Sequence[Rejected]) -> None:
    """Write both files; a reader sees whole ones. Raises OSError."""
    write_pairs(folder / KEPT, pairs)
    write_durably(folder / REJECTED, (json_line(one.model_dump_json()) for one in rejected))


def reasons_told(rejected: Sequence[Rejected]) -> list[str]:
    """Count the rejected by their reasons, most frequent first, as lines of text."""
    counts = Counter(one.reason for one in rejected)
    return [f"  {reason}: {number}" for reason, number in counts.most_common()]
