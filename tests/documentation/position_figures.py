"""Tables of the recorded answers and rankings with re-scaled positions beside calibrated ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import table

MODELS: Mapping[str, str] = {"`litm-facts`": "generated", "`open-facts`": "open"}
RANKED: Mapping[str, str] = {**MODELS, "SynthWiki": "SynthWiki", "NaturalQuestions": "NaturalQuestions"}


def run_on(data: str) -> Mapping[str, Any]:
    """The latest run on some questions."""
    found: Mapping[str, Any] = latest("lost_in_the_middle", data=data)
    return found


def answers_table() -> str:
    """Right answers by the place of the gold document, in percent, and the cost of a first token."""
    rows = []
    for model, data in MODELS.items():
        run = run_on(data)
        for way, row in run["answers"].items():
            cost = run["cost"][way]
            rows.append(
                (
                    model,
                    way,
                    *(f"{share:.0f}" for share in row["by_position"]),
                    _spread(row["mean"], row["mean_interval"], ".1f"),
                    "" if way == "plain" else _spread(row["over_plain"], row["over_plain_interval"], "+.1f"),
                    f"{row['worst']:.0f}",
                    f"{cost['prefills']:.2f}",
                    f"{cost['over_plain']['median']:.2f}",
                )
            )
    places = [f"{place + 1}." for place in run["positions"]]
    heads = ("model", "way", *places, "average", "above plain", "worst", "tokens, prefills", "time")
    return table(heads, rows)


def positions_ranking_table() -> str:
    """nDCG@10 by attention and by rel of all layers."""
    runs = {title: run_on(data) for title, data in RANKED.items()}
    ways = dict.fromkeys(way for run in runs.values() for way in run["ndcg"])
    rows = [
        (way, *(_ndcg(run, way, source) for run in runs.values() for source in ("attention", "rel"))) for way in ways
    ]
    return table(("positions", *(f"{title}, {source}" for title in runs for source in ("attention", "rel"))), rows)


def _ndcg(run: Mapping[str, Any], way: str, source: str) -> str:
    if way not in run["ndcg"]:
        return ""
    found = run["ndcg"][way][f"{source}, all layers"]
    return _spread(found["mean"], found["interval"], ".3f")


def _spread(value: float, interval: Sequence[float], form: str) -> str:
    low, high = interval
    return f"{value:{form}} ({low:{form}} to {high:{form}})"
