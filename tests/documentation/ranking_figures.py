"""Tables of the recorded rankings by attention, their quality and their cost, and of citations."""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from tests.documentation.benchmark_figures import latest, runs
from tests.documentation.blocks import table

Run = Mapping[str, Any]

COLUMNS: Mapping[str, Callable[[Run], bool]] = {
    "`open-facts`": lambda run: run["data"] == "open",
    "`litm-facts`": lambda run: run["data"] == "generated" and not run["artificial_bias"],
    "bias of 2": lambda run: run["artificial_bias"] == 2,
    "bias of 4": lambda run: run["artificial_bias"] == 4,
    "SynthWiki": lambda run: run["data"] == "SynthWiki",
    "NaturalQuestions": lambda run: run["data"] == "NaturalQuestions",
}
ESTIMATES = ("none", "exact", "tree", "single", "query", "question")
SOURCES = {
    "all layers": "all layers",
    "layers": "chosen layers",
    "heads, CoRe": "chosen heads, CoRe",
    "heads, QRHead": "chosen heads, QRHead",
}
ALONE = {"query_likelihood": "query likelihood", "relevance_prompt": "relevance prompt", "TF-IDF": "TF-IDF"}


def ranking_runs(is_of: Callable[[Run], bool]) -> list[Run]:
    """The latest run of each model among those of a column."""
    found = {run["model"]: run for run in runs() if run["benchmark"] == "ranking_by_attention" and is_of(run)}
    return list(found.values())


def columns() -> dict[str, list[Run]]:
    """The runs of each column that has any."""
    return {name: found for name, is_of in COLUMNS.items() if (found := ranking_runs(is_of))}


def ndcg(column: str, estimate: str, source: str) -> float:
    """nDCG@10 of a column, a mean over its trainings; NaN for an estimate that did not run."""
    found = [run["ndcg"][estimate][source] for run in ranking_runs(COLUMNS[column]) if estimate in run["ndcg"]]
    return statistics.fmean(found) if found else math.nan


def ranking_table() -> str:
    shown = columns()
    rows = [
        (f"`{estimate}`", title, *(_cell(ndcg(column, estimate, source)) for column in shown))
        for estimate in ESTIMATES
        for source, title in SOURCES.items()
    ]
    for name, title in ALONE.items():
        rows.append(
            ("", title, *(_cell(statistics.fmean(run["alone"][name] for run in found)) for found in shown.values()))
        )
    questions = (f"{sum(run['questions'] for run in found)}" for found in shown.values())
    return table(("bias", "rel of", *shown), [*rows, ("", "questions", *questions)])


def ranking_cost_table() -> str:
    """CPU milliseconds of one ranking, medians, with the prompt's mean number of tokens."""
    shown = {name: found[0] for name, found in columns().items() if not name.startswith("bias")}
    titles = list(next(iter(shown.values()))["cpu_ms"])
    rows = [("tokens of the prompt", *(f"{run['tokens']:,}" for run in shown.values()))]
    for title in titles:
        found = (run["cpu_ms"].get(title) for run in shown.values())
        rows.append((title.replace("_", " "), *("" if one is None else f"{one['median']:.0f}" for one in found)))
    return table(("ranked by", *shown), rows)


def citations_table() -> str:
    """Precision and recall of `open-facts` by attention with and without calibration."""
    run = latest("citations", model="open-facts")
    rows = []
    for name in ("calibrated", "uncalibrated"):
        found = run[name]
        for which, title in (("chosen", "chosen"), ("served", "the service's")):
            figures = found[which]
            rows.append(
                (
                    *(name, f"{figures['threshold']:.2f}, {title}", f"{figures['precision']}", f"{figures['recall']}"),
                    *(f"{found['answers']}", f"{found['right']}", f"{found['unanswerable_that_cite']}"),
                )
            )
    titles = ("threshold", "precision", "recall", "answers", "right answers", "unanswerable that cite")
    return table(("attention", *titles), rows)


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
