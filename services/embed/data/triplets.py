"""Examples for the two training jobs: image and caption, and (image, instruction, answer) triplets.

Two sources: ColorShape, generated batch by batch from (seed, step) alone, so that any step can be reproduced on any
machine, and visual instruction data in LLaVA's JSON format from disk. The instructions used by `evaluate.py` are the
dissertation's (Table D.3) and are not in any list of training wordings.
"""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from services.jobs.colorshape import (
    BACKGROUNDS,
    COLORS,
    COLUMNS,
    RELATIONS,
    ROWS,
    SHAPES,
    SIZES,
    TEXTURES,
    Scenes,
    is_held_out,
    sample_scenes,
)
from services.nn import clip_tokenizer

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
    "size and color": ("size", "color"),
}
# Never asked in tuning: a whole attribute, and a combination of two attributes that are asked alone and with others.
UNSEEN_CONDITIONS = ("texture", "size and color")

# Asked in evaluation, in the form of Table D.3; no training wording begins with "What is the" or ends in "the image".
TEST_INSTRUCTIONS = {
    "color": "What is the color of the object in the image?",
    "shape": "What is the shape of the object in the image?",
    "both": "What is the color and shape of the object in the image?",
    "size": "What is the size of the object in the image?",
    "background": "What is the color of the background in the image?",
    "position": "What is the position of the object in the image?",
    "texture": "What is the texture of the background in the image?",
    "size and color": "What is the size and color of the object in the image?",
}
# Wordings of an instruction for an attribute of an object, or of its background.
OBJECT_NAMES = ("object", "shape", "thing")
ATTRIBUTE_NAMES = {
    "color": ("color",),
    "shape": ("shape", "geometric shape"),
    "size": ("size",),
    "position": ("position", "place"),
    "background": ("background", "background color", "color of the background", "color behind the object"),
}
PATTERNS = (
    "Name the {0}.",
    "Name the {0} in this picture.",
    "Focus on the {0}.",
    "Focus on the {0} in the picture.",
    "Tell me the {0}.",
    "Tell me the {0} in the picture.",
    "Which {0}?",
    "Which {0} is it?",
    "the {0}",
    "{0}",
)
QUESTIONS = {
    "color": (
        "Which color does the object have?",
        "Is the object red, green, blue or another color?",
        "What color is it?",
    ),
    "shape": (
        "Which shape does the object have?",
        "Is the object a circle, a square, a star or something else?",
        "What shape is it?",
    ),
    "both": (
        "Which color and shape does the object have?",
        "Is the object a red circle, a blue square or something else?",
        "What color and what shape is it?",
    ),
    "size": ("How big is the object?", "Is the object small or large?", "Tell me how large this thing is."),
    "background": (
        "Which color does the background have?",
        "Is the background white, gray or another color?",
        "What color is the background?",
    ),
    "position": (
        "Where is the object?",
        "Is the object at the top left, at the bottom right or somewhere else?",
        "In which part of the picture is it?",
    ),
}

# Probability that a caption mentions an attribute: attributes that captions rarely mention are not separated in the
# text space, and then no condition can retrieve them.
MENTION_PROBABILITY = {"color": 0.8, "shape": 0.85, "size": 0.5, "background": 0.5, "texture": 0.5, "position": 0.5}
ANSWER_CAPTION_FRACTION = 0.3
PAIR_FRACTION = 0.35


@dataclass(frozen=True)
class CaptionBatch:
    """Scenes and a caption of each."""

    scenes: Scenes
    captions: list[str]


@dataclass(frozen=True)
class TripletBatch:
    """R rows over B images: `image_index` (R,) points into the images; an instruction of None means no condition."""

    image_index: Tensor
    instructions: list[str | None]
    answers: list[str]


def answer(scenes: Scenes, index: int, condition: str) -> str:
    """Return the canonical answer for a scene with one object, for example "red" or "small object"."""
    words = {
        "color": _word(COLORS, scenes.color[index, 0]),
        "shape": SHAPES[int(scenes.shape[index, 0])],
        "size": SIZES[int(scenes.size[index, 0])],
        "background": _word(BACKGROUNDS, scenes.background[index]),
        "position": _place(int(scenes.cell[index])),
        "texture": TEXTURES[int(scenes.texture[index])],
    }
    return _phrase({attribute: words[attribute] for attribute in CONDITIONS[condition]})


@functools.cache
def all_answers() -> tuple[str, ...]:
    """List every answer that the conditions asked in tuning can have, without held-out combinations."""
    words: dict[str, Sequence[str]] = {
        "color": list(COLORS),
        "shape": SHAPES,
        "size": SIZES,
        "background": list(BACKGROUNDS),
        "position": [_place(cell) for cell in range(9)],
    }
    answers: list[str] = []
    for condition, attributes in CONDITIONS.items():
        if condition in UNSEEN_CONDITIONS:
            continue
        for combination in itertools.product(*(words[attribute] for attribute in attributes)):
            said = dict(zip(attributes, combination, strict=True))
            if condition == "both" and _is_held_out(said["color"], said["shape"]):
                continue
            answers.append(_phrase(said))
    return tuple(answers)


