"""Tables have the papers' columns and averages, and are written for terminals, documents and papers."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from services.jobs.tables import Table
from services.score.evaluation.aggregates import COMP, ELEVATER, SUGARCREPE_SIZES
from services.score.evaluation.judges import RESULT_FILES, Result
from services.score.evaluation.suite.parts import PARTS
from services.score.evaluation.tables import make_tables, name_of_share, numbers_of, print_tables

GOLDENS = Path(__file__).parents[2] / "goldens"
PUBLISHED = json.loads((GOLDENS / "compositionality_tables.json").read_text())
TABLE_4_6 = PUBLISHED["table_4_6"]


def of_sugarcrepe(judge: str, row: Sequence[float]) -> Result:
    scores = dict(zip(TABLE_4_6["types"], row, strict=False))
    return Result(judge, "sugarcrepe", scores, {**SUGARCREPE_SIZES, "swap_obj": 246})  # of the first published file


def of_sub_tasks(model: str) -> list[Result]:
    tasks = PUBLISHED["sub_tasks"][model]["tasks"]
    sizes = {"sugarcrepe": SUGARCREPE_SIZES, "imagecode": {"videos": 1872, "static": 430}}
    return [Result(model, name, scores, sizes.get(name, {})) for name, scores in tasks.items()]


def titled(results: Sequence[Result], start: str) -> Table:
    (table,) = (table for table in make_tables(results) if table.title.startswith(start))
    return table


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def groups(table: Table) -> tuple[str, ...]:
    return tuple(heading.rpartition("\n")[0] for heading in table.header)


def names(table: Table) -> tuple[str, ...]:
    return tuple(heading.rpartition("\n")[2] for heading in table.header)


def test_table_4_6_has_the_published_rows() -> None:
    rows = TABLE_4_6["rows"]
    table = titled([of_sugarcrepe(model, row) for model, row in rows.items()], "Table 4.6")
    assert groups(table) == ("", *("REPLACE",) * 3, *("SWAP",) * 2, *("ADD",) * 2, "")
    assert names(table) == (
        "Model", "Object", "Attribute", "Relation", "Object", "Attribute", "Object", "Attribute", "Average",
    )  # fmt: skip
    for (model, *cells), row in zip(texts(table), rows.values(), strict=True):
        assert cells[:7] == [f"{value:.2f}" for value in row[:7]], model
        # the mean of rounded scores may differ in the last digit
        assert float(cells[7]) == pytest.approx(row[7], abs=0.011)
    assert [row[-1] for row in texts(table)][-1] == "90.95"


def test_table_4_5_has_the_published_rows_by_form() -> None:
    results = [of_sugarcrepe(model, TABLE_4_6["rows"][model]) for model in PUBLISHED["forms"]]
    table = titled(results, "Tables 4.5 and C.4")
    assert names(table) == ("Model", "REPLACE", "SWAP", "ADD")
    for (model, *cells), row in zip(texts(table), PUBLISHED["forms"].values(), strict=True):
        assert [float(cell) for cell in cells] == pytest.approx(row, abs=0.011), model
    older = {"replace": 75.71, "swap": 71.58, "negate": 76.89, "shuffle": 72.06}
    both = titled([*results, Result("ViT-B-32", "aro+crepe", older, {})], "Tables 4.5 and C.4")
    assert groups(both) == ("", *("ARO+CREPE",) * 4, *("SugarCrepe",) * 3)
    assert texts(both)[0][:5] == ["ViT-B-32", "75.71", "71.58", "76.89", "72.06"]
    assert texts(both)[1][:5] == ["ViT-B-32-negclip", "–", "–", "–", "–"]


@pytest.mark.parametrize(("model", "row"), [("DAC-SAM", "DAC-SAM ⁶ LoRA"), ("NegCLIP", "NegCLIP ¹")])
def test_table_1_of_fsc_clip_has_the_published_row_of_its_sub_tasks(model: str, row: str) -> None:
    table_1 = PUBLISHED["table_1"]
    published: dict[str, float] = dict(zip(table_1["columns"], table_1["rows"][row], strict=True))
    tasks = ("absolute_size", "absolute_position", "count", "relative_size", "relative_position", "existence")
    spec = Result(model, "spec", dict.fromkeys(tasks, published["spec"]), {})
    table = titled([*of_sub_tasks(model), spec], "Table 1")
    assert names(table) == (
        "Model", "ARO", "CREPE", "EqBen", "ImageCoDe", "SugarCrepe", "SVO Probes", "VALSE", "VL-Checklist", "WhatsUp",
        "Winoground", "SPEC", "Comp", "ZS",
    )  # fmt: skip
    ((_, *cells),) = texts(table)
    found = dict(zip(published, map(float, cells), strict=False))
    # the sub-tasks were published earlier than the table, and CREPE was evaluated anew in between
    assert found == pytest.approx(published, abs=0.31)
    assert found["comp"] == pytest.approx(published["comp"], abs=0.051)
    assert found["sugarcrepe"] == published["sugarcrepe"]
    assert float(cells[12]) == pytest.approx({"DAC-SAM": 51.9, "NegCLIP": 55.9}[model], abs=0.01)


@pytest.mark.parametrize("model", ["CLIP-ViT-B/32", "FSC-CLIP (Ours)"])
def test_table_8_of_fsc_clip_has_the_published_rows(model: str) -> None:
    *columns, _ = PUBLISHED["table_8"]["columns"]
    *row, average = PUBLISHED["table_8"]["rows"][model]
    table = titled([Result(model, "elevater", dict(zip(columns, row, strict=True)), {})], "Table 8")
    assert names(table) == ("Model", *columns, "Average")
    assert texts(table) == [[model, *(f"{score:.1f}" for score in row), f"{average:.1f}"]]


def test_table_9_of_fsc_clip_has_three_groups_and_two_averages() -> None:
    row = PUBLISHED["table_9"]["FSC-CLIP (Ours)"]
    data_sets = ("coco_karpathy", "flickr30k", "coco_counterfactuals")
    scores = {f"{name}::{way}/R@1": row[way][n] for n, name in enumerate(data_sets) for way in ("i2t", "t2i")}
    result = Result("FSC-CLIP", "retrieval", scores, {})
    table = titled([result], "Table 9")
    headings = ("COCO", "Flickr30k", "COCO-CounterFactuals", "Avg.")
    assert groups(table) == ("", *(heading for heading in headings for _ in range(2)))
    assert texts(table)[0][-2:] == [f"{average:.1f}" for average in row["averages"]]
    assert texts(titled([result], "Tables 2 to 5")) == [["FSC-CLIP", *texts(table)[0][-2:]]]


def test_comp_stands_only_where_all_eleven_benchmarks_are_scored() -> None:
    table = titled(of_sub_tasks("DAC-SAM"), "Table 1")
    assert "Comp" not in names(table)
    assert "SPEC" not in names(table)


def test_valse_is_shown_by_phenomenon() -> None:
    (result,) = (result for result in of_sub_tasks("NegCLIP") if result.benchmark == "valse")
    table = titled([result], "VALSE")
    assert names(table) == (
        "Model", "Existence", "Plurals", "Counting", "Relations", "Actions", "Coreference", "Foil-it", "Average",
    )  # fmt: skip
    ((_, *cells),) = texts(table)
    assert cells[2] == f"{(69.23963133640552 + 71.22222222222221 + 54.12445730824892) / 3:.2f}"
    assert cells[-1] == "73.72"


def test_a_benchmark_without_a_layout_has_a_column_for_each_score() -> None:
    results = [
        Result("a", "pets", {"dogs": 50.0, "cats": 25.0}, {"dogs": 4, "cats": 4}),
        Result("b", "pets", {"cows": 75.0}, {"cows": 4}),
        Result("b", "winoground", {"winoground": 8.0, "winoground::text": 30.25, "winoground::image": 11.0}, {}),
    ]
    pets = titled(results, "pets")
    assert names(pets) == ("Model", "dogs", "cats", "cows")
    assert texts(pets) == [["a", "50.00", "25.00", "–"], ["b", "–", "–", "75.00"]]
    winoground = titled(results, "winoground")
    assert names(winoground) == ("Model", "winoground", "winoground::text", "winoground::image", "average")
    # who has no number in a table is not in it
    assert texts(winoground) == [["b", "8.00", "30.25", "11.00", "8.00"]]


@pytest.fixture
def three() -> list[Result]:
    return [Result(name, "pets", {"a_b": score}, {}) for name, score in (("A|B & co", 1.0), ("b", 3.0), ("c", 2.0))]


def test_markdown_marks_the_best_and_the_second(three: list[Result]) -> None:
    assert titled(three, "pets").to_markdown() == "\n".join(
        [
            "### pets (accuracy)",
            "",
            "| Model | a_b |",
            "| :-- | --: |",
            "| A\\|B & co | 1.00 |",
            "| b | **3.00** |",
            "| c | <u>2.00</u> |",
            "",
        ]
    )


def test_a_terminal_shows_the_best_bold_and_the_second_underlined(three: list[Result]) -> None:
    output = io.StringIO()
    print_tables(three, Console(file=output, force_terminal=True, color_system="standard", width=100))
    assert "\x1b[1m3.00" in output.getvalue()
    assert "\x1b[4m2.00" in output.getvalue()
    assert "m1.00" not in output.getvalue()
    assert "A|B & co" in output.getvalue()


def test_equal_numbers_are_equally_good_and_a_single_one_is_not_best_of_anything() -> None:
    results = [Result(name, "pets", {"dogs": score}, {}) for name, score in (("a", 5.001), ("b", 5.004), ("c", 4.0))]
    assert [row[1].mark for row in titled(results, "pets").rows] == ["best", "best", "second"]
    assert [row[1].mark for row in titled(results[:2], "pets").rows] == ["", ""]


def test_saved_results_come_together_in_one_table(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for model in ("RN50", "RN101"):
        RESULT_FILES.save([of_sugarcrepe(model, TABLE_4_6["rows"][model])], path)
    results = RESULT_FILES.load([path])
    assert [row[0] for row in texts(titled(results, "Table 4.6"))] == ["RN50", "RN101"]
    assert numbers_of(results)["RN50"]["sugarcrepe"]["macro"] == pytest.approx(73.83, abs=0.01)


def suite_of(judge: str, comp: float, zero_shot: float) -> list[Result]:
    """The whole of Comp and of ZS, with one value each."""
    by_benchmark = {
        name: tuple(task for part in PARTS.values() if part.benchmark == name for task in part.scores) for name in COMP
    }
    return [
        *(
            Result(judge, name, dict.fromkeys(tasks, comp), dict.fromkeys(tasks, 10))
            for name, tasks in by_benchmark.items()
        ),
        Result(judge, "elevater", dict.fromkeys(ELEVATER, zero_shot), {}),
    ]


def test_table_7_has_the_mean_and_deviation_of_each_method_with_several_seeds() -> None:
    trainings = {"fsc-clip#0": (53.0, 55.0), "fsc-clip#1": (54.0, 55.5), "fsc-clip#2": (53.5, 56.0), "clip": (46, 57)}
    results = [result for judge, values in trainings.items() for result in suite_of(judge, *values)]
    table = titled(results, "Table 7")
    assert table.header[0] == "Model"
    assert table.header[-2:] == ("Comp", "ZS")
    # numpy.std([53, 54, 53.5], ddof=1)
    assert texts(table) == [["fsc-clip (3 seeds)", *["53.5 ± 0.50"] * 12, "55.5 ± 0.50"]]
    # a seed without a benchmark leaves it and Comp without a number
    partial = [one for one in results if (one.judge, one.benchmark) != ("fsc-clip#1", "crepe")]
    lacking = titled(partial, "Table 7")
    assert "CREPE" not in lacking.header
    assert "Comp" not in lacking.header
    assert lacking.header[-1] == "ZS"
    assert not [one for one in make_tables(suite_of("clip#0", 1, 2)) if one.title.startswith("Table 7")]


def test_the_points_of_figure_3_are_in_the_order_of_the_share_of_tuned_weights() -> None:
    shares = {1: (54.0, 55.0), 0: (46.0, 57.0), 0.5: (52.0, 56.5)}
    results = [one for alpha, values in shares.items() for one in suite_of(name_of_share("fsc", alpha), *values)]
    table = titled([*results, *suite_of("clip", 46, 57)], "Figure 3")
    assert table.header == ("Model", "α", "Comp", "ZS")
    assert texts(table) == [["fsc", "0", "46.0", "57.0"], ["fsc", "0.5", "52.0", "56.5"], ["fsc", "1", "54.0", "55.0"]]
