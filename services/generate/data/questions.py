"""Multi-document questions with one gold document, and the checks of their answers.

Sources: lost-in-the-middle's NaturalQuestions files (Liu et al. 2023) and SynthWiki (Peysakhovich and Lerer 2023).
`place_gold` moves the gold document to any position; the others keep their order.
A `QuestionSet` draws disjoint sets of them for choosing a calibration and for measuring it: one question in ten of a
file is for choosing, by a digest of its gold passage, so that questions about one passage are always in the same set.

Legend: K documents of a question.
"""

import csv
import gzip
import hashlib
import json
import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from services.generate.prompts.templates import Document

Check = Callable[[str, Sequence[str]], bool]


class BadData(ValueError):
    """A file in another form than expected; the message says where and why."""


@dataclass(frozen=True)
class Example:
    """A question over K documents; number `gold` (from 0) contains the answer, and any of `answers` is right."""

    question: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...]
    gold: int


@dataclass(frozen=True)
class Unanswerable:
    """A question that none of its documents answers: any of `answers`, the refusals, is right."""

    question: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...]
    gold: None = None


def place_gold(example: Example, position: int) -> Example:
    """The example with its gold document at `position`, from 0; the others keep their order.

    Raises ValueError for a position outside 0 … K − 1.
    """
    if not 0 <= position < len(example.documents):
        raise ValueError(f"there is no position {position} among {len(example.documents)} documents")
    others = [document for k, document in enumerate(example.documents) if k != example.gold]
    others.insert(position, example.documents[example.gold])
    return replace(example, documents=tuple(others), gold=position)


def natural_questions(path: Path, num_documents: int, seed: int = 0, limit: int | None = None) -> list[Example]:
    """Read examples of a lost-in-the-middle file (JSON lines, .gz or not), with `num_documents` documents each.

    Files with distractors (nq-open-10_total_documents_gold_at_0, …) give each question its gold and its first
    num_documents − 1 retrieved distractors, in order. The oracle file has only golds: there the distractors are the
    gold passages of other questions with other titles, drawn at random with `seed`, which are easier than retrieved
    ones. Gold comes first; `limit` takes the first questions. Raises BadData, naming the line, for records of another
    form and for too few distractors, ValueError for `num_documents` below 1.
    """
    check_count(num_documents)
    rows = list(_read_questions(path))
    has_distractors = any(distractors for *_, distractors in rows)
    pool = list({gold.title: gold for _, gold, _ in rows}.values())
    examples = []
    for number, ((question, answers), gold, distractors) in enumerate(rows[:limit], start=1):
        if not has_distractors:
            drawn = random.Random(f"{seed} {question}").sample(pool, min(num_documents, len(pool)))
            distractors = [other for other in drawn if other.title != gold.title]
        if len(distractors) < num_documents - 1:
            raise BadData(f"{path}: question {number} has {len(distractors)} distractors, not {num_documents - 1}")
        examples.append(Example(question, answers, (gold, *distractors[: num_documents - 1]), 0))
    return examples


def synthwiki(path: Path, num_documents: int, seed: int = 0, limit: int | None = None) -> list[Example]:
    """Read examples of a SynthWiki csv file: a row's context is the gold document, without a title.

    The num_documents − 1 distractors are contexts about other people, drawn at random with `seed`, in random order.
    Gold comes first; `limit` takes the first questions. Raises BadData for missing columns or too few contexts,
    ValueError for `num_documents` below 1.
    """
    check_count(num_documents)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"context", "question", "answer"} <= rows[0].keys():
        raise BadData(f"{path}: the columns context, question and answer are missing")
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    if len(contexts) < num_documents:
        raise BadData(f"{path}: {len(contexts)} contexts are too few for {num_documents} documents")
    examples = []
    for row in rows[:limit]:
        generator = random.Random(f"{seed} {row['question']}")
        others = generator.sample([context for context in contexts if context != row["context"]], num_documents - 1)
        documents = tuple(Document(text) for text in (row["context"], *others))
        examples.append(Example(row["question"], tuple(row["answer"].split(" | ")), documents, 0))
    return examples


def best_subspan_em(answer: str, answers: Sequence[str]) -> bool:
    """Whether the first line of `answer` contains any of `answers`, as in lost-in-the-middle.

    Both are compared in lower case, without ASCII punctuation, articles and extra white space; an answer that consists
    only of these is contained in everything.
    """
    line = _bare(answer.split("\n")[0])
    return any(_bare(right) in line for right in answers)


def contains_answer(answer: str, answers: Sequence[str]) -> bool:
    """Whether `answer` contains any of `answers`, as in SynthWiki.

    Both are compared in lower case, without straight and right single quotation marks and without line breaks.
    """
    said = _unquoted(answer)
    return any(_unquoted(right) in said for right in answers)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_QUOTES = str.maketrans("", "", "'’\n")


def _bare(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _unquoted(text: str) -> str:
    return text.lower().translate(_NO_QUOTES)


def open_lines(path: Path) -> IO[str]:
    """Open a text, which may be compressed by gzip and begin with a byte order mark."""
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


_Question = tuple[str, tuple[str, ...]]


def _read_questions(path: Path) -> Iterator[tuple[_Question, Document, list[Document]]]:
    """Yield question, gold and distractors of each line. The only context in the oracle file is not marked as gold."""
    with open_lines(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                contexts = record["ctxs"]
                golds = [_document(c) for c in contexts if c.get("isgold", len(contexts) == 1)]
                others = [_document(c) for c in contexts if not c.get("isgold", len(contexts) == 1)]
                question = (str(record["question"]), tuple(map(str, record["answers"])))
                yield question, golds[0], others
            except (json.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError) as error:
                raise BadData(f"{path}, line {number}: not a question with a gold context ({error!r})") from error


def _document(context: dict[str, Any]) -> Document:
    return Document(str(context["text"]), str(context["title"]))


def check_count(num_documents: int) -> None:
    if num_documents < 1:
        raise ValueError(f"a question has at least one document, not {num_documents}")


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
