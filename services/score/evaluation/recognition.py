"""Zero-shot classification (ELEVATER's 21 sets, with its class names, templates and metrics) and retrieval.

Retrieval is between images and captions of COCO and Flickr30k in Karpathy's test splits, and of COCO-Counterfactuals.
ELEVATER's files are those of its toolkit: `prompts.py`, which is read without being run, and `classification`, the
folder that its downloads fill. Images may stay in their archives. Ties are wrong.

Shapes: N images, K classes, Q queries, G things to be found, I images, C captions, E embedding width.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from services.core.text_files import BadFile, json_objects, read_json, read_text, text_lines
from services.jobs.published_data import Source, described
from services.score.evaluation.aggregates import RETRIEVAL
from services.score.evaluation.benchmarks.reading import COCO_2014, FLICKR30K, CaptionedImage, load_coco, load_flickr30k
from services.score.evaluation.judges import Embedder, Features
from services.score.evaluation.records import ImageFile, Member, file_of, percent

Labels = NDArray[np.int64]
Probabilities = NDArray[np.floating]

RECALL_POINTS = 11
KS = (1, 5, 10)


def is_right(labels: Labels, probabilities: Probabilities) -> NDArray[np.bool_]:
    """Tell for each image, (N,), whether its class is strictly the most probable one: (N,) and (N, K) → (N,)."""
    rows = np.arange(len(labels))
    own = probabilities[rows, labels]
    others = probabilities.copy()
    others[rows, labels] = -np.inf
    return np.asarray(own > others.max(axis=1))


def accuracy(labels: Labels, probabilities: Probabilities) -> float:
    """The share of images whose class is the most probable one."""
    return float(is_right(labels, probabilities).mean())


def mean_per_class(labels: Labels, probabilities: Probabilities) -> float:
    """The mean over classes with images of their accuracy."""
    return percent(is_right(labels, probabilities).astype(np.float64), labels) / 100


def mean_average_precision_11(labels: NDArray[np.bool_], probabilities: Probabilities) -> float:
    """The mean over classes of VOC 2007's average precision: (N, K) and (N, K).

    Precision is interpolated: at each of eleven recalls, the highest one at this recall or above. Images of equal
    probability are found together. A class without images counts as 0.
    """
    points = np.linspace(0, 1, RECALL_POINTS)
    return float(
        np.mean([_average_precision(labels[:, k], probabilities[:, k], points) for k in range(labels.shape[1])])
    )


def _average_precision(
    is_positive: NDArray[np.bool_], probability: Probabilities, points: NDArray[np.float64]
) -> float:
    if not is_positive.any():
        return 0.0
    order = np.argsort(-probability, kind="stable")
    found = np.cumsum(is_positive[order])
    # only thresholds between different probabilities exist
    ends = np.flatnonzero(np.append(np.diff(probability[order]) != 0, True))
    precision = found[ends] / (ends + 1)
    recall = found[ends] / found[-1]
    return float(np.mean([precision[recall >= point - 1e-12].max() for point in points]))


def roc_auc(labels: Labels, probabilities: Probabilities) -> float:
    """The area under the ROC curve of two classes: how often an image of class 1 is above one of class 0, (N,), (N, 2).

    Equal probabilities count one half, as everywhere for this metric. Raises ValueError if a class has no images.
    """
    score = probabilities[:, 1]
    positive, negative = np.sort(score[labels == 1]), score[labels == 0]
    if not (len(positive) and len(negative)):
        raise ValueError("the area under the ROC curve needs images of both classes")
    above = len(positive) - np.searchsorted(positive, negative, side="right")
    ties = np.searchsorted(positive, negative, side="right") - np.searchsorted(positive, negative, side="left")
    return float((above + ties / 2).sum() / (len(positive) * len(negative)))


def best_ranks(similarities: Probabilities, is_own: NDArray[np.bool_]) -> Labels:
    """Count, for each query, the wrong things at least as similar as its most similar own one: (Q, G) → (Q,)."""
    best = np.where(is_own, similarities, -np.inf).max(axis=1, keepdims=True)
    return np.asarray(((similarities >= best) & ~is_own).sum(axis=1), np.int64)


def recalls(ranks: Labels, ks: Sequence[int] = KS) -> dict[str, float]:
    """Compute in percent how often one of a query's own things is among the first k, as `R@k`."""
    return {f"R@{k}": 100 * float((ranks < k).mean()) for k in ks}


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

    Raises BadFile.
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
    """Read the class names and templates of a set from the toolkit's `prompts.py`. Raises BadFile.

    The file consists of lists, and of two maps of sets to names of lists. A class's first name counts.
    """
    with described(TOOLKIT.existing(path), TOOLKIT.name, "class names and templates"):
        lists: dict[str, ast.expr] = {}
        for node in ast.parse(read_text(path)).body:
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
    lines = [line.rsplit(maxsplit=1) for line in text_lines(path) if line.strip()]
    return [(image, tuple(sorted(map(int, classes.split(","))))) for image, classes in lines]


