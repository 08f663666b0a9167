"""The four fine-grained data sets are read from their owners' files, their test images only."""

from pathlib import Path

import numpy as np
import pytest

from services.core.text_files import BadFile
from services.embed.evaluation.same_class import LOADERS, evaluate_category
from tests.embed.evaluation.data_sets import write_fine_grained
from tests.embed.evaluation.embedders import MeanColor


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fine_grained(tmp_path_factory.mktemp("fine_grained"))


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("Flower", "flowers-102/jpg/image_00002.jpg"),
        ("Car", "stanford_cars/cars_test/00001.jpg"),
        ("Aircraft", "fgvc-aircraft-2013b/data/images/1514522.jpg"),
        ("Food", "food-101/images/apple_pie/1000.jpg"),
    ],
)
def test_the_test_images_are_retrieved_by_class(data: Path, name: str, first: str) -> None:
    images = LOADERS[name](data)
    assert images.paths[0] == data / first
    assert len(images.paths) == 4
    assert (images.labels[[0, 1]] == images.labels[[2, 3]]).all()
    assert images.labels[0] != images.labels[1]
    embedder = MeanColor()
    assert evaluate_category(embedder, images, name.lower()) == pytest.approx(100)
    assert embedder.asked == [f"What type of {name.lower()} is in the image?"]


def test_the_first_images_of_each_class_keep_their_labels(data: Path) -> None:
    images = LOADERS["Food"](data)
    few = images.first_of_each_class(1)
    assert [path.parent.name for path in few.paths] == ["apple_pie", "waffles"]
    assert len(np.unique(few.labels)) == 2
    assert images.first_of_each_class(None) is images


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Flower", "setid.mat"),
        ("Car", "cars_test_annos_withlabels.mat"),
        ("Aircraft", "images_variant_test.txt"),
        ("Food", "test.txt"),
    ],
)
def test_a_missing_data_set_is_told_by_its_first_file_and_its_address(tmp_path: Path, name: str, file: str) -> None:
    if name == "Flower":
        write_fine_grained(tmp_path)
        (tmp_path / "flowers-102" / file).unlink()
    with pytest.raises(BadFile, match=rf"{file} is missing.*https://"):
        LOADERS[name](tmp_path)


def test_the_labels_of_cars_may_lie_in_the_devkit(tmp_path: Path) -> None:
    write_fine_grained(tmp_path)
    cars = tmp_path / "stanford_cars"
    (cars / "devkit").mkdir()
    (cars / "cars_test_annos_withlabels.mat").rename(cars / "devkit" / "cars_test_annos_withlabels.mat")
    assert LOADERS["Car"](tmp_path).labels.tolist() == [181, 182, 181, 182]
