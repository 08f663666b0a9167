"""Results come together in a file, which a save that is refused leaves as it was."""

import math
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

import pytest

from services.jobs.result_files import ResultFiles


@dataclass(frozen=True)
class Score:
    model: str
    points: dict[str, float]
    settings: dict[str, int] = field(default_factory=dict)


def combine(earlier: Score, later: Score) -> Score:
    return replace(later, points={**earlier.points, **later.points})


FILES = ResultFiles(Score, attrgetter("model"), combine)


def test_results_are_kept_beside_those_that_the_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "results.json"
    FILES.save([Score("a", {"x": 0.1}), Score("b", {"x": 0.2})], path)
    FILES.save([Score("a", {"x": 0.3})], path)
    assert FILES.load([path]) == [Score("a", {"x": 0.3}), Score("b", {"x": 0.2})]
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_results_of_one_thing_come_together_where_their_settings_are_the_same() -> None:
    first, second, other = Score("a", {"x": 0.1}), Score("b", {"x": 0.2}), Score("a", {"y": 0.3})
    assert FILES.merge([first, second, other]) == [Score("a", {"x": 0.1, "y": 0.3}), second]
    assert FILES.merge([first, replace(other, settings={"limit": 1})]) == [replace(other, settings={"limit": 1})]


def test_results_of_several_files_come_together(tmp_path: Path) -> None:
    FILES.save([Score("a", {})], tmp_path / "one.json")
    FILES.save([Score("b", {})], tmp_path / "two.json")
    assert [score.model for score in FILES.load([tmp_path / "two.json", tmp_path / "one.json"])] == ["b", "a"]


def test_a_score_that_is_not_a_number_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for model in ("a", "b"):
        FILES.save([Score(model, {"x": math.nan, "y": math.inf})], path)
    assert [repr(score.points) for score in FILES.load([path])] == ["{'x': nan, 'y': inf}"] * 2


@pytest.mark.parametrize("content", ["{", "[1]", '[{"model": "a"}]', '[{"model": "a", "points": {}, "more": 1}]'])
def test_another_content_is_refused_and_stays(content: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"results\.json(:1: not JSON| does not contain results)"):
        FILES.save([Score("a", {})], path)
    assert path.read_text() == content
