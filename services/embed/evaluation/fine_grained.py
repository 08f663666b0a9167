"""Fine-grained classification data sets as retrieval (Table 5.3): their test images, of the same class or not.

Each lies as its archives unpack, under the folder name that torchvision gives it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from services.embed.evaluation.labelled_images import LabelledImages
from services.jobs.published_data import Source

FLOWERS = Source("Oxford 102 Flowers", "https://www.robots.ox.ac.uk/~vgg/data/flowers/102")
CARS = Source("Stanford Cars", "https://ai.stanford.edu/~jkrause/cars/car_dataset.html")
AIRCRAFT = Source("FGVC Aircraft (2013b)", "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft")
FOOD = Source("Food-101", "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101")


def load_flowers(directory: Path) -> LabelledImages:
    """`flowers-102/`: `jpg/`, `imagelabels.mat` (the class of every image) and `setid.mat` (`tstid`: the test images),
    both counted from 1. Raises MissingData."""
    folder = directory / "flowers-102"
    classes = loadmat(FLOWERS.existing(folder / "imagelabels.mat"))["labels"].ravel()
    numbers = loadmat(FLOWERS.existing(folder / "setid.mat"))["tstid"].ravel()
    paths = tuple(folder / "jpg" / f"image_{number:05d}.jpg" for number in numbers)
    return LabelledImages(FLOWERS, paths, classes[numbers - 1].astype(np.int64))


def load_cars(directory: Path) -> LabelledImages:
    """`stanford_cars/`: `cars_test/` and `cars_test_annos_withlabels.mat`, which may lie in `devkit/`.

    Raises MissingData.
    """
    folder = directory / "stanford_cars"
    beside = folder / "cars_test_annos_withlabels.mat"
    inside = folder / "devkit" / beside.name
    annotations = loadmat(inside if inside.is_file() else CARS.existing(beside))["annotations"].ravel()
    labels = np.array([int(entry["class"].item()) for entry in annotations])
    return LabelledImages(
        CARS, tuple(folder / "cars_test" / str(entry["fname"].item()) for entry in annotations), labels
    )


def load_aircraft(directory: Path) -> LabelledImages:
    """`fgvc-aircraft-2013b/data/`: `images/` and `images_variant_test.txt`, a number and a variant a line.

    Raises MissingData.
    """
    folder = directory / "fgvc-aircraft-2013b" / "data"
    lines = AIRCRAFT.existing(folder / "images_variant_test.txt").read_text().splitlines()
    numbers, variants = zip(*(line.split(" ", 1) for line in lines), strict=True)
    _, labels = np.unique(variants, return_inverse=True)
    return LabelledImages(AIRCRAFT, tuple(folder / "images" / f"{number}.jpg" for number in numbers), labels)


def load_food(directory: Path) -> LabelledImages:
    """`food-101/`: `images/` and `meta/test.txt`, `class/number` a line. Raises MissingData."""
    folder = directory / "food-101"
    lines = FOOD.existing(folder / "meta" / "test.txt").read_text().split()
    _, labels = np.unique([line.split("/")[0] for line in lines], return_inverse=True)
    return LabelledImages(FOOD, tuple(folder / "images" / f"{line}.jpg" for line in lines), labels)


# By column of Table 5.3, whose name in small letters is the category that the instruction names.
LOADERS: dict[str, Callable[[Path], LabelledImages]] = {
    "Flower": load_flowers,
    "Car": load_cars,
    "Aircraft": load_aircraft,
    "Food": load_food,
}