@functools.cache
def wordings(condition: str) -> tuple[str, ...]:
    """List every wording of a condition in tuning."""
    asked = list(QUESTIONS.get(condition, ()))
    for attributes in itertools.permutations(CONDITIONS[condition]):
        # "the background and the size of the object": the owner belongs to the last attribute
        owners = ["", *(f" of the {owner}" for owner in OBJECT_NAMES)] if attributes[-1] != "background" else [""]
        for names in itertools.product(*(ATTRIBUTE_NAMES[attribute] for attribute in attributes)):
            asked += [pattern.format(" and ".join(names) + owner) for owner in owners for pattern in PATTERNS]
    return tuple(asked)


def caption_batch(seed: int, step: int, num_scenes: int) -> CaptionBatch:
    """Generate step `step` of a seed's endless caption data."""
    generator = _generator(seed, step)
    scenes = sample_scenes(num_scenes, generator, pair_fraction=PAIR_FRACTION)
    dice = torch.rand(num_scenes, 12, generator=generator).tolist()
    return CaptionBatch(scenes, [describe(scenes, i, dice[i]) for i in range(num_scenes)])


def triplet_batch(
    seed: int, step: int, num_scenes: int, *, num_questions: int = 3, has_unconditional: bool = True
) -> tuple[Scenes, TripletBatch]:
    """Generate step `step` of the endless tuning data: `num_questions` questions about each of `num_scenes` scenes.

    With `has_unconditional` each scene has an additional row without instruction, answered by a full caption, so that
    the embedding without a condition remains a CLIP embedding.
    """
    generator = _generator(seed, step)
    scenes = sample_scenes(num_scenes, generator)
    asked = [condition for condition in CONDITIONS if condition not in UNSEEN_CONDITIONS]
    order = torch.rand(num_scenes, len(asked), generator=generator).argsort(dim=1)[:, :num_questions].tolist()
    wording = torch.randint(1 << 30, (num_scenes, num_questions), generator=generator).tolist()
    dice = torch.rand(num_scenes, 12, generator=generator).tolist()
    rows: list[tuple[int, str | None, str]] = []
    for i in range(num_scenes):
        for question, draw in zip(order[i], wording[i], strict=True):
            condition = asked[question]
            ways = wordings(condition)
            rows.append((i, ways[draw % len(ways)], answer(scenes, i, condition)))
        if has_unconditional:
            rows.append((i, None, describe(scenes, i, dice[i])))
    return scenes, _triplets(rows)


def describe(scenes: Scenes, index: int, dice: Sequence[float]) -> str:
    """Write a caption: one or two objects with some of their attributes left out, or a bare answer.

    `dice` are twelve uniform numbers in 0..1 that determine content and wording.
    """
    if int(scenes.num_objects[index]) == 2:
        return _describe_pair(scenes, index, dice)
    if dice[0] < ANSWER_CAPTION_FRACTION:
        choices = list(CONDITIONS)
        return answer(scenes, index, choices[int(dice[1] * len(choices))])
    said = {name: dice[2 + i] < p for i, (name, p) in enumerate(MENTION_PROBABILITY.items())}
    words = [
        SIZES[int(scenes.size[index, 0])] if said["size"] else "",
        _word(COLORS, scenes.color[index, 0]) if said["color"] else "",
        SHAPES[int(scenes.shape[index, 0])] if said["shape"] else "object",
    ]
    subject = " ".join(word for word in words if word)
    background = [
        TEXTURES[int(scenes.texture[index])] if said["texture"] else "",
        _word(BACKGROUNDS, scenes.background[index]) if said["background"] else "",
    ]
    behind = " ".join(word for word in background if word)
    where = _place(int(scenes.cell[index])) if said["position"] else ""
    return _sentence(subject, where, f"{behind} background" if behind else "", dice[8])


def instruction_vocabulary() -> list[str]:
    """List texts that contain every word of the generator, for learning a vocabulary."""
    words = [*COLORS, *SHAPES, *SIZES, *BACKGROUNDS, *TEXTURES, *RELATIONS, *(_place(cell) for cell in range(9))]
    sentences = [_sentence("a red circle", "top left", "white background", i / 4) for i in range(4)]
    questions = [text for condition in CONDITIONS if condition not in UNSEEN_CONDITIONS for text in wordings(condition)]
    return [*words, *sentences, *questions, *TEST_INSTRUCTIONS.values(), "and its object in the image of a picture"]


def learn_merges() -> list[tuple[str, str]]:
    """Learn byte-pair merges that make one token of each word of the generator."""
    return clip_tokenizer.learn_merges(instruction_vocabulary())


