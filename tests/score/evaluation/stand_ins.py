"""Small data sets in the forms of the published ones, with plain images, and judges that see one plain thing."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from services.jobs.published_data import Source
from services.score.evaluation.judges import Features, OnScores
from services.score.evaluation.records import ImageFile, Record, Task, read_image_file

RED, GREEN, BLUE = (250, 10, 10), (10, 250, 10), (10, 10, 250)
PRIMARIES = ("red", "green", "blue")
SOURCE = Source("colours", "https://example.org/colours")


def write_image(path: Path, color: Sequence[int] = RED, size: tuple[int, int] = (40, 32)) -> Path:
    """A plain image, in the format of its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, tuple(color)).save(path)
    return path


def write_sugarcrepe(directory: Path) -> Path:
    """Three choices of each type about a red and a green image in `val2017`; the last one's captions are equal, and the
    first of swap_att is true of the other image."""
    for number, color in ((1, RED), (2, GREEN)):
        write_image(directory / "val2017" / f"{number:012d}.jpg", color)
    words = {1: ["a red thing", "a green thing"], 2: ["a green thing", "a red thing"]}
    for kind in ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att"):
        records = {}
        for place, number in enumerate((1, 2, 1)):
            caption, negative = words[number] if (kind, place) != ("swap_att", 0) else words[2]
            entry = {"caption": caption, "negative_caption": negative if place < 2 else caption}
            # ids have gaps where a choice was withdrawn
            records[str(2 * place)] = {"filename": f"{number:012d}.jpg", **entry}
        (directory / f"{kind}.json").write_text(json.dumps(records))
    return directory


def write_valse(directory: Path, entry: Mapping[str, Any]) -> Path:
    """Every file of VALSE's with this entry, and one that people did not agree with; every other file gzip'ed."""
    directory.mkdir(parents=True, exist_ok=True)
    names = (
        *("existence", "plurals", "counting-hard", "counting-small-quant", "counting-adversarial", "relations"),
        *("action-replacement", "actant-swap", "coreference-standard", "coreference-hard", "foil-it"),
    )
    for place, name in enumerate(names):
        doubtful = {**entry, "mturk": {"foil": 2, "caption": 1, "other": 0}}
        content = json.dumps({"first": entry, "doubtful": doubtful}).encode()
        path = directory / f"{name}.json"
        if place % 2:
            path.with_suffix(".json.gz").write_bytes(gzip.compress(content))
        else:
            path.write_bytes(content)
    return directory


def color_task(folder: Path, name: str = "colours") -> Task:
    """A red, a green and a blue image, each with its word and the two others."""
    records = [
        Record(
            word,
            (write_image(folder / f"{word}.png", color),),
            (f"something {word}", *(f"something {other}" for other in PRIMARIES if other != word)),
        )
        for word, color in zip(PRIMARIES, (RED, GREEN, BLUE), strict=True)
    ]
    return Task(name, "colours", tuple(records), SOURCE)


class ColorWords:
    """Scores the word of a primary colour by how much of it an image has; notes how many images it saw."""

    reads_images = True

    def __init__(self, name: str = "colour words") -> None:
        self.name = name
        self.num_images = 0

    def notes(self) -> Mapping[str, Any]:
        return {"primaries": 3}

    def score(self, task: Task, on_scores: OnScores) -> None:
        for place in reversed(range(len(task.records))):
            record = task.records[place]
            rows = []
            for path in record.images:
                means = np.asarray(read_image_file(path), np.float64).mean(axis=(0, 1))
                rows.append(
                    [sum(means[PRIMARIES.index(w)] for w in text.split() if w in PRIMARIES) for text in record.captions]
                )
                self.num_images += 1
            on_scores(place, np.array([rows]))


class ColorEmbedder(ColorWords):
    """Embeds images by their mean colour and texts by the primary colours that they name."""

    only_pooled = True

    def embed_images(self, images: Sequence[ImageFile], title: str) -> Features:
        self.num_images += len(images)
        return _unit(np.array([np.asarray(read_image_file(image), float).mean(axis=(0, 1)) for image in images]))

    def embed_texts(self, texts: Sequence[str], title: str) -> Features:
        words = [text.lower().replace(",", " ").split() for text in texts]
        return _unit(np.array([[1e-3 + some.count(color) for color in PRIMARIES] for some in words]))


def _unit(features: NDArray[np.float64]) -> Features:
    unit: Features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    return unit
