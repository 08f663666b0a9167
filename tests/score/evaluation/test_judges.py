"""Results of a judge: percent by task and benchmark, with its notes, and intervals on request."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core.refusals import Refused
from services.core.text_files import BadFile
from services.score.evaluation.aggregates import aggregates
from services.score.evaluation.benchmarks.caption_choices import load_sugarcrepe_tasks
from services.score.evaluation.judges import (
    RESULT_FILES,
    OnScores,
    ReleasedAnswers,
    Result,
    evaluate,
    open_image,
)
from services.score.evaluation.records import Record, Task
from tests.published_data import published
from tests.score.evaluation.stand_ins import SOURCE, ColorWords, color_task, write_sugarcrepe


class Certain:
    """A judge that wins, loses and ties given numbers of records, in this order; it reads no image."""

    name = "certain"
    reads_images = False

    def __init__(self, num_won: int, num_lost: int) -> None:
        self._won, self._lost = num_won, num_lost

    def notes(self) -> Mapping[str, Any]:
        return {}

    def score(self, task: Task, on_scores: OnScores) -> None:
        for place in range(len(task.records)):
            gap = 1.0 if place < self._won else -1.0 if place < self._won + self._lost else 0.0
            on_scores(place, np.array([[[gap, 0.0]]]))


def pairs(num_records: int, name: str = "replace_obj") -> Task:
    records = tuple(Record(str(place), (Path("a.jpg"),), ("x", "y")) for place in range(num_records))
    return Task(name, "sugarcrepe", records, SOURCE)


def test_ties_count_as_wrong_as_in_the_published_row_of_vera() -> None:
    (result,) = evaluate(Certain(816, 816), [pairs(1652)])
    # 20 of 1,652 are ties; by half they would have made 50.00
    assert result.scores["replace_obj"] == pytest.approx(49.39, abs=0.005)


def test_each_benchmark_has_a_result_with_sizes_settings_and_the_judges_notes(tmp_path: Path) -> None:
    judge = ColorWords()
    tasks = [*load_sugarcrepe_tasks(write_sugarcrepe(tmp_path), tmp_path / "val2017"), color_task(tmp_path)]
    crepe, colors = evaluate(judge, tasks, {"limit": None})
    # one of three choices has twice the same caption, and one of swap_att's is turned round
    assert crepe.scores == {name: pytest.approx(100 * 2 / 3) for name in crepe.scores} | {
        "swap_att": pytest.approx(100 / 3)
    }
    assert set(crepe.sizes.values()) == {3}
    assert colors == Result(
        "colour words", "colours", {"colours": 100.0}, {"colours": 3}, {"limit": None, "primaries": 3}
    )
    assert crepe.settings == colors.settings


def test_a_group_has_a_score_for_captions_and_one_for_images_too(tmp_path: Path) -> None:
    red, green = (record.images[0] for record in color_task(tmp_path).records[:2])
    right = Record("0", (red, green), ("red", "green"))
    # both images suit the first caption best
    half = Record("1", (red, green), ("red green", "blue"))
    task = Task("pairs", "mine", (right, half), SOURCE)
    (result,) = evaluate(ColorWords(), [task])
    assert result.scores == {"pairs": 50.0, "pairs::text": 50.0, "pairs::image": 50.0}
    assert result.sizes == {"pairs": 2}


def test_a_missing_image_of_the_last_task_is_told_before_the_first_is_read(tmp_path: Path) -> None:
    judge = ColorWords()
    tasks = [color_task(tmp_path / "here", "here"), color_task(tmp_path / "there", "there")]
    (tmp_path / "there" / "blue.png").unlink()
    with pytest.raises(BadFile, match=r"there/blue.png is missing. It belongs to colours"):
        evaluate(judge, tasks)
    assert judge.num_images == 0


def test_a_judge_that_reads_no_image_needs_none() -> None:
    (result,) = evaluate(Certain(1, 1), [pairs(2)])
    assert result.scores == {"replace_obj": 50.0}


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(Refused, match=r"a\.png can't be read as an image"):
        open_image(path)


def test_results_of_equal_settings_come_together() -> None:
    first, other = (evaluate(Certain(1, 1), [pairs(2, name)], {"limit": 2})[0] for name in ("swap_obj", "swap_att"))
    (both,) = RESULT_FILES.merge([first, other])
    assert both.scores == {"swap_obj": 50.0, "swap_att": 50.0}
    assert both.sizes == {"swap_obj": 2, "swap_att": 2}
    unlike = replace(other, settings={"limit": 3})
    assert RESULT_FILES.merge([first, unlike]) == [unlike]
    assert RESULT_FILES.merge([first, replace(first, judge="other")]) == [first, replace(first, judge="other")]


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
        ("{", "answers.json:1: not JSON"),
        ("{}", "answers.json holds no answers"),
        ('{"one": {"pets": [1]}}', "answers.json: one.pets: Input should be an object"),
        ('{"one": {"pets": {"0": 2}}}', "answers.json: one.pets.0: Input should be a valid boolean"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name_and_field(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "answers.json"
    path.write_text(content)
    with pytest.raises(Refused, match=message):
        ReleasedAnswers(path, name="they")


def test_a_missing_file_and_a_missing_answer_are_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    with pytest.raises(Refused, match=r"answers\.json: No such file"):
        ReleasedAnswers(path, name="they")
    path.write_text(json.dumps({"one": {"pets": {"0": 1}}, "two": {"pets": {}}}))
    task = Task("pets", "mine", (Record("0", (Path("a"),), ("x", "y")),), SOURCE)
    with pytest.raises(Refused, match=r"answers\.json has no answer for two\.pets\.0"):
        evaluate(ReleasedAnswers(path, name="they"), [task])
