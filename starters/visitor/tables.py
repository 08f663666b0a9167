"""Tables of the suite: every row with its aim, what a guess reaches, and each run's mean and deviation."""

from collections.abc import Sequence
from itertools import pairwise

from services.jobs.tables import MISSING, Table, with_error
from starters.visitor.measures import NUM_BINS
from starters.visitor.questions import SERVICES, Service
from starters.visitor.results import ALL_CASES, Result
from starters.visitor.rows import Row, all_rows

TITLES: dict[Service, str] = {
    "embed": "embed: retrieval under a condition, mAP",
    "score": "score: the right one of two captions, accuracy",
    "generate": "generate: answers, documents and refusals, percent",
    "predict": "predict: word problems and inferences, accuracy",
}


def make_table(service: Service, results: Sequence[Result], runs: Sequence[str]) -> Table:
    """Make a service's table with a column for each run; what was not measured is a dash."""
    by_run = {result.run: result for result in results if result.service == service and result.suite == "rows"}
    rows = [_cells(row, [by_run.get(run) for run in runs]) for row in all_rows() if row.service == service]
    return Table.of_texts(TITLES[service], ("", "asked", "aim", "a guess", *runs), rows, num_names=2)


def make_case_table(results: Sequence[Result], runs: Sequence[str]) -> Table:
    """Make the table of cases made by hand: how many of each service's are right, in each run."""
    found = {(result.run, result.service): result for result in results if result.suite == "cases"}
    rows = [[service, *(_right_of(found.get((run, service))) for run in runs)] for service in SERVICES]
    return Table.of_texts(f"{ALL_CASES}, right of all", ("", *runs), rows)


def make_reliability_table(results: Sequence[Result], run: str) -> Table:
    """Make the table of a run's probabilities: how many of each bin were about something right."""
    edges = [100 * number // NUM_BINS for number in range(NUM_BINS + 1)]
    header = [f"{low}–{high} %" for low, high in pairwise(edges)]
    rows = [
        [result.service, row.partition(": ")[2].partition(": ")[2], *map(_share, zip(*seeds.values(), strict=True))]
        for result in results
        if result.run == run
        for row, seeds in result.reliability.items()
    ]
    return Table.of_texts("probabilities, right in percent (of so many)", ("", "", *header), rows, num_names=2)


def _share(of_seeds: Sequence[Sequence[float] | None]) -> str:
    """Show how many of a bin's probabilities, of all seeds, were about something right."""
    found = [one for one in of_seeds if one is not None]
    total = sum(number for number, _, _ in found)
    return f"{sum(number * right for number, _, right in found) / total:.0f} ({total:.0f})" if found else MISSING


def _right_of(result: Result | None) -> str:
    return MISSING if result is None else f"{result.settings['right']} of {result.settings['cases']}"


def _cells(row: Row, results: Sequence[Result | None]) -> list[str]:
    aim = MISSING if row.aim is None else f"{'≤' if row.is_error else '≥'} {row.aim:.0f}"
    chances = [result.chances[row.key] for result in results if result is not None and row.key in result.chances]
    guessed = f"{chances[0]:.1f}" if chances else MISSING
    return [row.group, row.name, aim, guessed, *(_score(row, result) for result in results)]


def _score(row: Row, result: Result | None) -> str:
    mean = None if result is None else result.mean(row.key)
    if result is None or mean is None:
        return MISSING
    return with_error(mean, result.deviation(row.key), digits=1)
