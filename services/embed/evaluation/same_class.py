"""Retrieval of images of the same class (Table 5.3): ImageNet-Subset and the fine-grained data sets.

ImageNet-Subset (Tables D.1 and D.5) asks for the class within a category. Of a fine-grained data set, the test images
are used; each has the layout of its unpacked archives, in the folder that torchvision uses.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from services.core.text_files import BadFile, read_text, text_lines
from services.embed.evaluation.embedders import ImageEmbedder
from services.embed.evaluation.instructions import type_of
from services.embed.evaluation.metrics import Labels, cosine_rows, mean_average_precision
from services.jobs.published_data import Source, described

IMAGENET = Source("ILSVRC 2012, a folder of images for each class", "https://image-net.org/challenges/LSVRC/2012")
ENDINGS = (".jpeg", ".jpg", ".png", ".webp")
NODES_FILE = Path(__file__).parent / "imagenet_nodes.json"
FLOWERS = Source("Oxford 102 Flowers", "https://www.robots.ox.ac.uk/~vgg/data/flowers/102")
CARS = Source("Stanford Cars", "https://ai.stanford.edu/~jkrause/cars/car_dataset.html")
AIRCRAFT = Source("FGVC Aircraft (2013b)", "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft")
FOOD = Source("Food-101", "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101")


@dataclass(frozen=True)
class LabelledImages:
    """Files and their classes (N,)."""

    source: Source
    paths: tuple[Path, ...]
    labels: Labels

    def first_of_each_class(self, num_images: int | None) -> "LabelledImages":
        """Keep the first `num_images` images of each class; all of them for None."""
        if num_images is None:
            return self
        kept = np.sort(np.concatenate([np.flatnonzero(self.labels == c)[:num_images] for c in np.unique(self.labels)]))
        return LabelledImages(self.source, tuple(self.paths[i] for i in kept), self.labels[kept])


def evaluate_category(embedder: ImageEmbedder, images: LabelledImages, category: str) -> float:
    """Compute the mAP in points of retrieving the same class under the category's type. Raises BadFile."""
    pictures = images.source.images(images.paths, f"{embedder.name}, {category}")
    (embeddings,) = embedder.embed_images(pictures, [type_of(category)])
    return 100 * mean_average_precision(cosine_rows(embeddings), images.labels)


def load_flowers(directory: Path) -> LabelledImages:
    """Load `flowers-102/`: `jpg/`, `imagelabels.mat` (the class of every image) and `setid.mat` (`tstid`: the test
    images), both counted from 1. Raises BadFile."""
    folder = directory / "flowers-102"
    classes = _matlab(FLOWERS, folder / "imagelabels.mat", "labels")
    numbers = _matlab(FLOWERS, folder / "setid.mat", "tstid")
    with described(folder, FLOWERS.name, "labelled images"):
        paths = tuple(folder / "jpg" / f"image_{number:05d}.jpg" for number in numbers)
        return LabelledImages(FLOWERS, paths, classes[numbers - 1].astype(np.int64))


def load_cars(directory: Path) -> LabelledImages:
    """Load `stanford_cars/`: `cars_test/` and `cars_test_annos_withlabels.mat`, which may be in `devkit/`.

    Raises BadFile.
    """
    folder = directory / "stanford_cars"
    beside = folder / "cars_test_annos_withlabels.mat"
    inside = folder / "devkit" / beside.name
    annotations = _matlab(CARS, inside if inside.is_file() else beside, "annotations")
    with described(beside, CARS.name, "labelled images"):
        labels = np.array([int(entry["class"].item()) for entry in annotations])
        paths = tuple(folder / "cars_test" / str(entry["fname"].item()) for entry in annotations)
        return LabelledImages(CARS, paths, labels)


def _matlab(source: Source, path: Path, name: str) -> Any:
    """Read an array of a MATLAB file, flat. Raises BadFile."""
    with described(source.existing(path), source.name, name):
        try:
            return loadmat(path)[name].ravel()
        except (MatReadError, NotImplementedError, OSError, zlib.error) as error:
            raise ValueError(str(error)) from error


def load_aircraft(directory: Path) -> LabelledImages:
    """Load `fgvc-aircraft-2013b/data/`: `images/` and `images_variant_test.txt`, a number and a variant per line.

    Raises BadFile.
    """
    folder = directory / "fgvc-aircraft-2013b" / "data"
    path = AIRCRAFT.existing(folder / "images_variant_test.txt")
    with described(path, AIRCRAFT.name, "variants"):
        numbers, variants = zip(*(line.strip().split(" ", 1) for line in text_lines(path)), strict=True)
    _, labels = np.unique(variants, return_inverse=True)
    return LabelledImages(AIRCRAFT, tuple(folder / "images" / f"{number}.jpg" for number in numbers), labels)


def load_food(directory: Path) -> LabelledImages:
    """Load `food-101/`: `images/` and `meta/test.txt`, one `class/number` per line. Raises BadFile."""
    folder = directory / "food-101"
    path = FOOD.existing(folder / "meta" / "test.txt")
    lines = read_text(path).split()
    with described(path, FOOD.name, "classes with numbers"):
        names, _ = zip(*(line.split("/") for line in lines), strict=True)
    _, labels = np.unique(names, return_inverse=True)
    return LabelledImages(FOOD, tuple(folder / "images" / f"{line}.jpg" for line in lines), labels)


# By column of Table 5.3, whose lower-case name is the category in the instruction.
LOADERS: dict[str, Callable[[Path], LabelledImages]] = {
    "Flower": load_flowers,
    "Car": load_cars,
    "Aircraft": load_aircraft,
    "Food": load_food,
}


@dataclass(frozen=True)
class Node:
    """A category: its name in Table D.1, its column in Table D.5, its synset and the classes below it (wnids)."""

    node: str
    column: str
    synset: str
    words: tuple[str, ...]
    classes: tuple[str, ...]


def read_nodes() -> list[Node]:
    """Read the fourteen categories, in the order of Table D.1."""
    return [Node(**entry) for entry in json.loads(NODES_FILE.read_text())]


def load_folders(directory: Path, classes: Sequence[str], source: Source = IMAGENET, least: int = 1) -> LabelledImages:
    """Find the images of each class: `directory/<class>/*`. Raises BadFile, also for fewer than `least` of one."""
    files = []
    for name in classes:
        folder = source.existing(directory / name)
        files.append(sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS))
        if len(files[-1]) < least:
            told = f"{folder} holds {len(files[-1])} images, not {least}"
            raise BadFile(f"{told}. It belongs to {source.name}, from {source.address}")
    labels = np.repeat(np.arange(len(files)), [len(found) for found in files])
    return LabelledImages(source, tuple(path for found in files for path in found), labels)


def evaluate_imagenet(
    embedder: ImageEmbedder, directory: Path, nodes: Sequence[Node], *, images_per_class: int | None = None
) -> dict[str, float]:
    """Compute the mAP in points by column of Table D.5. Raises BadFile."""
    # find all images before the first is embedded
    images = [load_folders(directory, node.classes).first_of_each_class(images_per_class) for node in nodes]
    return {
        node.column: evaluate_category(embedder, of_node, node.node.lower())
        for node, of_node in zip(nodes, images, strict=True)
    }
