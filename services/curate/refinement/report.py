"""Reports of a refinement: tables, and histograms of the gaps before and after (Figures 4.1 and 4.4)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.curate.intervals import wilson
from services.curate.refinement.scores import BlindResult, Scored
from services.jobs.plots import Curve, Panel, draw
from services.jobs.tables import MISSING, Table

# Wilson's interval of 50 % of as many pairs is nearly 10 points on either side.
SCARCE = 100
# Bins of a histogram over −1..1; a bin in the middle holds the smallest gaps of both signs.
NUM_BINS = 41
NAMED_GAPS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def accuracy(result: BlindResult) -> float | None:
    """Compute the percentage of right choices; None without any."""
    return 100 * result.num_right / result.total if result.total else None


def accuracy_table(before: Sequence[BlindResult], after: Sequence[BlindResult]) -> Table:
    """Tell each model's accuracy by type before and after, and the ties among those that are kept."""
    rows = [
        (one.model, one.kind, f"{one.total:,}", _percent(one), f"{two.total:,}", _percent(two), str(two.num_ties))
        for one, two in zip(before, after, strict=True)
    ]
    header = ("Model", "Type", "before\npairs", "before\nblind %", "after\npairs", "after\nblind %", "after\nties")
    return Table.of_texts("Blind accuracy before and after refinement", header, rows, num_names=2)


def count_table(kinds: Sequence[str], kept: NDArray[np.int64]) -> Table:
    """Tell how many pairs of each type there were, and how many are kept (Table 4.2)."""
    names = np.asarray(kinds)
    of_type = [(kind, int((names == kind).sum()), int((names[kept] == kind).sum())) for kind in dict.fromkeys(kinds)]
    rows = [*of_type, ("all", len(kinds), len(kept))]
    told = [(kind, f"{n:,}", f"{k:,}", f"{100 * k / n:.1f}" if n else MISSING) for kind, n, k in rows]
    return Table.of_texts("Pairs by type", ("Type", "Before", "Kept", "Kept %"), told)


def scarce(before: Iterable[str], after: Iterable[str]) -> str | None:
    """Warn of the types, of those before, of which fewer than SCARCE pairs are left; None if there are none."""
    left = Counter(after)
    few = [f"{kind} ({left[kind]})" for kind in dict.fromkeys(before) if left[kind] < SCARCE]
    if not few:
        return None
    return (
        f"Warning: few pairs are left of {', '.join(few)}. An accuracy on fewer than {SCARCE} is uncertain by about 10"
        " points or more: begin with more captions, or leave these types out."
    )


def histograms(scored: Sequence[Scored], kept: NDArray[np.int64]) -> str:
    """Draw the gaps of each model as SVG: the share of all pairs in each bin, before and after."""
    edges = np.linspace(-1, 1, NUM_BINS + 1)
    middles = ((edges[:-1] + edges[1:]) / 2).round(3).tolist()
    # only a few bins are named, since one name for each would not fit
    names = dict.fromkeys(middles, "")
    names |= {min(middles, key=lambda middle: abs(middle - gap)): f"{gap:g}" for gap in NAMED_GAPS}
    panels = []
    for one in scored:
        curves = tuple(
            Curve(f"{name} ({len(gaps):,})", tuple(zip(middles, _shares(gaps, edges), strict=True)), mark_radius=1.5)
            for name, gaps in (("before", one.gaps), ("after", one.gaps[kept]))
        )
        panels.append(Panel(one.model, "gap: positive − negative", "% of pairs", curves, x_names=names))
    return draw(panels)


def report(before: Sequence[BlindResult], after: Sequence[BlindResult], settings: dict[str, Any]) -> dict[str, Any]:
    """Make the report as JSON: settings, and for each model and type the choices before and after, with intervals."""
    told = [
        {"model": one.model, "kind": one.kind, "before": _told(one), "after": _told(two)}
        for one, two in zip(before, after, strict=True)
    ]
    return {**settings, "results": told}


def _told(result: BlindResult) -> dict[str, Any]:
    counts = {"pairs": result.total, "right": result.num_right, "wrong": result.num_wrong, "ties": result.num_ties}
    low, high = wilson(result.num_right, result.total)
    return {**counts, "accuracy": accuracy(result), "interval": [100 * low, 100 * high]}


def _percent(result: BlindResult) -> str:
    found = accuracy(result)
    return MISSING if found is None else f"{found:.1f}"


def _shares(gaps: NDArray[np.float64], edges: NDArray[np.float64]) -> list[float]:
    counts, _ = np.histogram(gaps, edges)
    return [float(count) for count in 100 * counts / max(1, len(gaps))]
