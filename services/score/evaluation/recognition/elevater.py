"""ELEVATER's 21 zero-shot classification sets, with its class names, templates and metrics.

The files are those of its toolkit: `prompts.py`, which is read without being run, and `classification`, the folder
that its downloads fill. Images may stay in their archives.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from services.jobs.published_data import MissingData, Source
from services.score.evaluation.benchmarks.reading import described, read_json
from services.score.evaluation.embeddings import Embedder, Features
from services.score.evaluation.recognition.metrics import (
    accuracy,
    mean_average_precision_11,
    mean_per_class,
    roc_auc,
)
from services.score.evaluation.records import ImageFile, Member, file_of

TOOLKIT = Source("ELEVATER's toolkit", "https://github.com/Computer-Vision-in-the-Wild/Elevater_Toolkit_IC")
# CLIP's temperature, by which the toolkit makes probabilities of cosines.
LOGIT_SCALE = 100.0

Metric = Literal["accuracy", "mean per class", "11-point mAP", "ROC AUC"]
METRICS: Mapping[Metric, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "mean per class": mean_per_class,
    "11-point mAP": mean_average_precision_11,
    "ROC AUC": roc_auc,
}


@dataclass(frozen=True)
class Published:
    """A set in the toolkit: its name in `prompts.py`, its folder and index of test images, their number, its metric."""

    toolkit_name: str
    folder: str
    index: str
    num_images: int
    metric: Metric = "accuracy"


SETS = {
    "caltech101": Published("caltech-101", "caltech_101_20211007", "test.txt", 6084, "mean per class"),
    "cifar10": Published("cifar-10", "cifar_10_20211007", "test.txt", 10000),
    "cifar100": Published("cifar-100", "cifar100_20200721", "test_images.txt", 10000),
    "country211": Published("country211", "country211_20210924", "test.txt", 21100),
    "dtd": Published("dtd", "dtd_20211007", "test.txt", 1880),
    "eurosat-clip": Published("eurosat_clip", "eurosat_clip_20210930", "test.txt", 5000),
    "fer2013": Published("fer-2013", "fer_2013_20211008", "test.txt", 3589),
    "fgvc-aircraft-2013b": Published(
        *("fgvc-aircraft-2013b-variants102", "fgvc_aircraft_2013b_variants102_20211007", "test.txt", 3333),
        "mean per class",
    ),
    "flower102": Published("oxford-flower-102", "oxford_flower_102_20211007", "test.txt", 6149, "mean per class"),
    "food101": Published("food-101", "food_101_20211007", "test.txt", 25250),
    "gtsrb": Published("gtsrb", "gtsrb_20210923", "test.txt", 12630),
    "hateful-memes": Published("hateful-memes", "hateful_memes_20211014", "test_meta.json", 500, "ROC AUC"),
    "imagenet-1k": Published("imagenet-1k", "imagenet_1k_20220105", "val.json", 50000),
    "kitti-distance": Published("kitti-distance", "kitti_distance_20210923", "test_meta.json", 711),
    "mnist": Published("mnist", "mnist_20211008", "test.txt", 10000),
    "oxford-iiit-pets": Published("oxford-iiit-pets", "oxford_iiit_pets_20211007", "test.txt", 3669, "mean per class"),
    "patchcamelyon": Published("patch-camelyon", "patch_camelyon_20211007", "test.txt", 32768),
    "rendered-sst2": Published("rendered-sst2", "rendered_sst2_20210924", "test.txt", 1821),
    "resisc45-clip": Published("resisc45_clip", "resisc45_clip_20210924", "test.json", 25200),
    "stanfordcar": Published("stanford-cars", "stanford_cars_20211007", "test.txt", 8041),
    "voc2007classification": Published(
        *("voc-2007-classification", "voc2007_20211007", "test_ic.txt", 4952), "11-point mAP"
    ),
}


@dataclass(frozen=True)
class ClassificationSet:
    """N images, and the numbers of the classes that each of them shows; only VOC 2007's show several."""

    name: str
    images: tuple[ImageFile, ...]
    labels: tuple[tuple[int, ...], ...]
    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    metric: Metric


