"""Questions over documents: read from published files, rearranged; answers checked as their papers do."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.generate.data.questions import (
    Example,
    best_subspan_em,
    contains_answer,
    natural_questions,
    place_gold,
    synthwiki,
)
from services.generate.prompts.templates import Document
from tests.published_data import published

GOLDENS = json.loads((Path(__file__).parents[2] / "goldens" / "reordering.json").read_text())


def letters(example: Example) -> str:
    return "".join(document.text for document in example.documents)


@pytest.mark.parametrize("case", GOLDENS["best_subspan_em"], ids=lambda case: repr(case["prediction"]))
def test_an_answer_is_right_where_lost_in_the_middle_says_so(case: dict[str, object]) -> None:
    assert best_subspan_em(str(case["prediction"]), list(case["answers"])) is bool(case["best_subspan_em"])  # type: ignore[call-overload]


@pytest.mark.parametrize("case", GOLDENS["synthwiki_checkCorrectness"], ids=lambda case: repr(case["answer"]))
def test_an_answer_is_right_where_synthwiki_says_so(case: dict[str, object]) -> None:
    assert contains_answer(str(case["answer"]), str(case["true_answer"]).split(" | ")) is bool(case["correct"])


def test_only_the_first_line_of_an_answer_counts() -> None:
    assert not best_subspan_em("\nthe amber flute", ["amber flute"])
    assert best_subspan_em("the amber flute.\nor not", ["amber flute"])


@pytest.mark.parametrize(
    ("position", "order"), [(0, "cabde"), (2, "abcde"), (3, "abdce"), (4, "abdec")], ids=["0", "2", "3", "4"]
)
def test_the_gold_document_moves_and_the_others_keep_their_order(position: int, order: str) -> None:
    example = Example("?", ("!",), tuple(Document(letter) for letter in "abcde"), 2)
    moved = place_gold(example, position)
    assert (letters(moved), moved.gold, letters(example)) == (order, position, "abcde")


@pytest.mark.parametrize("position", [-1, 5])
def test_there_is_no_place_outside_the_documents(position: int) -> None:
    example = Example("?", ("!",), tuple(Document(letter) for letter in "abcde"), 2)
    with pytest.raises(ValueError, match=f"no position {position} among 5 documents"):
        place_gold(example, position)


def question(name: str, *others: str) -> dict[str, object]:
    """A record as lost-in-the-middle writes it, the gold last of its contexts."""
    contexts = [{"title": other, "text": f"text of {other}", "isgold": False} for other in others]
    gold = {"title": name, "text": f"text of {name}", "isgold": True}
    return {"question": f"what is {name}", "answers": [name, name.upper()], "ctxs": [*contexts, gold]}


def write_questions(path: Path, *records: dict[str, object]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["nq.jsonl", "nq.jsonl.gz"])
def test_questions_with_distractors_keep_their_own_in_their_order(tmp_path: Path, name: str) -> None:
    path = write_questions(tmp_path / name, question("a", "x", "y", "z"), question("b", "u", "v", "w"))
    first, second = natural_questions(path, 3)
    assert (first.question, first.answers, first.gold) == ("what is a", ("a", "A"), 0)
    assert [document.title for document in first.documents] == ["a", "x", "y"]
    assert second.documents[1] == Document("text of u", "u")


def test_questions_without_distractors_get_golds_of_others_the_same_each_time(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "oracle.jsonl", *(question(letter) for letter in "abcdef"), question("a"))
    examples = natural_questions(path, 4, seed=1)
    assert all(example.documents[0].title == example.answers[0] for example in examples)
    assert all(len({document.title for document in example.documents}) == 4 for example in examples)
    assert examples == natural_questions(path, 4, seed=1)
    assert examples != natural_questions(path, 4, seed=2)
    assert examples[:2] == natural_questions(path, 4, seed=1, limit=2)


def test_too_few_distractors_are_refused(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "nq.jsonl", question("a", "x", "y", "z"), question("b", "u"))
    with pytest.raises(BadFile, match="question 2 has 1 distractors, not 3"):
        natural_questions(path, 4)


@pytest.mark.parametrize(
    "line", ["[]", "{", '{"question": "q", "answers": []}', '{"question": "q", "answers": ["a"], "ctxs": []}']
)
def test_a_line_of_another_form_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "nq.jsonl"
    path.write_text(f"{json.dumps(question('a', 'x'))}\n{line}\n")
    with pytest.raises(BadFile, match=":2: "):
        natural_questions(path, 2)


def write_articles(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("context", "question", "answer"), *rows])
    return path


def test_articles_get_others_around_them_and_answers_their_alternatives(tmp_path: Path) -> None:
    rows = [(f"article {i}\nof two lines", f"question {i}{part}", f"one {i} | two") for i in range(5) for part in "ab"]
    path = write_articles(tmp_path / "wiki.csv", rows)
    examples = synthwiki(path, 4, seed=3)
    assert len(examples) == 10
    assert examples[2].answers == ("one 1", "two")
    assert examples[2].documents[0] == Document("article 1\nof two lines")
    assert all(len(set(example.documents)) == 4 for example in examples)
    assert examples == synthwiki(path, 4, seed=3) != synthwiki(path, 4, seed=4)


def test_too_few_articles_and_missing_columns_are_refused(tmp_path: Path) -> None:
    path = write_articles(tmp_path / "wiki.csv", [("article", "question", "answer")] * 3)
    with pytest.raises(BadFile, match="1 contexts are too few for 2 documents"):
        synthwiki(path, 2)
    path.write_text("text,answer\na,b\n")
    with pytest.raises(BadFile, match="lacks the columns 'context', 'question'"):
        synthwiki(path, 2)


def test_all_published_natural_questions_are_read() -> None:
    examples = natural_questions(published("lost-in-the-middle/nq-open-oracle.jsonl.gz"), 10)
    assert len(examples) == 2655
    assert all(len({document.title for document in example.documents}) == 10 for example in examples)
    assert examples[0].answers == ("Wilhelm Conrad Röntgen",)
    assert "Wilhelm Conrad Röntgen" in examples[0].documents[0].text


def test_all_published_synthwiki_questions_are_read() -> None:
    examples = synthwiki(published("synthwiki/madlibs1.csv"), 10)
    assert len(examples) == 990
    right = sum(contains_answer(example.documents[0].text, example.answers) for example in examples)
    wrong = sum(contains_answer(example.documents[1].text, example.answers) for example in examples)
    assert right > 900 > 100 > wrong
