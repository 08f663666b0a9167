"""Tables are written alike for terminals, documents and papers, and mark the best of a column."""

import io

import pytest
from rich.console import Console

from services.jobs.tables import MISSING, Cell, Table, ranked, with_error

GROUPED = Table(
    "Accuracy & cost",
    ("\nModel", "SWAP\nObject", "SWAP\nAttribute", "\nAverage"),
    ((Cell("a|b"), Cell("1.00", "best"), Cell(MISSING), Cell("0.50", "second")),),
)


def printed(table: Table) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=100).print(table.to_rich())
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_a_group_stands_once_above_its_columns_on_a_terminal() -> None:
    title, _, groups, names, *_ = printed(GROUPED)
    assert title == "Accuracy & cost"
    assert [cell.strip() for cell in groups.strip("┃").split("┃")] == ["", "SWAP", "", ""]
    assert [cell.strip() for cell in names.strip("┃").split("┃")] == ["Model", "Object", "Attribute", "Average"]


def test_markdown_names_the_group_in_each_heading() -> None:
    assert GROUPED.to_markdown() == "\n".join(
        [
            "### Accuracy & cost",
            "",
            "| Model | SWAP Object | SWAP Attribute | Average |",
            "| :-- | --: | --: | --: |",
            "| a\\|b | **1.00** | – | <u>0.50</u> |",
            "",
        ]
    )


def test_markdown_without_a_title_is_the_table_alone() -> None:
    assert Table.of_texts("", ("", "x"), [("a", "1")]).to_markdown() == "| | x |\n| :-- | --: |\n| a | 1 |\n"


def test_names_stand_left_and_numbers_right() -> None:
    table = Table.of_texts("t", ("Model", "Method", "Accuracy"), [("a", "b", "1")], num_names=2)
    assert "| :-- | :-- | --: |" in table.to_markdown()
    assert "│ a     │ b      │        1 │" in printed(table)


def test_a_name_in_brackets_is_shown_as_it_is() -> None:
    assert "│ [bold] │" in printed(Table.of_texts("t", ("Model",), [("[bold]",)]))


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([1.0, 3.0, 2.0], ["", "best", "second"]),
        ([2.0, 2.0, 1.0], ["best", "best", "second"]),
        ([5.0, None, 5.0], [""] * 3),
    ],
)
def test_the_best_and_the_second_of_different_values_are_marked(values: list[float | None], marks: list[str]) -> None:
    cells = ranked(values, [str(value) for value in values])
    assert [cell.mark for cell in cells] == marks
    assert [cell.text for cell in cells] == [MISSING if value is None else str(value) for value in values]


def test_an_error_stands_behind_its_number_where_it_is_known() -> None:
    assert (with_error(61, 1.25), with_error(61, None, digits=1)) == ("61.00 ± 1.25", "61.0")
