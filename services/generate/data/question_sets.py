"""Disjoint sets of questions for choosing a calibration and for measuring it.

One question in ten of a file is for choosing, by a digest of its gold passage, so that questions about one passage are
always in the same set.
"""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from services.generate.data.questions import (
    BadData,
    Check,
    Example,
    Unanswerable,
    best_subspan_em,
    contains_answer,
    natural_questions,
    open_lines,
    place_gold,
    synthwiki,
)

Part = Literal["calibration", "evaluation", "all"]

CALIBRATION_SHARE = 10  # one question in this number


def _nothing(num_documents: int, seed: int) -> list[Example]:
    return []


@dataclass(frozen=True)
class QuestionSet:
    """Questions of one data set, the limits of their answers, and the check of answers.

    `distractors` describes the source of the other documents. `read` returns examples of K documents for a seed, gold
    first.
    """

    name: str
    distractors: str
    max_tokens: int
    stop: tuple[str, ...]
    is_right: Check
    read: Callable[[int, int], list[Example]] = _nothing

    def examples(self, part: Part, num_documents: int, count: int | None, seed: int = 0) -> list[Example]:
        """Draw at most `count` questions of a part in random order, gold first; None for all.

        The order depends only on the seed, not on `count` or the number of documents. Raises BadData if the part has no
        questions, and what reading raises.
        """
        chosen = [one for one in self.read(num_documents, seed) if part in ("all", _part_of(one))]
        if not chosen:
            raise BadData(f"{self.name} has no questions for {part}")
        random.Random(seed).shuffle(chosen)
        return chosen[:count]

    @property
    def has_unanswerable(self) -> bool:
        """Whether there are questions that no document answers."""
        return False

    def unanswerable(self, part: Part, num_documents: int, count: int, seed: int = 0) -> list[Unanswerable]:
        """Draw `count` questions of a part that no document answers; none from a data set without them."""
        return []


# Sets that have a name instead of a file; who generates questions adds them.
NAMED: dict[str, QuestionSet] = {}


def question_set(data: str) -> QuestionSet:
    """Open a file of lost-in-the-middle (.jsonl, .jsonl.gz) or SynthWiki (.csv), or one of `NAMED`.

    Answers are cut and judged as in the data set's own evaluation. Raises BadData for anything else, and for a missing
    file.
    """
    if data in NAMED:
        return NAMED[data]
    path = Path(data)
    if not path.is_file():
        raise BadData(f"{data} does not exist; give {' or '.join(['a file', *NAMED])}")
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        distractors = "gold passages of other questions" if has_golds_only(path) else "retrieved passages"
        read = partial(natural_questions, path)
        return QuestionSet("NaturalQuestions", distractors, 100, ("\n",), best_subspan_em, read)
    if path.suffix == ".csv":
        return QuestionSet(
            "SynthWiki", "contexts about other people", 36, (), contains_answer, partial(synthwiki, path)
        )
    raise BadData(f"{data} is neither a file of lost-in-the-middle (.jsonl, .jsonl.gz) nor one of SynthWiki (.csv)")


def has_golds_only(path: Path) -> bool:
    """Whether a file of lost-in-the-middle is the oracle file, by its first question. Raises BadData."""
    with open_lines(path) as file:
        try:
            return len(json.loads(file.readline())["ctxs"]) == 1
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise BadData(f"{path}, line 1: not a question with contexts ({error!r})") from error


def at_positions(examples: Sequence[Example], positions: Sequence[int], count: int | None = None) -> list[Example]:
    """Return `count` examples with their gold documents at the positions in turn; None takes each example once.

    A repeated position is used more often. If there are fewer than `count` examples, they are used again at their next
    position, but never twice at the same one, so that the result may be shorter.
    """
    most = len(examples) * len(set(positions))
    placed = []
    for number in range(min(len(examples) if count is None else count, most)):
        turn, place = divmod(number, len(examples))
        placed.append(place_gold(examples[place], positions[(place + turn) % len(positions)]))
    return list(dict.fromkeys(placed))


def _part_of(example: Example) -> Part:
    digest = hashlib.sha256(example.documents[example.gold].text.encode()).digest()
    return "calibration" if int.from_bytes(digest[:8]) % CALIBRATION_SHARE == 0 else "evaluation"