def load_classification_set(name: str, directory: Path, *, limit: int | None = None) -> ClassificationSet:
    """Load one of SETS from a folder with `prompts.py` and `classification`; `limit` takes the first images.

    Raises MissingData.
    """
    published = SETS[name]
    class_names, templates = read_prompts(directory / "prompts.py", published.toolkit_name)
    folder = directory / "classification" / published.folder
    path = TOOLKIT.existing(folder / published.index)
    with described(path, f"{TOOLKIT.name}, {name}", "images and classes"):
        rows = _coco_rows(path) if path.suffix == ".json" else _index_rows(path)
        images, labels = zip(*rows[:limit], strict=True)
        if max(map(max, labels)) >= len(class_names):
            raise ValueError(f"class {max(map(max, labels))} is none of {len(class_names)}")
        if published.metric != "11-point mAP" and set(map(len, labels)) != {1}:
            raise ValueError("an image has several classes")
    found = ClassificationSet(
        *(name, tuple(_image(folder, image) for image in images), labels, class_names, templates, published.metric)
    )
    for file in sorted(set(map(file_of, found.images))):
        TOOLKIT.existing(file)
    return found


def read_prompts(path: Path, toolkit_name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the class names and templates of a set from the toolkit's `prompts.py`. Raises MissingData.

    The file consists of lists, and of two maps of sets to names of lists. A class's first name counts.
    """
    with described(TOOLKIT.existing(path), TOOLKIT.name, "class names and templates"):
        lists: dict[str, ast.expr] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                lists[node.targets[0].id] = node.value
        class_names, templates = (
            ast.literal_eval(lists[_in_map(lists[name], toolkit_name)]) for name in ("class_map", "template_map")
        )
        firsts = (name if isinstance(name, str) else name[0] for name in class_names)
        return tuple(firsts), tuple(templates)


def _in_map(node: ast.expr, toolkit_name: str) -> str:
    """The list that a map names for a set. Raises KeyError for none."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == toolkit_name and isinstance(value, ast.Name):
                return value.id
    raise KeyError(toolkit_name)


Row = tuple[str, tuple[int, ...]]


def _index_rows(path: Path) -> list[Row]:
    """Read lines such as `test.zip@cat.jpg 0,2`."""
    lines = [line.rsplit(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(image, tuple(sorted(map(int, classes.split(","))))) for image, classes in lines]


def _coco_rows(path: Path) -> list[Row]:
    """Read images and their categories in COCO's form; classes are numbered by the categories' numbers."""
    content = read_json(path, TOOLKIT)
    class_of = {one: place for place, one in enumerate(sorted(row["id"] for row in content["categories"]))}
    classes: dict[int, list[int]] = {}
    for row in content["annotations"]:
        classes.setdefault(row["image_id"], []).append(class_of[row["category_id"]])
    names = {
        row["id"]: f"{row['zip_file']}@{row['file_name']}" if "zip_file" in row else row["file_name"]
        for row in content["images"]
    }
    return [(names[number], tuple(sorted(some))) for number, some in classes.items()]


def _image(folder: Path, name: str) -> ImageFile:
    """Find an image in its archive or, if that was unpacked, as a file."""
    archive, separator, member = name.partition("@")
    if not separator:
        return folder / name
    if (folder / archive).exists():
        return Member(folder / archive, member)
    places = (folder / member, folder / Path(archive).stem / member)
    return next((place for place in places if place.exists()), folder / archive)


def evaluate_classification(embedder: Embedder, found: ClassificationSet) -> float:
    """Compute the set's metric in percent; a class is the mean of its prompts' embeddings. Raises CannotJudge."""
    prompts = [template.format(name) for name in found.class_names for template in found.templates]
    texts = embedder.embed_texts(prompts, f"{found.name}, prompts")
    classes = _unit(texts.reshape(len(found.class_names), len(found.templates), -1).mean(axis=1))
    images = embedder.embed_images(found.images, f"{found.name}, images")
    probabilities = _softmax(LOGIT_SCALE * images.astype(np.float64) @ classes.T)
    try:
        return 100 * METRICS[found.metric](_labels(found), probabilities)
    except ValueError as error:
        raise MissingData(f"{found.name}: {error}") from error


def _labels(found: ClassificationSet) -> NDArray[Any]:
    """Class numbers, (N,), or for several classes of an image, (N, K) truth values."""
    if found.metric != "11-point mAP":
        return np.asarray([label for (label,) in found.labels])
    shows = np.zeros((len(found.labels), len(found.class_names)), np.bool_)
    for row, classes in enumerate(found.labels):
        shows[row, list(classes)] = True
    return shows


def _unit(features: Features) -> Features:
    return np.asarray(features / np.linalg.norm(features, axis=-1, keepdims=True))


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
