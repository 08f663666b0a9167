"""Labels of parts of a text, and the probes that read them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*|[①-⑳]")


@dataclass(frozen=True)
class Probe:
    """A linear map from an encoder's states after a layer, counted from 1, to classes.

    A student with fewer layers has it after its last one.
    """

    name: str
    layer: int
    classes: tuple[str, ...]


class WordLabel(NamedTuple):
    """The class, for a probe, of the tokens within a part of a text; at the text's length, of the end of sequence."""

    start: int
    end: int
    probe: str
    value: str


class Word(NamedTuple):
    """A word of a text, in lower case, and its place."""

    text: str
    start: int
    end: int


def words_of(text: str, start: int = 0, end: int | None = None) -> Iterator[Word]:
    """Yield the words of a part of a text, and number slots."""
    for found in _WORD.finditer(text, start, len(text) if end is None else end):
        yield Word(found[0].lower(), found.start(), found.end())
