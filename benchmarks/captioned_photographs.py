"""Photographs with realistic captions, in webdataset shards."""

import io
import random
import tarfile
from pathlib import Path

from benchmarks.photographs import Photographs

COLORS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey", "pink", "purple")
MATERIALS = ("wooden", "metal", "leather", "plastic", "stone", "glass")
PEOPLE = ("man", "woman", "boy", "girl", "child", "person", "surfer", "farmer", "tourist", "chef")
CLOTHES = ("jacket", "hat", "shirt", "dress", "helmet", "coat", "scarf")
ANIMALS = ("dog", "cat", "horse", "cow", "sheep", "zebra", "donkey", "bird", "giraffe", "goat")
THINGS = ("parasol", "bicycle", "kite", "suitcase", "skateboard", "laptop", "vase", "clock", "ball", "bottle")
FURNITURE = ("table", "bench", "chair", "couch", "desk", "bed", "shelf")
FOOD = ("pizza", "sandwich", "cake", "salad", "rice", "pasta", "meat", "soup")
PLACES = ("beach", "street", "kitchen", "field", "park", "garden", "station", "harbour", "market", "hill")
RELATIONS = ("next to", "in front of", "behind", "on top of", "to the left of", "under", "near")
ACTIONS = ("holding", "carrying", "looking at", "pulling", "standing beside", "leaning on")
WORDS = {
    "color": COLORS, "material": MATERIALS, "person": PEOPLE, "clothes": CLOTHES, "animal": ANIMALS, "thing": THINGS,
    "furniture": FURNITURE, "food": FOOD, "place": PLACES, "relation": RELATIONS, "action": ACTIONS,
}  # fmt: skip
SENTENCES = (
    "A {person0} in a {color0} {clothes0} is {action0} a {color1} {thing0} at the {place0}.",
    "A {color0} {animal0} stands {relation0} a {material0} {furniture0} in the {place0}.",
    "Two {animal0}s and a {color0} {animal1} walk across the {place0}.",
    "A plate of {food0} and a {color0} {thing0} on a {material0} {furniture0}",
    "a {person0} riding a {color0} {animal0} {relation0} a {material0} {thing0}",
    "The {person0} with the {color0} {clothes0} sits {relation0} the {person1} who is {action0} a {thing0}.",
    "Three {color0} {thing0}s are lined up {relation0} the {furniture0} by the {place0}.",
    "There is a {color0} {thing0} {relation0} a {color1} {animal0}, and a {person0} is watching them.",
)


def captions(num_captions: int) -> list[str]:
    """Make sentences of ten to nineteen words, almost all different."""
    draw = random.Random(0)

    def sentence() -> str:
        words = {f"{kind}{i}": word for kind, some in WORDS.items() for i, word in enumerate(draw.sample(some, 2))}
        return draw.choice(SENTENCES).format(**words)

    return [sentence() for _ in range(num_captions)]


def write_shards(folder: Path, num_images: int, num_shards: int, size: tuple[int, int]) -> str:
    """Write JPEG files of `size` (width, height), each with its caption; returns the shards as a brace range."""
    folder.mkdir(parents=True)
    examples = list(zip(Photographs(size).take(num_images), captions(num_images), strict=True))
    for number in range(num_shards):
        with tarfile.open(folder / f"{number:03}.tar", "w") as shard:
            for place in range(number, num_images, num_shards):
                image, caption = examples[place]
                for suffix, content in (("jpg", image), ("txt", caption.encode())):
                    member = tarfile.TarInfo(f"{place:06}.{suffix}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    return str(folder / f"{{000..{num_shards - 1:03}}}.tar")
