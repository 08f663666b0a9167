"""Series that a real Prometheus recorded, in the notation of promtool's unit tests.

Time is stretched: what was scraped every `SCRAPED_S` seconds is written as if it had been scraped every `WRITTEN_S`,
as in production, and what a gauge gives in seconds is stretched alike. So half a minute tells a quarter of an hour.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.monitoring.prometheus_server import Prometheus

SCRAPED_S = 0.5
WRITTEN_S = 15
STRETCH = WRITTEN_S / SCRAPED_S
# What a histogram's buckets and a counter's sum hold is left as it was.
DURATION = re.compile(r"fovea_(?!.*timestamp)[a-z_]*_seconds$")
TIMESTAMP = re.compile(r".*(timestamp|start_time)_seconds$")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Series:
    """Values by the number of their scrape; None where the series was not there."""

    labels: Labels
    values: Sequence[float | None]

    @property
    def name(self) -> str:
        return self.labels["__name__"]

    @property
    def is_flat_counter(self) -> bool:
        """Whether no rate and no increase is in it."""
        return self.name.endswith("_total") and None not in self.values and len(set(self.values)) == 1


def recorded(prometheus: Prometheus, metrics: set[str], since: float, until: float) -> list[Series]:
    """All series of these metrics between two Unix times, the times in seconds."""
    names = "|".join(sorted(metrics))
    raw = prometheus.ranges(f'{{__name__=~"{names}"}}[{round((until - since) * 1000)}ms] @ {until:.3f}')
    num_scrapes = int((until - since) / SCRAPED_S)
    found = []
    for labels, samples in raw:
        values: list[float | None] = [None] * num_scrapes
        for at, value in samples:
            # Each target is scraped at its own moment of the interval.
            place = min(num_scrapes - 1, int((at - since) / SCRAPED_S))
            values[place] = written_value(labels["__name__"], value, since)
        found.append(Series(labels, filled(values)))
    kept = [series for series in found if not series.is_flat_counter]
    return sorted(kept, key=lambda series: notation(series.labels))


def written_value(name: str, value: float, since: float) -> float:
    if TIMESTAMP.fullmatch(name):
        return float(round((value - since) * STRETCH))
    if DURATION.fullmatch(name):
        return round(value * STRETCH, 1)
    return round(value, 3)


def filled(values: Sequence[float | None]) -> list[float | None]:
    """Without the holes of a scrape that came a moment late."""
    result = list(values)
    for place in range(1, len(result) - 1):
        if result[place] is None and result[place - 1] is not None and result[place + 1] is not None:
            result[place] = result[place - 1]
    if len(result) > 1 and result[-1] is None and result[-2] is not None:
        result[-1] = result[-2]
    return result


def notation(labels: Labels) -> str:
    """`name{label="value"}`, labels in order."""
    rest = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "__name__")
    return f"{labels['__name__']}{{{rest}}}"


def values_notation(values: Sequence[float | None]) -> str:
    """Runs of equal steps are shortened; where a series ends it goes stale at once, as in Prometheus."""
    words: list[str] = []
    place = 0
    while place < len(values):
        value = values[place]
        if value is None:
            end = place
            while end < len(values) and values[end] is None:
                end += 1
            words += [] if place == 0 else ["stale"]
            missing = end - place - (0 if place == 0 else 1)
            words += [f"_x{missing}"] if missing > 1 else ["_"] * missing
            place = end
            continue
        length, step = _run(values, place)
        if length >= 3:
            sign = "-" if step < 0 else "+"
            words.append(f"{_number(value)}{sign}{_number(abs(step))}x{length - 1}")
            place += length
        else:
            words.append(_number(value))
            place += 1
    return " ".join(words)


def _run(values: Sequence[float | None], start: int) -> tuple[int, float]:
    """Return how many values from `start` on differ by the same whole step, and that step."""
    first = values[start]
    following = values[start + 1] if start + 1 < len(values) else None
    if first is None or following is None or not (first.is_integer() and following.is_integer()):
        return 1, 0
    step = following - first
    end = start + 1
    while end < len(values) and (value := values[end]) is not None and value == first + step * (end - start):
        end += 1
    return end - start, step


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
