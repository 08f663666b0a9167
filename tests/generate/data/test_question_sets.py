"""Calibration and evaluation never see the same question, and each data set is judged by its own rule."""

import gzip
import json
from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.generate.data.questions import QuestionSet, at_positions, has_golds_only, question_set
from starters.generate.questions import GENERATED, generated_facts


def write_oracle(path: Path, count: int = 60) -> Path:
    rows = [
        {"question": f"who is {n}", "answers": [f"name {n}"], "ctxs": [{"title": f"T{n}", "text": f"{n} is name {n}"}]}
        for n in range(count)
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def write_synthwiki(path: Path, count: int = 40) -> Path:
    rows = [f'"{n} is a poet, born in {n}",where was {n // 2} born,{n} | town {n}' for n in range(count)]
    path.write_text("\n".join(["context,question,answer", *rows]) + "\n")
    return path


@pytest.fixture
def sets(tmp_path: Path) -> list[QuestionSet]:
    oracle, articles = write_oracle(tmp_path / "oracle.jsonl.gz"), write_synthwiki(tmp_path / "madlibs.csv")
    return [GENERATED, question_set(str(oracle)), question_set(str(articles))]


def test_no_question_is_in_both_parts_and_a_file_has_no_others(sets: list[QuestionSet]) -> None:
    for questions in sets:
        # two generated questions may be about people of one name, but not over the same documents
        parts = [
            {(one.question, one.documents[0]) for one in questions.examples(part, 3, None)}
            for part in ("calibration", "evaluation")
        ]
        assert not parts[0] & parts[1]
        if questions is not GENERATED:
            assert len(questions.examples("all", 3, None)) == len(parts[0]) + len(parts[1])
            assert len(parts[0]) < len(parts[1])


def test_a_seed_draws_its_questions_again_whatever_is_asked_of_each(sets: list[QuestionSet]) -> None:
    for questions in sets:
        some = questions.examples("evaluation", 3, 5, seed=1)
        assert some == questions.examples("evaluation", 3, 9, seed=1)[:5]
        assert some != questions.examples("evaluation", 3, 5, seed=2)
        assert all(one.gold == 0 and len(one.documents) == 3 for one in some)
        if questions is not GENERATED:
            assert [one.question for one in some] == [one.question for one in questions.examples("evaluation", 2, 5, 1)]


def test_answers_are_cut_and_judged_as_their_data_set_does(sets: list[QuestionSet]) -> None:
    generated, natural, articles = sets
    assert [questions.name for questions in sets] == ["generated", "NaturalQuestions", "SynthWiki"]
    assert (natural.max_tokens, natural.stop) == (100, ("\n",))
    assert (articles.max_tokens, articles.stop) == (36, ())
    assert natural.is_right("The Name, 3.\nnothing", ["name 3"])
    assert not natural.is_right("nothing\nname 3", ["name 3"])
    assert articles.is_right("nothing,\nname 3", ["name 3"])
    assert generated.is_right(" amber flute", ["amber flute"])
    assert natural.distractors == "gold passages of other questions"


def test_a_file_with_retrieved_passages_says_so(tmp_path: Path) -> None:
    row = {
        "question": "who",
        "answers": ["Ada"],
        "ctxs": [{"title": "A", "text": "Ada", "isgold": True}, {"title": "B", "text": "Bob", "isgold": False}],
    }
    path = tmp_path / "nq.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert not has_golds_only(path)
    assert question_set(str(path)).distractors == "retrieved passages"
    path.write_text("[]\n")
    with pytest.raises(BadFile, match="is empty"):
        question_set(str(path))


@pytest.mark.parametrize("data", ["nowhere.jsonl", "nonsense"])
def test_data_that_there_is_not_is_named(data: str) -> None:
    with pytest.raises(BadFile, match=f"{data} does not exist"):
        question_set(data)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text("who?")
    with pytest.raises(BadFile, match="neither a file of lost-in-the-middle"):
        question_set(str(path))


def test_positions_are_taken_in_turn_and_no_question_is_asked_twice_at_one() -> None:
    examples = generated_facts(4, 3)
    assert [one.gold for one in at_positions(examples, (0, 2))] == [0, 2, 0, 2]
    placed = at_positions(examples, (0, 1, 2), 9)
    assert len(placed) == 9
    assert len({(one.question, one.gold) for one in placed}) == 9
    assert len(at_positions(examples, (0, 1, 2), 100)) == 12
    weighted = at_positions(generated_facts(40, 3), (0, 1, 2, 1))
    assert sum(one.gold == 1 for one in weighted) == 20
    assert at_positions([], (0,)) == []
