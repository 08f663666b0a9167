"""Examples for the trainings: drawn pictures with captions, and with (instruction, answer) pairs.

Drawn batch by batch from (seed, step) alone, so that any step can be reproduced on any machine. ColorShape's
instructions (Table D.3) are not among the training wordings.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from services.embed.data.triplets import TripletBatch
from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS, UNSEEN_CONDITIONS
from services.jobs.colorshape import RELATIONS
from starters import merges
from starters.embed import wordings
from starters.embed.condition_words import ENGLISH
from starters.embed.drawn_pictures import Drawn, draw_batch
from starters.embed.facts import WORDS, answer, describe, phrases, sentence

# Conditions on an image, with the attributes that the answer must name.
CONDITIONS: dict[str, tuple[str, ...]] = {
    "color": ("color",),
    "shape": ("shape",),
    "both": ("color", "shape"),
    "size": ("size",),
    "background": ("background",),
    "position": ("position",),
    "size and shape": ("size", "shape"),
    "size and background": ("size", "background"),
    "size and position": ("size", "position"),
    "color and background": ("color", "background"),
    "shape and background": ("shape", "background"),
    "color and position": ("color", "position"),
    "shape and position": ("shape", "position"),
    "position and background": ("position", "background"),
    "texture": ("texture",),
    "object texture": ("object texture",),
    "size and color": ("size", "color"),
}
# How much more often a condition is asked than others.
WEIGHTS = {"color": 3.0, "shape": 4.0, "both": 2.0, "texture": 4.0, "object texture": 1.5, "position": 1.5}

# Attributes that a wording can be about, of things and of the background alike.
FAMILIES = tuple(ENGLISH)
ANSWER_CAPTION_FRACTION = 0.3
PAIR_SHARE = 0.25
# Tuning asks more about wider pictures: ColorShape is easier.
TUNING_PICTURE_SHARE = 0.75
WORDINGS_PER_CONDITION = 4
NUM_UNRELATED = 16
NUM_DICE = 9


@dataclass(frozen=True)
class CaptionBatch:
    """Pictures and a caption of each."""

    drawn: Drawn
    captions: list[str]


class Row(NamedTuple):
    """An image's place, the instruction about it, None for no condition, and the answer.

    `families` are the attributes that the instruction is about: none for one that asks for nothing in the picture, and
    None where that is not known.
    """

    image: int
    instruction: str | None
    answer: str
    families: tuple[str, ...] | None = None


@dataclass(frozen=True)
class QuestionBatch(TripletBatch):
    """Triplets, and the attributes that each instruction is about."""

    families: list[tuple[str, ...] | None]


@dataclass(frozen=True)
class Asked:
    """Questions of a tuning: `num_questions` about what each picture shows.

    With `has_unconditional` each picture has two additional rows: one without instruction, answered by a full caption,
    so that the embedding without a condition remains a CLIP embedding, and one under an instruction that is about
    nothing in the picture, which must not change that embedding. `unseen` conditions are never asked. `picture_share`
    of the pictures are wider than ColorShape.
    """

    num_questions: int = 3
    has_unconditional: bool = True
    unseen: tuple[str, ...] = UNSEEN_CONDITIONS
    picture_share: float = TUNING_PICTURE_SHARE


def asked_conditions(unseen: Sequence[str]) -> list[str]:
    """List the conditions that are asked if some, and those with one of their attributes alone, are not.

    Raises ValueError for an unknown condition.
    """
    for name in unseen:
        if name not in CONDITIONS:
            raise ValueError(f"{name!r} is not one of the conditions {', '.join(CONDITIONS)}")
    attributes = {CONDITIONS[name][0] for name in unseen if len(CONDITIONS[name]) == 1}
    families = {_family(attribute) for attribute in attributes}
    return [
        name
        for name, named in CONDITIONS.items()
        if name not in unseen and not families & {_family(attribute) for attribute in named}
    ]


@functools.cache
def all_answers(unseen: tuple[str, ...] = UNSEEN_CONDITIONS) -> tuple[str, ...]:
    """List every answer that the conditions asked in tuning can have, without held-out combinations."""
    return tuple(text for condition in asked_conditions(unseen) for text in phrases(CONDITIONS[condition]))


def draw_wording(condition: str, random: Random, *, held_out: bool = False) -> str:
    """Draw a wording of a condition, of tuning or held out."""
    attributes = CONDITIONS[condition]
    owner = "background" if condition == "texture" else None
    values = WORDS[attributes[0]] if len(attributes) == 1 else ()
    families = [_family(attribute) for attribute in attributes]
    return wordings.draw_wording(families, values, random, owner=owner, held_out=held_out)


def caption_batch(seed: int, step: int, size: int, side: int) -> CaptionBatch:
    """Draw step `step` of a seed's endless caption data: pictures of `side` pixels."""
    drawn = draw_batch(seed, step, size, side, pair_share=PAIR_SHARE)
    random = _random(seed, step)
    captions = []
    for facts in drawn.facts:
        attributes = random.choice(list(CONDITIONS.values()))
        alone = answer(facts, attributes) if len(facts.things) == 1 else None
        is_alone = random.random() < ANSWER_CAPTION_FRACTION
        captions.append(alone if alone and is_alone else describe(facts, _dice(random)))
    return CaptionBatch(drawn, captions)


