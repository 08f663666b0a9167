"""Reports of refinements and audits: tables, histograms of gaps (Figures 4.1 and 4.4), and a data card."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.curate.refinement.scores import Attack
from services.jobs.plots import Curve, Panel, draw
from services.jobs.sugarcrepe import FORMS, Pair
from services.jobs.tables import MISSING, Table

# Wilson's interval of 50 % of as many pairs is nearly 10 points on either side.
SCARCE = 100
# Bins of a histogram over −1..1; a bin in the middle holds the smallest gaps of both signs.
NUM_BINS = 41
NAMED_GAPS = (-1.0, -0.5, 0.0, 0.5, 1.0)
# Of the data card.
FIELDS = (
    ("filename", "Name of the image"),
    ("caption", "Caption that is true of the image"),
    ("negative_caption", "Caption that differs from it in little and is false of the image"),
)
NUM_EXAMPLES = 2


def accuracy_table(before: Sequence[Attack], after: Sequence[Attack]) -> Table:
    """Tell each model's accuracy by type before and after, and the ties among those that are kept."""
    rows = [
        (one.attacker, one.task, f"{one.total:,}", _percent(one), f"{two.total:,}", _percent(two), str(two.num_ties))
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


def histograms(gaps: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> str:
    """Draw gaps by model and name of a curve as SVG: the share of all pairs in each bin."""
    edges = np.linspace(-1, 1, NUM_BINS + 1)
    middles = ((edges[:-1] + edges[1:]) / 2).round(3).tolist()
    # only a few bins are named, since one name for each would not fit
    names = dict.fromkeys(middles, "")
    names |= {min(middles, key=lambda middle: abs(middle - gap)): f"{gap:g}" for gap in NAMED_GAPS}
    panels = []
    for model, of_model in gaps.items():
        curves = tuple(
            Curve(f"{name} ({len(own):,})", tuple(zip(middles, _shares(own, edges), strict=True)), mark_radius=1.5)
            for name, own in of_model.items()
        )
        panels.append(Panel(model, "gap: positive − negative", "% of pairs", curves, x_names=names))
    return draw(panels)


def report(before: Sequence[Attack], after: Sequence[Attack], settings: dict[str, Any]) -> dict[str, Any]:
    """Make the report as JSON: settings, and for each model and type the choices before and after, with intervals."""
    told = [
        {"model": one.attacker, "kind": one.task, "before": _told(one), "after": _told(two)}
        for one, two in zip(before, after, strict=True)
    ]
    return {**settings, "results": told}


def _told(result: Attack) -> dict[str, Any]:
    counts = {"pairs": result.total, "right": result.num_right, "wrong": result.num_wrong, "ties": result.num_ties}
    accuracy = 100 * result.accuracy if result.total else None
    return {**counts, "accuracy": accuracy, "interval": [100 * edge for edge in result.interval]}


def _percent(result: Attack) -> str:
    return f"{100 * result.accuracy:.1f}" if result.total else MISSING


def _shares(gaps: NDArray[np.float64], edges: NDArray[np.float64]) -> list[float]:
    counts, _ = np.histogram(gaps, edges)
    return [float(count) for count in 100 * counts / max(1, len(gaps))]


def data_card(
    name: str, pairs: Sequence[Pair], tables: Sequence[Table], *, models: Mapping[str, str], licence: str | None
) -> str:
    """Write the card of a refined data set as Markdown, with the sections of SugarCrepe's own."""
    origins = Counter(pair.made_by or "not stated" for pair in pairs)
    balanced = ", ".join(f"{title} (`{reference}`)" for title, reference in models.items())
    return "\n".join(
        [
            f"# Data card: {name}",
            "",
            "## Overview",
            "",
            f"{len(pairs):,} pairs of captions of {len({pair.filename for pair in pairs}):,} images.",
            "A model is given an image and two captions that differ in little, and has to choose the true one.",
            "A guess is right for 50 %.",
            "",
            *(f"- {title}" for title in _forms(pairs)),
            "",
            "## Fields",
            "",
            Table.of_texts("", ("Field", "Content"), FIELDS, num_names=2).to_markdown(),
            "## Examples",
            "",
            *_examples(pairs),
            "",
            "## Origin",
            "",
            *(f"- {origin}: {number:,} pairs" for origin, number in origins.most_common()),
            "",
            "## Refinement",
            "",
            "Within each type, pairs were dropped until each of these models of texts alone prefers the true caption",
            f"in as many pairs as the false one: {balanced}. A pair on which a model ties is counted as wrong.",
            "",
            *(table.to_markdown() for table in tables),
            "## Use",
            "",
            "For evaluating models of images and texts. What the length of captions and other models of texts give",
            "away is not balanced: measure it with `fovea curate audit`. Whether a negative caption is false of its",
            "image was not examined here.",
            "",
            "## Licence",
            "",
            licence or "Not stated.",
        ]
    )


def _forms(pairs: Sequence[Pair]) -> list[str]:
    counts = Counter(pair.kind for pair in pairs)
    return [
        f"{form}: " + ", ".join(f"{kind} {counts[kind]:,}" for kind in kinds)
        for form, kinds in FORMS.items()
        if any(counts[kind] for kind in kinds)
    ]


def _examples(pairs: Sequence[Pair]) -> list[str]:
    shown = [
        pair
        for kind in dict.fromkeys(pair.kind for pair in pairs)
        for pair in [one for one in pairs if one.kind == kind][:NUM_EXAMPLES]
    ]
    rows = [(pair.kind, pair.caption, pair.negative_caption) for pair in shown]
    return [Table.of_texts("", ("Type", "True", "False"), rows, num_names=3).to_markdown().rstrip()]
