"""Figures in README and guide about generate's starter equal those of its recorded evaluation."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# `fovea evaluate litm` of three trainings that differ in their seed alone; the first is the starter.
RECORDED = ROOT / "docs" / "results" / "litm.json"
README, CONCEPT = ROOT / "README.md", ROOT / "docs" / "concepts" / "calibration.md"
STARTER = ROOT / "services" / "generate" / "starter" / "litm-facts"
SEEDS = ["seed-0", "seed-1", "seed-2"]
VANILLA, CALIBRATED = "Vanilla attention", "Calibrated attention"


def scores_of(protocol: str) -> list[dict[str, dict[str, float]]]:
    """By seed."""
    results = [one for one in json.loads(RECORDED.read_text()) if one["protocol"] == protocol]
    assert [one["model"] for one in results] == SEEDS
    return [one["scores"] for one in results]


def mean(protocol: str, row: str, column: str) -> float:
    return statistics.fmean(scores[row][column] for scores in scores_of(protocol))


def accuracy_table() -> str:
    """By gold position, counted from 1; means over the seeds."""
    columns = [str(position) for position in range(10)]
    heads = [f"{place}" for place in range(1, 11)]
    lines = [f"| gold is number | {' | '.join(heads)} | average |", "| --- |" + " --- |" * 11]
    for title, row in (("vanilla", VANILLA), ("calibrated", CALIBRATED)):
        cells = [mean("accuracy", row, column) for column in columns]
        lines.append(f"| {title} | {' | '.join(f'{cell:.1f}' for cell in [*cells, statistics.fmean(cells)])} |")
    return "\n".join(lines) + "\n"


def seeds_table() -> str:
    heads = [f"{where}{how}" for how in ("", ", calibrated") for where in ("ends", "middle", "average")]
    lines = [f"| training seed | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    for number, scores in enumerate(scores_of("accuracy")):
        cells = []
        for row in (VANILLA, CALIBRATED):
            by_position = scores[row]
            cells += [statistics.fmean(by_position[str(place)] for place in places) for places in ((0, 9), (4, 5))]
            cells.append(statistics.fmean(by_position.values()))
        lines.append(f"| {number} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def recall_table() -> str:
    titles = {
        f"{CALIBRATED}, layers 2–2": "calibrated attention of the profile's layer",
        f"{VANILLA}, layers 2–2": "vanilla attention of that layer",
        CALIBRATED: "calibrated attention of all layers",
        VANILLA: "vanilla attention of all layers",
        "LongLLMLingua-r_k": "query likelihood",
        "Relevance generation": "relevance prompt",
        "Query generation": "query generation",
    }
    lines = ["| Recall@3, gold in the middle of 10 | |", "| --- | --- |"]
    for row, title in titles.items():
        lines.append(f"| {title} | {mean('recall', row, 'recall_at_3'):.3f} |")
    return "\n".join(lines) + "\n"


def estimates_table() -> str:
    lines = [
        "| `bias` | ρ of the bias | ρ of rel | accuracy | … middle | cost, prefills |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    forms = {"bias_spearman": ".2f", "rel_spearman": ".2f", "average": ".1f", "middle": ".1f", "prefills": ".2f"}
    for row, columns in scores_of("estimates")[0].items():
        cells = [
            format(mean("estimates", row, column), form) if column in columns else "" for column, form in forms.items()
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("page", "table"),
    [(README, accuracy_table), (README, recall_table), (CONCEPT, seeds_table), (CONCEPT, estimates_table)],
)
def test_tables_of_the_starter_are_the_recorded_ones(page: Path, table: Callable[[], str]) -> None:
    assert table() in page.read_text(), table()


def test_the_starter_is_the_evaluated_one() -> None:
    profile: dict[str, Any] = json.loads((STARTER / "calibration.json").read_text())
    for result in json.loads(RECORDED.read_text()):
        assert result["num_documents"] == 10
        assert result["settings"]["questions"] == 500
        if result["model"] == SEEDS[0]:
            assert result["settings"]["profile"] == {key: profile[key] for key in result["settings"]["profile"]}


def test_the_starter_is_lost_in_the_middle_and_calibration_finds_it() -> None:
    for scores in scores_of("accuracy"):
        vanilla, calibrated = scores[VANILLA], scores[CALIBRATED]
        middle = (vanilla["4"] + vanilla["5"]) / 2
        assert (vanilla["0"] + vanilla["9"]) / 2 >= middle + 15
        assert (calibrated["4"] + calibrated["5"]) / 2 >= middle + 10
        assert sum(calibrated.values()) >= sum(vanilla.values())
