"""A data set's card: what it holds, how it was made, what it is for and what it can't show."""

from collections import Counter
from collections.abc import Mapping, Sequence

from services.jobs.sugarcrepe import FORMS, Pair
from services.jobs.tables import Table

FIELDS = (
    ("filename", "Name of the image"),
    ("caption", "Caption that is true of the image"),
    ("negative_caption", "Caption that differs from it in little and is false of the image"),
)
NUM_EXAMPLES = 2


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
