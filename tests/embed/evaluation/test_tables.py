"""Tables have the dissertation's columns and averages, and saved rows come together."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from services.embed.evaluation.instructions import MMVP, SUGARCREPE
from services.embed.evaluation.results import RESULT_FILES, Result
from services.embed.evaluation.tables import CELEBA, FINE_GRAINED, IMAGENET, average, print_tables

REFERENCE = json.loads((Path(__file__).parents[2] / "goldens" / "retrieval_metrics.json").read_text())

# Rows of Tables 5.2 and 5.3 whose scores Tables D.4 and D.5 hold in full: first columns and average.
TABLE_5_2 = {
    "CLIP": ["6.20", "8.68", "7.54", "41.45", "13.59"],
    "FocalLens-CLIP": ["32.22", "22.11", "16.89", "62.50", "21.32"],
}
TABLE_5_3 = {
    "CLIP": ["64.63", "53.00", "16.55", "61.79", "51.03"],
    "FocalLens-CLIP": ["70.01", "56.80", "33.15", "65.37", "55.29"],
}


def printed(results: list[Result]) -> dict[str, list[list[str]]]:
    """The body rows that each table prints, by its number, as cells."""
    output = io.StringIO()
    print_tables(results, Console(width=240, file=output))
    tables: dict[str, list[list[str]]] = {}
    title = ""
    for line in output.getvalue().splitlines():
        if "Table" in line or "Figure" in line:
            title = line.split(":")[0].strip()
        elif line.startswith("│"):
            tables.setdefault(title, []).append([cell.strip() for cell in line.strip("│").split("│")])
    return tables


@pytest.fixture(scope="module")
def published() -> list[Result]:
    by_attribute = [Result(name, "celeba", scores) for name, scores in REFERENCE["table_D4"].items()]
    return by_attribute + [Result(name, "imagenet", scores) for name, scores in REFERENCE["table_D5"].items()]


@pytest.mark.parametrize(("table", "tasks"), [("D4", CELEBA), ("D5", IMAGENET)])
def test_averages_are_the_published_ones(table: str, tasks: tuple[str, ...]) -> None:
    for embedder, scores in REFERENCE[f"table_{table}"].items():
        assert set(scores) == set(tasks)
        num_tasks, mean = REFERENCE[f"table_{table}_mean{len(tasks)}"][embedder]
        assert average(scores, num_tasks) == pytest.approx(mean)


def test_published_scores_give_the_published_rows(published: list[Result]) -> None:
    tables = printed(published)
    assert tables.keys() == {"Table 5.2", "Table 5.3", "Table D.4", "Table D.5"}
    for name, table, rows in (
        ("Table 5.2", tables["Table 5.2"], TABLE_5_2),
        ("Table 5.3", tables["Table 5.3"], TABLE_5_3),
    ):
        found = {row[0]: row[1:] for row in table}
        assert len(found) == 5, name
        for embedder, cells in rows.items():
            assert found[embedder][:5] == cells
            assert set(found[embedder][5:]) == {"–"}
    # three blocks of attributes and two of kinds, five rows each
    assert [len(row) - 1 for row in tables["Table D.4"]] == [10] * 10 + [9] * 5
    assert [len(row) - 1 for row in tables["Table D.5"]] == [7] * 10


# Rows of Tables 5.5 and 5.6, averages last.
SUGARCREPE_ROW = ["95.64", "84.51", "75.53", "65.30", "66.36", "86.12", "83.09", "79.51"]
MMVP_ROW = ["6.70", "33.30", "33.30", "40.00", "26.70", "66.70", "20.00", "26.70", "20.00", "30.38"]


def test_sugarcrepe_and_mmvp_have_the_published_columns_and_averages() -> None:
    results = [
        Result("FocalLens-CLIP", "sugarcrepe", dict(zip(SUGARCREPE, map(float, SUGARCREPE_ROW), strict=False))),
        Result("FocalLens-CLIP", "mmvp", dict(zip(MMVP, map(float, MMVP_ROW), strict=False))),
    ]
    tables = printed(results)
    assert tables["Table 5.5"] == [["FocalLens-CLIP", *SUGARCREPE_ROW]]
    assert tables["Table 5.6"] == [["FocalLens-CLIP", *MMVP_ROW]]
    assert list(SUGARCREPE)[3] == "swap_obj"
    assert list(MMVP) == [
        *("Orientation", "Presence", "State", "Quantity", "Spatial"),
        *("Color", "Structural", "Text", "Camera"),
    ]


def test_a_score_with_a_deviation_shows_it() -> None:
    results = [
        Result(name, "linear-probe", {"5": score, "5 ±": 1.25}) for name, score in {"a": 60.0, "b": 70.0}.items()
    ]
    assert printed(results)["Figure 5.4"] == [
        ["a", "60.00 ± 1.25", "–", "–"],
        ["b", "70.00 ± 1.25", "–", "–"],
    ]


def test_an_average_stands_only_where_every_task_is_scored() -> None:
    scores = dict.fromkeys(FINE_GRAINED, 50.0)
    (row,) = printed([Result("a", "fine-grained", scores)])["Table 5.3"]
    assert row[-5:] == ["50.00"] * 5
    del scores["Food"]
    (row,) = printed([Result("a", "fine-grained", scores)])["Table 5.3"]
    assert row[-5:] == ["50.00"] * 3 + ["–"] * 2


def test_the_best_of_a_column_is_bold_and_the_second_underlined() -> None:
    output = io.StringIO()
    results = [
        Result(name, "celeba-identity", {"CelebA-Identity": score}) for name, score in {"a": 1, "b": 3, "c": 2}.items()
    ]
    print_tables(results, Console(file=output, force_terminal=True, color_system="standard"))
    assert "\x1b[1m3.00" in output.getvalue()
    assert "\x1b[4m2.00" in output.getvalue()
    assert "m1.00" not in output.getvalue()


def test_tasks_of_one_benchmark_come_together_and_later_scores_replace_earlier_ones() -> None:
    merged = RESULT_FILES.merge(
        [
            Result("a", "genecis", {"Object": 1.0}, {"limit": None}),
            Result("b", "genecis", {"Object": 2.0}, {"limit": None}),
            Result("a", "genecis", {"Attribute": 3.0}, {"limit": None}),
            Result("b", "genecis", {"Attribute": 4.0}, {"limit": 10}),
        ]
    )
    assert merged == [
        Result("a", "genecis", {"Object": 1.0, "Attribute": 3.0}, {"limit": None}),
        Result("b", "genecis", {"Attribute": 4.0}, {"limit": 10}),
    ]


def test_results_are_saved_beside_those_of_earlier_runs(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    RESULT_FILES.save([Result("a", "imagenet", {"Dog": 1.0})], path)
    RESULT_FILES.save([Result("b", "imagenet", {"Dog": 2.0})], path)
    assert RESULT_FILES.load([path, path]) == [
        Result("a", "imagenet", {"Dog": 1.0}),
        Result("b", "imagenet", {"Dog": 2.0}),
    ]


@pytest.mark.parametrize("content", ["[1]", "{", '[{"model": "a"}]'])
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"results.json(:1: not JSON| does not contain results)"):
        RESULT_FILES.load([path])