def llava_triplets(records: Sequence[dict[str, object]]) -> tuple[list[str], TripletBatch]:
    """Convert conversations in LLaVA's format → their image files and one row for each human turn with its answer.

    A record is `{"image": file, "conversations": [{"from": "human"|"gpt", "value": text}, …]}`. Turns of one
    conversation become rows with the same image: hard negatives of one another. Raises ValueError, naming the
    record, for an answer without a question before it.
    """
    images: list[str] = []
    rows: list[tuple[int, str | None, str]] = []
    for record in records:
        question: str | None = None
        for turn in record["conversations"]:  # type: ignore[attr-defined]
            text = turn["value"].replace("<image>", "").strip()
            if turn["from"] == "human":
                question = text
            elif question is None:
                raise ValueError(f"record {record.get('id')!r}: an answer without a question")
            else:
                rows.append((len(images), question, text))
                question = None
        images.append(str(record["image"]))
    return images, _triplets(rows)


class LlavaData:
    """Visual instruction data on disk: a JSON list of conversations and the folder of its images.

    Records without an image are left out. Raises OSError or ValueError if the file is not such a list.
    """

    def __init__(self, path: Path, image_folder: Path) -> None:
        records = json.loads(path.read_text())
        if not isinstance(records, list):
            raise ValueError(f"{path}: expected a JSON list of conversations")
        self.records = [record for record in records if "image" in record]
        self.image_folder = image_folder

    def batch(self, seed: int, step: int, num_images: int) -> tuple[list[Path], TripletBatch]:
        """Return step `step` of endless shuffled epochs; the last batch of an epoch continues into the next one."""
        picked: list[dict[str, object]] = []
        start = step * num_images
        while len(picked) < num_images:
            epoch, offset = divmod(start + len(picked), len(self.records))
            order = torch.randperm(len(self.records), generator=_generator(seed, epoch))
            picked += [self.records[i] for i in order[offset : offset + num_images - len(picked)].tolist()]
        images, triplets = llava_triplets(picked)
        return [self.image_folder / image for image in images], triplets


def _triplets(rows: Sequence[tuple[int, str | None, str]]) -> TripletBatch:
    index, instructions, answers = zip(*rows, strict=True)
    return TripletBatch(torch.tensor(index), list(instructions), list(answers))


def _generator(seed: int, step: int) -> torch.Generator:
    # a multiplier larger than any number of steps keeps the random streams of two seeds separate
    return torch.Generator().manual_seed(seed * 1_000_000_007 + step)


def _word(names: dict[str, tuple[int, int, int]], index: Tensor) -> str:
    return list(names)[int(index)]


def _is_held_out(color: str, shape: str) -> bool:
    return bool(is_held_out(torch.tensor(list(COLORS).index(color)), torch.tensor(SHAPES.index(shape))))


def _phrase(words: Mapping[str, str]) -> str:
    """Return the shortest text for these attributes, for example "red circle" or "red object at the top left"."""
    if len(words) == 1 and (alone := words.get("color") or words.get("shape") or words.get("position")):
        return alone
    parts = []
    if "size" in words or "color" in words or "shape" in words:
        subject = (words.get("size"), words.get("color"), words.get("shape", "object"))
        parts.append(" ".join(word for word in subject if word))
    if "position" in words:
        parts.append(f"at the {words['position']}")
    behind = " ".join(word for word in (words.get("texture"), words.get("background")) if word)
    if behind:
        parts.append(f"on a {behind} background" if parts else f"{behind} background")
    return " ".join(parts)


def _place(cell: int) -> str:
    row, column = ROWS[cell // 3], COLUMNS[cell % 3]
    return column if row == "middle" and column == "center" else f"{row} {column}"


def _describe_pair(scenes: Scenes, index: int, dice: Sequence[float]) -> str:
    objects = []
    for slot in range(2):
        color = f"{_word(COLORS, scenes.color[index, slot])} " if dice[2 + slot] < 0.85 else ""
        shape = SHAPES[int(scenes.shape[index, slot])] if dice[4 + slot] < 0.85 else "object"
        objects.append(f"a {color}{shape}")
    relation = RELATIONS[int(scenes.relation[index])] if dice[6] < 0.65 else "and"
    behind = f" on a {_word(BACKGROUNDS, scenes.background[index])} background" if dice[7] < 0.25 else ""
    return f"{objects[0]} {relation} {objects[1]}{behind}"


def _sentence(subject: str, where: str, behind: str, draw: float) -> str:
    if draw < 0.25:
        parts = [f"a {subject}", f"at the {where}" if where else "", f"on a {behind}" if behind else ""]
        return " ".join(part for part in parts if part)
    if draw < 0.5:
        parts = [f"a picture of a {subject}", f"in the {where}" if where else "", f"with a {behind}" if behind else ""]
        return " ".join(part for part in parts if part)
    if draw < 0.75:
        return ", ".join(part for part in (subject, where, behind) if part)
    parts = [f"{behind} with" if behind else "there is", f"a {subject}", f"in the {where}" if where else ""]
    return " ".join(part for part in parts if part)
