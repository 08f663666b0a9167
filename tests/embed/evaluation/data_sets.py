"""The benchmarks' files, as their owners lay them out, with a few tiny images each."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from services.embed.evaluation.instructions import MMVP, SUGARCREPE
from services.embed.evaluation.same_class import read_nodes

CELEBA_COLUMNS = (
    *("5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose"),
    *("Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses"),
    *("Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache"),
    *("Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks"),
    *("Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick"),
    *("Wearing_Necklace", "Wearing_Necktie", "Young"),
)


def write_image(path: Path, color: Sequence[int] = (128, 128, 128), size: tuple[int, int] = (40, 32)) -> Path:
    """A plain image; JPEG by any of its endings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, tuple(color)).save(path, "JPEG", quality=95)
    return path


def hues(num_images: int) -> list[tuple[int, int, int]]:
    """Colours that differ from one another."""
    values = np.random.default_rng(0).integers(0, 256, (num_images, 3))
    return [(int(red), int(green), int(blue)) for red, green, blue in values]


def write_celeba(directory: Path, *, num_images: int = 8) -> Path:
    """Write a CelebA of this number of test images and one image of each other split.

    Odd images have every attribute but Bald, even ones none; two neighbours are the same person, and the odd ones are
    red, the even ones blue.
    """
    files = [f"{number:06d}.jpg" for number in range(1, num_images + 3)]
    partition = ["0", "1", *["2"] * num_images]
    attributes, identities = [], []
    for number, file in enumerate(files):
        is_odd = number % 2 == 1
        write_image(directory / "img_align_celeba" / file, (250, 10, 10) if is_odd else (10, 10, 250))
        values = ["1" if is_odd and name != "Bald" else "-1" for name in CELEBA_COLUMNS]
        # two blanks before a positive value, as in the original's columns
        attributes.append(f"{file} " + " ".join(value.rjust(2) for value in values))
        identities.append(f"{file} {2880 + number // 2}")
    header = [str(len(files)), " ".join(CELEBA_COLUMNS) + " "]
    (directory / "list_attr_celeba.txt").write_text("\n".join([*header, *attributes]) + "\n")
    lines = [f"{file} {part}" for file, part in zip(files, partition, strict=True)]
    (directory / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    (directory / "identity_CelebA.txt").write_text("\n".join(identities) + "\n")
    return directory


def write_genecis(directory: Path) -> Path:
    """Both tasks: two queries under one condition and one under another, with images in `VG` and `val2017`.

    The target is of the reference's colour, the distractors are not.
    """
    (reference, *distractors) = hues(12)
    for number, color in enumerate([reference, reference, *distractors], start=1):
        write_image(directory / "val2017" / f"{number:012d}.jpg", color)
        folder = "VG_100K" if number % 2 else "VG_100K_2"
        write_image(directory / "VG" / folder / f"{number}.jpg", color)

    def in_genome(number: int) -> dict[str, object]:
        return {"image_id": str(number), "instance_bbox": [10, 8, 20, 12], "object_name": "laptop"}

    def in_coco(number: int) -> dict[str, object]:
        return {"val_image_id": number}

    for focus, entry, gallery in (("attribute", in_genome, 9), ("object", in_coco, 11)):
        queries = [
            {
                "condition": condition,
                "reference": entry(first),
                "target": entry(second),
                "gallery": [entry(number) for number in range(3, 3 + gallery)],
            }
            for condition, first, second in (("color", 1, 2), ("material", 2, 1), ("color", 2, 1))
        ]
        (directory / f"focus_{focus}.json").write_text(json.dumps(queries))
    return directory


def write_imagenet(directory: Path, *, nodes: Sequence[str] = ("Piano", "Bag"), images_per_class: int = 2) -> Path:
    """Folders of some of the fourteen kinds, each class of its own colour."""
    classes = sorted({wnid for node in read_nodes() if node.node in nodes for wnid in node.classes})
    for wnid, color in zip(classes, hues(len(classes)), strict=True):
        for number in range(images_per_class):
            write_image(directory / wnid / f"ILSVRC2012_val_{number:08d}.JPEG", color)
    return directory


def write_fine_grained(directory: Path) -> Path:
    """The four data sets with two test images of each of two classes, and one that is not for testing."""
    (one, other) = hues(2)
    colors = [one, other, one, other]
    flowers = directory / "flowers-102"
    for number, color in enumerate([(0, 0, 0), *colors], start=1):
        write_image(flowers / "jpg" / f"image_{number:05d}.jpg", color)
    savemat(flowers / "imagelabels.mat", {"labels": np.array([[3, 1, 2, 1, 2]], np.uint8)})
    sets = {"trnid": [[1]], "valid": [[1]], "tstid": [[2, 3, 4, 5]]}
    savemat(flowers / "setid.mat", {name: np.array(numbers, np.uint16) for name, numbers in sets.items()})

    cars = directory / "stanford_cars"
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    annotations = np.zeros((1, 4), dtype=[(field, object) for field in fields])
    for number, color in enumerate(colors):
        file = f"{number + 1:05d}.jpg"
        write_image(cars / "cars_test" / file, color)
        annotations[0, number] = (1, 1, 30, 30, 181 + number % 2, file)
    savemat(cars / "cars_test_annos_withlabels.mat", {"annotations": annotations})

    aircraft = directory / "fgvc-aircraft-2013b" / "data"
    variants = ["Boeing 707-320", "A300B4", "Boeing 707-320", "A300B4"]
    for number, color in enumerate(colors):
        write_image(aircraft / "images" / f"{1514522 + number}.jpg", color)
    lines = [f"{1514522 + number} {variant}" for number, variant in enumerate(variants)]
    (aircraft / "images_variant_test.txt").write_text("\n".join(lines) + "\n")

    food = directory / "food-101"
    names = [f"{('apple_pie', 'waffles')[number % 2]}/{1000 + number}" for number in range(4)]
    for name, color in zip(names, colors, strict=True):
        write_image(food / "images" / f"{name}.jpg", color)
    (food / "meta").mkdir()
    (food / "meta" / "test.txt").write_text("\n".join(names) + "\n")
    return directory


RED, GREEN, BLUE, PURPLE = (250, 10, 10), (10, 250, 10), (10, 10, 250), (250, 10, 200)


def write_mmvp(directory: Path) -> Path:
    """135 pairs of a red and a blue image.

    In Color both are red, in Text the second is rather red, too, but bluer than the first; State has one pair the wrong
    way round.
    """
    rows = [["Question ID", "Type", "Statement"]]
    for number in range(135):
        folder = list(MMVP)[number // 15]
        first = BLUE if number == 32 else RED
        second = RED if folder == "Color" or number == 32 else PURPLE if folder == "Text" else BLUE
        for place, (color, words) in enumerate(((first, 'a red thing, "large"'), (second, "a blue thing"))):
            identity = 2 * number + place + 1
            write_image(directory / "MLLM_VLM Images" / folder / f"{identity}.jpg", color, size=(8, 8))
            rows.append([str(identity), folder, words])
    with (directory / "Questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return directory


def write_sugarcrepe(directory: Path) -> Path:
    """Four choices of each type about a red and a green image in `val2017`; the last one's captions are equal.

    One of swap_att's is true of the other image.
    """
    for number, color in ((1, RED), (2, GREEN)):
        write_image(directory / "val2017" / f"{number:012d}.jpg", color)
    words = {1: ("a red thing", "a green thing"), 2: ("a green thing", "a red thing")}
    for kind in SUGARCREPE:
        records = {}
        for place, number in enumerate((1, 2, 1, 2)):
            caption, negative = words[number if (kind, place) != ("swap_att", 0) else 2]
            negative = caption if place == 3 else negative
            # ids have gaps where a choice was withdrawn
            filename = f"{number:012d}.jpg"
            records[str(2 * place)] = {"filename": filename, "caption": caption, "negative_caption": negative}
        (directory / f"{kind}.json").write_text(json.dumps(records))
    return directory


def write_probe(directory: Path, *, num_train: int = 3) -> Path:
    """Three classes of plain colours, some images each to train on and two to be tested on."""
    for name, color in (("red", RED), ("green", GREEN), ("blue", BLUE)):
        for part, num_images in (("train", num_train), ("val", 2)):
            for number in range(num_images):
                shade = [max(0, value - 10 * number) for value in color]
                write_image(directory / part / name / f"{number}.jpg", shade)
    return directory