def triplet_batch(seed: int, step: int, size: int, side: int, asked: Asked) -> tuple[Drawn, QuestionBatch]:
    """Draw step `step` of the endless tuning data: pictures of one thing, and questions about each."""
    drawn = draw_batch(seed, step, size, side, picture_share=asked.picture_share)
    random = _random(seed, step)
    conditions = asked_conditions(asked.unseen)
    worded = {name: [draw_wording(name, random) for _ in range(WORDINGS_PER_CONDITION)] for name in conditions}
    unrelated = [wordings.draw_unrelated(random) for _ in range(NUM_UNRELATED)]
    rows: list[Row] = []
    for i, facts in enumerate(drawn.facts):
        # the smallest of exponential times: a weighted draw without replacement
        order = sorted(conditions, key=lambda name: random.expovariate(WEIGHTS.get(name, 1.0)))
        told = ((name, said) for name in order if (said := answer(facts, CONDITIONS[name])) is not None)
        for (name, said), _ in zip(told, range(asked.num_questions), strict=False):
            families = tuple(_family(attribute) for attribute in CONDITIONS[name])
            families += ("background",) if name == "texture" else ()
            rows.append(Row(i, random.choice(worded[name]), said, families))
        if asked.has_unconditional:
            rows.append(Row(i, None, describe(facts, _dice(random))))
            rows.append(Row(i, random.choice(unrelated), "", ()))
    return drawn, QuestionBatch(
        torch.tensor([row.image for row in rows]),
        [row.instruction for row in rows],
        [row.answer for row in rows],
        [row.families for row in rows],
    )


@dataclass(frozen=True)
class DrawnTriplets:
    """The pictures of `side` pixels and the triplets of each step, for a trainer of triplets."""

    seed: int
    num_images: int
    side: int
    asked: Asked

    def __call__(self, step: int) -> tuple[Tensor, QuestionBatch]:
        drawn, triplets = triplet_batch(self.seed, step, self.num_images, self.side, self.asked)
        return drawn.pixels, triplets


def instruction_vocabulary() -> list[str]:
    """List texts that contain every word of the generator, for learning a vocabulary."""
    words = [word for family in WORDS.values() for word in family]
    sentences = [sentence("a red circle", "top left", "white background", i / 4) for i in range(4)]
    others = ["and its object in the image of a picture"]
    return [*words, *RELATIONS, *sentences, *wordings.vocabulary(), *TEST_INSTRUCTIONS.values(), *others]


def learn_merges() -> list[tuple[str, str]]:
    """Learn byte-pair merges that make one token of each word of the generator."""
    return merges.learn_merges(instruction_vocabulary())


def _family(attribute: str) -> str:
    return attribute.removeprefix("object ")


def _dice(random: Random) -> list[float]:
    return [random.random() for _ in range(NUM_DICE)]


def _random(seed: int, step: int) -> Random:
    # a multiplier larger than any number of steps keeps the random streams of two seeds separate
    return Random(seed * 1_000_000_007 + step)
