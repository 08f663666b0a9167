"""Multi-document questions with one gold document, and the checks of their answers.

Sources: lost-in-the-middle's NaturalQuestions files (Liu et al. 2023) and SynthWiki (Peysakhovich and Lerer 2023).
`place_gold` moves the gold document to any position; the others keep their order.
A `QuestionSet` draws disjoint sets of them for choosing a calibration and for measuring it: one question in ten of a
file is for choosing, by a digest of its gold passage, so that questions about one passage are always in the same set.

Legend: K documents of a question.
"""

import hashlib
import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from services.core.text_files import BadFile, Place, json_objects, read_table, text_of
from services.generate.prompts.templates import Document

Check = Callable[[str, Sequence[str]], bool]


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
    ones. Gold comes first; `limit` takes the first questions. Raises BadFile, naming the line, for records of another
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
            raise BadFile(f"{path}: question {number} has {len(distractors)} distractors, not {num_documents - 1}")
        examples.append(Example(question, answers, (gold, *distractors[: num_documents - 1]), 0))
    return examples


def synthwiki(path: Path, num_documents: int, seed: int = 0, limit: int | None = None) -> list[Example]:
    """Read examples of a SynthWiki csv file: a row's context is the gold document, without a title.

    The num_documents − 1 distractors are contexts about other people, drawn at random with `seed`, in random order.
    Gold comes first; `limit` takes the first questions. Raises BadFile for missing columns or too few contexts,
    ValueError for `num_documents` below 1.
    """
    check_count(num_documents)
    rows = [row for _, row in read_table(path, columns=("context", "question", "answer"))]
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    if len(contexts) < num_documents:
        raise BadFile(f"{path}: {len(contexts)} contexts are too few for {num_documents} documents")
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


_Question = tuple[str, tuple[str, ...]]


def _read_questions(path: Path) -> Iterator[tuple[_Question, Document, list[Document]]]:
    """Yield question, gold and distractors of each line. The only context in the oracle file is not marked as gold."""
    for place, record in json_objects(path):
        golds: list[Document] = []
        others: list[Document] = []
        contexts = _contexts(record, place)
        for number, context in enumerate(contexts):
            document = Document(*(text_of(context, name, f"{place}: ctxs.{number}") for name in ("text", "title")))
            (golds if context.get("isgold", len(contexts) == 1) else others).append(document)
        answers = record.get("answers")
        if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
            raise BadFile(f"{place}: answers: a list of texts is needed")
        if not golds:
            raise BadFile(f"{place}: ctxs: none is the gold context")
        yield (text_of(record, "question", place), tuple(answers)), golds[0], others


def _contexts(record: dict[str, Any], place: Place) -> list[dict[str, Any]]:
    contexts = record.get("ctxs")
    if not isinstance(contexts, list) or not all(isinstance(context, dict) for context in contexts):
        raise BadFile(f"{place}: ctxs: a list of contexts is needed, objects with text and title")
    return contexts


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

        The order depends only on the seed, not on `count` or the number of documents. Raises BadFile if the part has no
        questions, and what reading raises.
        """
        chosen = [one for one in self.read(num_documents, seed) if part in ("all", _part_of(one))]
        if not chosen:
            raise BadFile(f"{self.name} has no questions for {part}")
        random.Random(seed).shuffle(chosen)
        return chosen[:count]

    def unanswerable(self, part: Part, num_documents: int, count: int, seed: int = 0) -> list[Unanswerable]:
        """Draw `count` questions of a part that no document answers; none from a data set without them."""
        return []


# Sets that have a name instead of a file; who generates questions adds them.
NAMED: dict[str, QuestionSet] = {}


def question_set(data: str) -> QuestionSet:
    """Open a file of lost-in-the-middle (.jsonl, .jsonl.gz) or SynthWiki (.csv), or one of `NAMED`.

    Answers are cut and judged as in the data set's own evaluation. Raises BadFile for anything else, and for a missing
    file.
    """
    if data in NAMED:
        return NAMED[data]
    path = Path(data)
    if not path.is_file():
        raise BadFile(f"{data} does not exist; give {' or '.join(['a file', *NAMED])}")
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        distractors = "gold passages of other questions" if has_golds_only(path) else "retrieved passages"
        read = partial(natural_questions, path)
        return QuestionSet("NaturalQuestions", distractors, 100, ("\n",), best_subspan_em, read)
    if path.suffix == ".csv":
        synthwiki(path, 1)  # which refuses a bad file, before a model is loaded
        return QuestionSet(
            "SynthWiki", "contexts about other people", 36, (), contains_answer, partial(synthwiki, path)
        )
    raise BadFile(f"{data} is neither a file of lost-in-the-middle (.jsonl, .jsonl.gz) nor one of SynthWiki (.csv)")


def has_golds_only(path: Path) -> bool:
    """Whether a file of lost-in-the-middle is the oracle file: without distractors. Raises BadFile."""
    numbers = [len(distractors) for *_, distractors in _read_questions(path)]
    if not numbers:
        raise BadFile(f"{path} is empty")
    return not any(numbers)


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
