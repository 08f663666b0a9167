"""Facts of generated scenes, captions that state them, what captions leave out, and captions made false by one change.

`Facts` describe both: those of a scene are complete, those of a caption omit what the caption does not say. Captions
are plain English that a tagger can parse: "two small red circles left of a large blue square on a striped gray
background". The facts of a false caption agree with no reading of the scene, so every hard negative made here is false
by construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

from services.jobs.colorshape import BACKGROUNDS, COLORS, COLUMNS, RELATIONS, ROWS, SHAPES, SIZES, TEXTURES

NUMBERS = ("", "a", "two", "three")  # by count
MAX_COUNT = 3
PLACES = tuple(
    column if row == "middle" and column == "center" else f"{row} {column}" for row in ROWS for column in COLUMNS
)
# Number of ways to word a caption; a caption of two groups has only the first two.
NUM_STYLES = 4

# Kinds of hard negatives in evaluation, by SugarCrepe's names; `replace_count` is the number of objects.
NegativeKind = Literal["swap_att", "swap_obj", "replace_att", "replace_obj", "replace_rel", "replace_count"]
NEGATIVE_KINDS: tuple[NegativeKind, ...] = get_args(NegativeKind)

Attribute = Literal["color", "shape", "background", "size", "texture", "count", "position"]
ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)

OPPOSITES = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}

# Share of captions in the small CLIP's own training that are bare phrases, so that every attribute gets its own place
# in the text space.
BARE_FRACTION = 0.35
# Share of the groups in captions for tuning that lack a colour, and equally many that lack a shape.
SKETCHED = 0.1

ChoiceT = TypeVar("ChoiceT")


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


def is_true(said: Facts, scene: Facts) -> bool:
    """Whether a caption's facts are true of a scene in either order of its groups; reversed, left of is right of."""
    if any(word not in (None, known) for word, known in _surroundings(said, scene)):
        return False
    if not said.groups:
        return True
    if len(said.groups) != len(scene.groups):
        return False
    if all(map(_agrees, said.groups, scene.groups)) and said.relation in (None, scene.relation):
        return True
    turned = scene.relation and OPPOSITES[scene.relation]
    return all(map(_agrees, said.groups, scene.groups[::-1])) and said.relation in (None, turned)


def falsify(said: Facts, kind: NegativeKind, dice: Sequence[float]) -> Facts | None:
    """Change one of a caption's facts; None if it does not state a fact of this kind.

    `dice` are four uniform numbers in 0..1. The replaced relation is the opposite one.
    """
    is_pair = len(said.groups) == 2
    which = int(dice[0] * len(said.groups)) if said.groups else 0
    if kind == "swap_att":
        return _swap_attribute(said, dice) if is_pair else None
    if kind == "swap_obj":
        if not is_pair or said.relation is None:
            return None
        return replace(said, groups=said.groups[::-1])
    if kind == "replace_rel":
        return replace(said, relation=OPPOSITES[said.relation]) if said.relation else None
    if kind == "replace_att":
        return _replace_attribute(said, which, dice)
    if not said.groups or (kind == "replace_obj" and said.groups[which].shape is None):
        return None
    group = said.groups[which]
    if kind == "replace_obj":
        return _with_group(said, which, replace(group, shape=_other(SHAPES, group.shape, dice[1])))
    return _with_group(said, which, replace(group, count=_other(range(1, MAX_COUNT + 1), group.count, dice[1])))


def forget(facts: Facts, dice: Sequence[float]) -> Facts:
    """Choose the facts of a caption for the small CLIP's own training: one group "and" the other, with random ones of
    their attributes. `dice` are eleven uniform numbers in 0..1."""
    if len(facts.groups) == 1 and dice[0] < BARE_FRACTION:
        attributes = [a for a in ATTRIBUTES if a != "position" or facts.place]
        return only(facts, attributes[int(dice[1] * len(attributes))])
    is_pair = len(facts.groups) == 2
    return replace(
        facts,
        groups=tuple(
            replace(
                group,
                size=group.size if dice[2 + i] < 0.4 else None,
                color=group.color if dice[4 + i] < 0.75 else None,
                shape=group.shape if dice[6 + i] < 0.8 else None,
            )
            for i, group in enumerate(facts.groups)
        ),
        relation=None,
        place=facts.place if dice[8] < 0.65 else None,
        texture=facts.texture if dice[9] < (0.2 if is_pair else 0.5) else None,
        background=facts.background if dice[10] < (0.3 if is_pair else 0.5) else None,
    )


