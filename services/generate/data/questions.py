"""Multi-document questions with one gold document, and the checks of their answers.

Sources: lost-in-the-middle's NaturalQuestions files (Liu et al. 2023) and SynthWiki (Peysakhovich and Lerer 2023).
`place_gold` moves the gold document to any position; the others keep their order.

Legend: K documents of a question.
"""

import csv
import gzip
import json
import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

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
