"""People's verdicts on pairs, as lines of JSON: an id and a verdict, and optionally who gave it in which round."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.jobs.json_lines import read_json_lines
from services.jobs.sugarcrepe import Pair

# The negative is false of the image; it is true of it as well; neither can be told.
Verdict = Literal["valid", "false_negative", "unclear"]
UNREVIEWED = "unreviewed"


class BadVerdicts(ValueError):
    """A file that does not hold verdicts; the message names the file, the line and the field."""


class _Line(BaseModel):
    """A line; what else a review's export tells is of no concern here."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    verdict: Verdict
    reviewer: str | None = None
    round: int = 1


@dataclass(frozen=True)
class Reviewed:
    """Pairs that people accept, and the ids of the others with the reasons; `num_unknown` verdicts are on no pair."""

    accepted: list[Pair]
    refused: Mapping[str, str]
    num_unknown: int


def read_verdicts(path: Path) -> dict[str, Counter[Verdict]]:
    """Count the verdicts on each id: each reviewer's last one of the latest round, and all without a reviewer.

    Raises BadVerdicts, and OSError.
    """
    latest: dict[tuple[str, str | int], _Line] = {}
    for number, line in read_json_lines(path, _Line, BadVerdicts):
        key = (line.id, number if line.reviewer is None else line.reviewer)
        if key not in latest or latest[key].round <= line.round:
            latest[key] = line
    found: defaultdict[str, Counter[Verdict]] = defaultdict(Counter)
    for line in latest.values():
        found[line.id][line.verdict] += 1
    return dict(found)


def reviewed(
    pairs: Sequence[Pair], verdicts: Mapping[str, Mapping[Verdict, int]], *, unreviewed: Literal["keep", "refuse"]
) -> Reviewed:
    """Accept the pairs that most of the people who judged them found valid."""
    accepted: list[Pair] = []
    refused: dict[str, str] = {}
    for pair in pairs:
        given = verdicts.get(pair.id)
        if given is None:
            reason = None if unreviewed == "keep" else UNREVIEWED
        else:
            reason = None if 2 * given.get("valid", 0) > sum(given.values()) else _most_frequent(given)
        if reason is None:
            accepted.append(pair)
        else:
            refused[pair.id] = reason
    known = {pair.id for pair in pairs}
    return Reviewed(accepted, refused, sum(one not in known for one in verdicts))


def _most_frequent(given: Mapping[Verdict, int]) -> Verdict:
    """Return the most frequent verdict other than `valid`."""
    return max(("false_negative", "unclear"), key=lambda verdict: given.get(verdict, 0))
