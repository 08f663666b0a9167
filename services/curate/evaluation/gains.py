"""Gains of training on hard negatives, on benchmarks of them, by form (Tables 4.5 and C.4)."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.core.refusals import Refused
from services.jobs.sugarcrepe import FORMS
from services.jobs.tables import MISSING, Cell, Table

# The dissertation marks gains of more than this, in percentage points.
MARKED_GAIN = 10.0

# A benchmark and a form of hard negatives.
Part = tuple[str, str]


@dataclass(frozen=True)
class Scores:
    """A judge's accuracy in percent over all pairs of each part, and the numbers of these."""

    judge: str
    accuracy: dict[Part, float]
    sizes: dict[Part, int]


def read_scores(paths: Iterable[Path]) -> list[Scores]:
    """Read results of `fovea evaluate compositionality … --output`, by judge in order of appearance.

    Raises Refused for another file, and for results that have no type of pairs.
    """
    results: list[dict[str, Any]] = []
    for path in paths:
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(loaded, list):
                raise TypeError("not a list")
            form_accuracies(loaded)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refused(f"{path} holds no results of an evaluation: {error!r}") from error
        results += loaded
    found = form_accuracies(results)
    if not any(one.accuracy for one in found):
        raise Refused(f"none of these results is of pairs: {', '.join(sorted({one['benchmark'] for one in results}))}")
    return found


def form_accuracies(results: Sequence[Mapping[str, Any]]) -> list[Scores]:
    """Compute each judge's accuracy by benchmark and form, weighted by the numbers of pairs of the form's types."""
    found: dict[str, Scores] = {}
    for one in results:
        own, sizes = found.setdefault(one["judge"], Scores(one["judge"], {}, {})), one["sizes"]
        for form, kinds in FORMS.items():
            tested = [kind for kind in kinds if kind in one["scores"]]
            if tested:
                right = sum(one["scores"][kind] * sizes[kind] for kind in tested)
                part, total = (one["benchmark"], form), sum(sizes[kind] for kind in tested)
                own.accuracy[part], own.sizes[part] = right / total, total
    return list(found.values())


def gains_table(scores: Sequence[Scores], control: str) -> Table:
    """Tell accuracies, and in brackets the difference to the control's; gains of more than MARKED_GAIN are bold.

    The last row has the number of pairs. Raises Refused if the control is not among the judges.
    """
    of_control = next((one.accuracy for one in scores if one.judge == control), None)
    if of_control is None:
        raise Refused(f"the control {control!r} is none of {', '.join(one.judge for one in scores)}")
    parts = list(dict.fromkeys(part for one in scores for part in one.accuracy))
    rows = []
    for one in scores:
        base = {} if one.judge == control else of_control
        rows.append((Cell(one.judge), *(_cell(one.accuracy.get(part), base.get(part)) for part in parts)))
    sizes = {part: size for one in scores for part, size in one.sizes.items()}
    rows.append((Cell("pairs"), *(Cell(f"{sizes[part]:,}") for part in parts)))
    header = ("\nModel", *(f"{benchmark}\n{form.upper()}" for benchmark, form in parts))
    return Table(f"Accuracy, and gains on {control}", header, tuple(rows))


def _cell(value: float | None, control: float | None) -> Cell:
    if value is None:
        return Cell(MISSING)
    if control is None:
        return Cell(f"{value:.1f}")
    gain = value - control
    return Cell(f"{value:.1f} ({gain:+.1f})", "best" if gain > MARKED_GAIN else "")
