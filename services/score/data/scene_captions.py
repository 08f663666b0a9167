"""Facts of generated scenes, and captions that state them.

`Facts` describe both: those of a scene are complete, those of a caption omit what the caption does not say. Captions
are plain English that a tagger can parse: "two small red circles left of a large blue square on a striped gray
background".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.jobs.colorshape import COLUMNS, ROWS

NUMBERS = ("", "a", "two", "three")  # by count
MAX_COUNT = 3
PLACES = tuple(
    column if row == "middle" and column == "center" else f"{row} {column}" for row in ROWS for column in COLUMNS
)
# Number of ways to word a caption; a caption of two groups has only the first two.
NUM_STYLES = 4


@dataclass(frozen=True)
class Group:
    """A group of equal objects; None for attributes that a caption does not mention."""

    count: int
    size: str | None
    color: str | None
    shape: str | None


@dataclass(frozen=True)
class Facts:
    """One group of objects at a place, or two groups of which the first is `relation` the second, and the background.

    Without a group, a caption is only about the background; two groups without a relation are joined by "and".
    """

    groups: tuple[Group, ...]
    relation: str | None = None
    place: str | None = None
    texture: str | None = None
    background: str | None = None


def sentence(said: Facts, style: int = 0) -> str:
    """Write the caption of these facts, in one of NUM_STYLES wordings."""
    behind = " ".join(word for word in (said.texture, said.background) if word)
    behind = f"{behind} background" if behind else ""
    subject = f" {said.relation or 'and'} ".join(noun_phrase(group) for group in said.groups)
    if not subject:
        return f"a {behind}"
    if style == 1:
        return _join(f"a picture of {subject}", said.place and f"in the {said.place}", behind and f"with a {behind}")
    if len(said.groups) == 1 and style == 2:
        return ", ".join(part for part in (subject.removeprefix("a "), said.place, behind) if part)
    if len(said.groups) == 1 and style == 3:
        return _join(f"{behind} with" if behind else "there is", subject, said.place and f"in the {said.place}")
    return _join(subject, said.place and f"at the {said.place}", behind and f"on a {behind}")


def noun_phrase(group: Group) -> str:
    """Write a group as a noun phrase, such as "two small red circles"."""
    noun = group.shape or "object"
    if group.count > 1:
        noun += "es" if noun == "cross" else "s"
    words = [word for word in (group.size, group.color, noun) if word]
    number = NUMBERS[group.count]
    return " ".join(["an" if number == "a" and words[0][0] in "aeiou" else number, *words])


def detail(facts: Facts, dice: Sequence[float]) -> Facts:
    """Choose the facts of a caption for tuning and evaluation: colours, shapes, numbers and the relation always, the
    rest at random. `dice` are four uniform numbers in 0..1."""
    says_size = dice[0] < 0.4
    return replace(
        facts,
        groups=tuple(replace(group, size=group.size if says_size else None) for group in facts.groups),
        place=facts.place if dice[1] < 0.6 else None,
        texture=facts.texture if dice[2] < 0.3 else None,
        background=facts.background if dice[3] < 0.4 else None,
    )


def _join(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)
