"""Long jobs show where they are, also where no terminal draws bars."""

import io
import math

import pytest
from rich.console import Console

from services.jobs.progress import Bar, Bars, duration


@pytest.fixture(autouse=True)
def after_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bar, "last_line", -math.inf)


def lines_of(line_seconds: float) -> list[str]:
    output = io.StringIO()
    bars = Bars(Console(file=output, force_terminal=False, width=40), line_seconds)
    with bars.bar("reading [/b] images", total=3) as bar:
        bar.advance(told="a loss that makes the line longer than the console is wide")
        bar.advance()
        bar.begin("writing")
        bar.advance()
    return output.getvalue().splitlines()


def test_without_a_terminal_a_job_prints_a_line_after_enough_time() -> None:
    first, second, third, fourth = lines_of(line_seconds=0)
    assert first.startswith("reading [/b] images: 1 of 3, a loss that makes the line longer than the console is wide")
    assert second.startswith("reading [/b] images: 2 of 3, a loss")
    assert (third, fourth) == ("writing: 0", "writing: 1")


def test_no_second_line_is_printed_before_its_time() -> None:
    (only,) = lines_of(line_seconds=3600)
    assert only.startswith("reading [/b] images: 1 of 3")


def test_a_bar_that_is_not_shown_prints_nothing() -> None:
    output = io.StringIO()
    with Bars(Console(file=output), line_seconds=0).bar("hidden", total=1, shown=False) as bar:
        bar.advance()
    assert output.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (119, "119 s"), (150, "2 min"), (7199, "120 min"), (12_240, "3.4 h")]
)
def test_durations_are_short_numbers(seconds: float, text: str) -> None:
    assert duration(seconds) == text
