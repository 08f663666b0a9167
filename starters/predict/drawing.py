"""Functions that draw generated data: sentences with alternatives, and distinct rows.

In a template, `[a|b|c]` is one of the alternatives, all equally likely, and `{name}` is a named value. An alternative
may contain names, but no further alternatives.
"""

import random
import re
from collections.abc import Callable, Mapping

from services.predict.data.rows import Row

_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")


def write(template: str, named: Mapping[str, object], generator: random.Random) -> str:
    """Fill in a template, choosing every alternative at random. Raises KeyError for a name that is not given."""
    chosen = _ALTERNATIVES.sub(lambda found: generator.choice(found[1].split("|")), template)
    return chosen.format_map(named)


def capitalised(words: str) -> str:
    """Capitalise the first letter of a text."""
    return words[:1].upper() + words[1:]


def draw_distinct(
    draw: Callable[[random.Random], Row], num_rows: int, generator: random.Random, taken: set[str]
) -> list[Row]:
    """Draw `num_rows` rows whose inputs differ from each other and from those in `taken`, and add them to `taken`."""
    rows: list[Row] = []
    while len(rows) < num_rows:
        row = draw(generator)
        if row.input not in taken:
            taken.add(row.input)
            rows.append(row)
    return rows