def sketch(facts: Facts, dice: Sequence[float]) -> Facts:
    """State half as much as `detail` besides colours and shapes, and leave out some of these: with fewer words to swap,
    each is swapped more often. `dice` are six uniform numbers in 0..1."""
    said = detail(facts, [2 * draw for draw in dice])
    left_out = [min(int(draw / SKETCHED), 2) for draw in dice[4:6]]  # 0: the colour, 1: the shape, 2: nothing
    return replace(
        said,
        groups=tuple(
            replace(
                group, color=group.color if left_out[i] != 0 else None, shape=group.shape if left_out[i] != 1 else None
            )
            for i, group in enumerate(said.groups)
        ),
    )


def only(facts: Facts, attribute: Attribute) -> Facts:
    """State only one attribute of a scene with one group; a number and "object" replace the rest."""
    group = facts.groups[0]
    if attribute in ("texture", "background"):
        return Facts((), texture=facts.texture if attribute == "texture" else None,
                     background=facts.background if attribute == "background" else None)  # fmt: skip
    kept = Group(
        count=group.count,
        size=group.size if attribute == "size" else None,
        color=group.color if attribute == "color" else None,
        shape=group.shape if attribute == "shape" else None,
    )
    return Facts((kept,), place=facts.place if attribute == "position" else None)


def class_facts(attribute: Attribute) -> tuple[Facts, ...]:
    """The classes of an attribute's zero-shot task, as the facts of their prompts."""
    lone = Group(1, None, None, None)
    match attribute:
        case "color":
            return tuple(Facts((replace(lone, color=word),)) for word in COLORS)
        case "shape":
            return tuple(Facts((replace(lone, shape=word),)) for word in SHAPES)
        case "size":
            return tuple(Facts((replace(lone, size=word),)) for word in SIZES)
        case "count":
            return tuple(Facts((replace(lone, count=count),)) for count in range(1, MAX_COUNT + 1))
        case "position":
            return tuple(Facts((lone,), place=place) for place in PLACES)
        case "texture":
            return tuple(Facts((), texture=word) for word in TEXTURES)
        case "background":
            return tuple(Facts((), background=word) for word in BACKGROUNDS)


def scene_vocabulary() -> list[str]:
    """Texts that contain every word of the generator, for learning a vocabulary."""
    groups = [Group(count, None, None, shape) for count in (1, 2) for shape in (*SHAPES, None)]
    phrases = [noun_phrase(group) for group in groups]
    words = [*COLORS, *SIZES, *BACKGROUNDS, *TEXTURES, *RELATIONS, *PLACES, *NUMBERS, "an and there is"]
    sentences = [sentence(Facts((groups[0],), place=PLACES[0], texture="plain"), style) for style in range(NUM_STYLES)]
    return [*words, *phrases, *sentences]


def _surroundings(said: Facts, scene: Facts) -> list[tuple[str | None, str | None]]:
    return [(said.place, scene.place), (said.texture, scene.texture), (said.background, scene.background)]


def _agrees(said: Group, group: Group) -> bool:
    words = zip((said.size, said.color, said.shape), (group.size, group.color, group.shape), strict=True)
    return said.count == group.count and all(word in (None, known) for word, known in words)


def _with_group(said: Facts, which: int, group: Group) -> Facts:
    return replace(said, groups=tuple(group if i == which else other for i, other in enumerate(said.groups)))


def _other(choices: Sequence[ChoiceT], known: ChoiceT | None, dice: float) -> ChoiceT:
    others = [choice for choice in choices if choice != known]
    return others[int(dice * len(others))]


def _swap_attribute(said: Facts, dice: Sequence[float]) -> Facts | None:
    """Swap the colours, or the sizes, of the two groups."""
    first, second = said.groups
    choices = [
        (replace(first, **{name: getattr(second, name)}), replace(second, **{name: getattr(first, name)}))
        for name in ("color", "size")
        if None not in (getattr(first, name), getattr(second, name)) and getattr(first, name) != getattr(second, name)
    ]
    return replace(said, groups=choices[int(dice[0] * len(choices))]) if choices else None


def _replace_attribute(said: Facts, which: int, dice: Sequence[float]) -> Facts | None:
    changed: list[Facts] = []
    if said.groups:
        group = said.groups[which]
        if group.color:
            changed.append(_with_group(said, which, replace(group, color=_other(list(COLORS), group.color, dice[2]))))
        if group.size:
            changed.append(_with_group(said, which, replace(group, size=_other(SIZES, group.size, dice[2]))))
    if said.texture:
        changed.append(replace(said, texture=_other(TEXTURES, said.texture, dice[2])))
    if said.background:
        changed.append(replace(said, background=_other(list(BACKGROUNDS), said.background, dice[2])))
    return changed[int(dice[3] * len(changed))] if changed else None
