"""Disjoint sets of questions for choosing a calibration and for measuring it.

One question in ten of a file is for choosing, by a digest of its gold passage, so that questions about one passage are
always in the same set. Generated questions are drawn from seeds that are far apart.
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
    generated_facts,
    natural_questions,
    open_facts,
    open_lines,
    open_unanswerable,
    place_gold,
    synthwiki,
)

GENERATED, OPEN = "generated", "open"
Part = Literal["calibration", "evaluation", "all"]

CALIBRATION_SHARE = 10  # one question in this number
# the seeds of training begin at 0
GENERATED_SEEDS: dict[Part, int] = {"calibration": 1_000_003, "evaluation": 2_000_003, "all": 2_000_003}


@dataclass(frozen=True)
class QuestionSet:
    """Questions of one data set, the limits of their answers, and the check of answers.

    `read` returns examples of K documents for a seed, gold first; None for generated questions, which `draw` draws:
    a number of them, of K documents, for a seed. `draw_unanswerable` does so for unanswerable ones, if there are any.
    `distractors` describes the source of the other documents.
    """

    name: str
    distractors: str
    max_tokens: int
    stop: tuple[str, ...]
    is_right: Check
    read: Callable[[int, int], list[Example]] | None
    draw: Callable[[int, int, int], list[Example]] = generated_facts
    draw_unanswerable: Callable[[int, int, int], list[Unanswerable]] | None = None

    def examples(self, part: Part, num_documents: int, count: int | None, seed: int = 0) -> list[Example]:
        """Draw at most `count` questions of a part in random order, gold first; None for all, or for 500 generated.

        The order depends only on the seed, not on `count` or the number of documents. Raises BadData if the part has no
        questions, and what reading raises.
        """
        if self.read is None:
            return self.draw(500 if count is None else count, num_documents, GENERATED_SEEDS[part] + seed)
        chosen = [one for one in self.read(num_documents, seed) if part in ("all", _part_of(one))]
        if not chosen:
            raise BadData(f"{self.name} has no questions for {part}")
        random.Random(seed).shuffle(chosen)
        return chosen[:count]

    def unanswerable(self, part: Part, num_documents: int, count: int, seed: int = 0) -> list[Unanswerable]:
        """Draw `count` questions of a part that no document answers; none from a data set without them."""
        if self.draw_unanswerable is None:
            return []
        return self.draw_unanswerable(count, num_documents, GENERATED_SEEDS[part] + seed)


def question_set(data: str) -> QuestionSet:
    """Open `generated` or `open`, or a file of lost-in-the-middle (.jsonl, .jsonl.gz) or SynthWiki (.csv).

    Answers are cut and judged as in the data set's own evaluation; generated questions are judged like
    NaturalQuestions. Raises BadData for anything else, and for a missing file.
    """
    if data == GENERATED:
        return QuestionSet(GENERATED, "other facts of the same kind", 8, ("\n",), best_subspan_em, None)
    if data == OPEN:
        others = "other facts, often of the same kind"
        return QuestionSet(OPEN, others, 32, ("\n",), best_subspan_em, None, open_facts, open_unanswerable)
    path = Path(data)
    if not path.is_file():
        raise BadData(f"{data} does not exist; give a file, {GENERATED!r} or {OPEN!r}")
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        distractors = "gold passages of other questions" if has_golds_only(path) else "retrieved passages"
        return QuestionSet(
            "NaturalQuestions",
            distractors,
            100,
            ("\n",),
            best_subspan_em,
            partial(natural_questions, path),
        )
    if path.suffix == ".csv":
        read = partial(synthwiki, path)
        return QuestionSet("SynthWiki", "contexts about other people", 36, (), contains_answer, read)
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
