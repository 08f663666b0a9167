"""Answers that were released count as they are: GPT-4V's give the dissertation's row exactly."""

import json
from pathlib import Path

import pytest

from services.score.evaluation.aggregates import aggregates
from services.score.evaluation.benchmarks.caption_choices import load_sugarcrepe_tasks
from services.score.evaluation.judges import CannotJudge, evaluate
from services.score.evaluation.records import Record, Task
from services.score.evaluation.released_answers import ReleasedAnswers
from tests.published_data import published
from tests.score.evaluation.stand_ins import SOURCE

GPT4V = "sugar-crepe/gpt4v/gpt4v_correct.json"
# Table 4.6, types in its order and their average.
ROW = {
    **{"replace_obj": "96.31", "replace_att": "93.53", "replace_rel": "90.26", "swap_obj": "83.13"},
    **{"swap_att": "90.09", "add_obj": "91.59", "add_att": "91.76"},
}


def test_gpt4vs_answers_give_the_published_row() -> None:
    first = published("sugar-crepe/swap_obj_paper246.json")
    tasks = load_sugarcrepe_tasks(published("sugar-crepe/refined"), Path("nowhere"), swap_obj=first)
    (result,) = evaluate(ReleasedAnswers(published(GPT4V), name="GPT-4V"), tasks)
    assert {name: f"{score:.2f}" for name, score in result.scores.items()} == ROW
    assert f"{aggregates('sugarcrepe', result.scores, result.sizes)['macro']:.2f}" == "90.95"
    assert result.settings == {"orders": ["positive-first", "negative-first"]}
    # the orders apart: 211 and 198 of 246
    assert result.scores["swap_obj"] == pytest.approx(100 * (211 + 198) / (2 * 246))


def test_answers_go_with_ids_so_that_a_withdrawn_choice_is_not_counted() -> None:
    tasks = load_sugarcrepe_tasks(published("sugar-crepe/refined"), Path("nowhere"))
    (result,) = evaluate(ReleasedAnswers(published(GPT4V), name="GPT-4V"), tasks)
    answers = json.loads(published(GPT4V).read_text())
    withdrawn = sum(answers[order]["swap_obj"]["108"] for order in answers)
    assert result.scores["swap_obj"] == pytest.approx(100 * (211 + 198 - withdrawn) / (2 * 245))


def test_any_kind_of_record_may_have_been_answered(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"only": {"pairs": {"0": 1, "1": 0}}}))
    images = (Path("a"), Path("b"))
    task = Task("pairs", "mine", (Record("0", images, ("x", "y")), Record("1", images, ("x", "y"))), SOURCE)
    (result,) = evaluate(ReleasedAnswers(path, name="they"), [task])
    assert result.scores == {"pairs": 50.0, "pairs::text": 50.0, "pairs::image": 50.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "answers.json: not JSON"),
        ("{}", "answers.json holds no answers"),
        ('{"one": {"pets": [1]}}', "answers.json: one.pets: Input should be a valid dictionary"),
        ('{"one": {"pets": {"0": 2}}}', "answers.json: one.pets.0: Input should be a valid boolean"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name_and_field(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "answers.json"
    path.write_text(content)
    with pytest.raises(CannotJudge, match=message):
        ReleasedAnswers(path, name="they")


def test_a_missing_file_and_a_missing_answer_are_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    with pytest.raises(CannotJudge, match=r"answers\.json: No such file"):
        ReleasedAnswers(path, name="they")
    path.write_text(json.dumps({"one": {"pets": {"0": 1}}, "two": {"pets": {}}}))
    task = Task("pets", "mine", (Record("0", (Path("a"),), ("x", "y")),), SOURCE)
    with pytest.raises(CannotJudge, match=r"answers\.json has no answer for two\.pets\.0"):
        evaluate(ReleasedAnswers(path, name="they"), [task])