def _coco_rows(path: Path) -> list[Row]:
    """Read images and their categories in COCO's form; classes are numbered by the categories' numbers."""
    content = read_json(TOOLKIT.existing(path))
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
    """Compute the set's metric in percent; a class is the mean of its prompts' embeddings. Raises Refused."""
    prompts = [template.format(name) for name in found.class_names for template in found.templates]
    texts = embedder.embed_texts(prompts, f"{found.name}, prompts")
    classes = _unit(texts.reshape(len(found.class_names), len(found.templates), -1).mean(axis=1))
    images = embedder.embed_images(found.images, f"{found.name}, images")
    probabilities = softmax(LOGIT_SCALE * images.astype(np.float64) @ classes.T, axis=1)
    try:
        return 100 * METRICS[found.metric](_labels(found), probabilities)
    except ValueError as error:
        raise BadFile(f"{found.name}: {error}") from error


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


COUNTERFACTUALS = Source("COCO-Counterfactuals", "https://huggingface.co/datasets/Intel/COCO-Counterfactuals")
# FSC-CLIP's authors draw 30 % of the samples, 5,223 of 17,410; which, they do not say.
COUNTERFACTUALS_SHARE = 0.3
SEED = 0
# Queries that are compared with everything at a time.
BLOCK = 512


@dataclass(frozen=True)
class RetrievalSet:
    """Images and their captions, at least one each, to be found among all; `source` is that of the images."""

    name: str
    images: tuple[CaptionedImage, ...]
    source: Source

    def check_images(self) -> None:
        """Raises BadFile if an image is missing."""
        for one in self.images:
            self.source.existing(one.image)


def load_retrieval_set(name: str, data: Path, *, limit: int | None = None) -> RetrievalSet:
    """Load one of RETRIEVAL from the folder of all data; `limit` takes the first images. Raises BadFile."""
    match name:
        case "coco_karpathy":
            found, source = load_coco(data / "coco"), COCO_2014
        case "flickr30k":
            found, source = load_flickr30k(data / "flickr30k"), FLICKR30K
        case "coco_counterfactuals":
            found, source = load_counterfactuals(data / "coco_counterfactuals" / "data"), COUNTERFACTUALS
        case _:
            raise ValueError(f"{name} is none of {', '.join(RETRIEVAL)}")
    retrieval_set = RetrievalSet(name, tuple(found[:limit]), source)
    retrieval_set.check_images()
    return retrieval_set


def load_counterfactuals(folder: Path, *, share: float = COUNTERFACTUALS_SHARE) -> list[CaptionedImage]:
    """Load a share of `examples.jsonl`, drawn by a fixed seed, with `images`: two captions and an image of each.

    Raises BadFile.
    """
    path = COUNTERFACTUALS.existing(folder / "examples.jsonl")
    with described(path, COUNTERFACTUALS.name, "examples"):
        rows = [row for _, row in json_objects(path)]
        drawn = np.random.default_rng(SEED).permutation(len(rows))[: round(share * len(rows))]
        return [
            CaptionedImage(folder / "images" / f"{rows[row][f'image_{one}']}.jpg", (rows[row][f"caption_{one}"],))
            for row in sorted(drawn)
            for one in (0, 1)
        ]


def evaluate_retrieval(embedder: Embedder, retrieval_set: RetrievalSet) -> dict[str, float]:
    """Compute recall at 1, 5 and 10 in percent, as `<set>::i2t/R@1` and so on. Raises Refused."""
    name = retrieval_set.name
    images = embedder.embed_images([one.image for one in retrieval_set.images], f"{name}, images")
    texts = [caption for one in retrieval_set.images for caption in one.captions]
    captions = embedder.embed_texts(texts, f"{name}, captions")
    image_of = np.repeat(np.arange(len(images)), [len(one.captions) for one in retrieval_set.images])
    places = np.arange(len(images))
    ranks = {"i2t": _ranks(images, places, captions, image_of), "t2i": _ranks(captions, image_of, images, places)}
    return {f"{name}::{way}/{at}": value for way, found in ranks.items() for at, value in recalls(found).items()}


def _ranks(
    queries: Features, query_image: NDArray[np.int64], things: Features, thing_image: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rank each query's own things, those of the same image, among all things, in blocks of queries."""
    blocks = [slice(start, start + BLOCK) for start in range(0, len(queries), BLOCK)]
    return np.concatenate(
        [best_ranks(queries[rows] @ things.T, query_image[rows, None] == thing_image[None]) for rows in blocks]
    )
