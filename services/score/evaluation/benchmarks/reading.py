"""Files of benchmarks: what is missing or has another form is named, with the file.

Captions of the test splits of COCO and Flickr30k are in Karpathy's files or in those of BLIP's authors.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.jobs.published_data import MissingData, Source
from services.score.evaluation.records import Record, file_of

# CREPE's fields hold several captions.
MAX_FIELD_CHARACTERS = 1_000_000


@contextmanager
def described(path: Path, name: str, what: str) -> Iterator[None]:
    """Raises MissingData, with the file's name, for a file of another form."""
    try:
        yield
    except (AttributeError, EOFError, LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
        told = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise MissingData(f"{path} holds no {what} of {name}: {told}") from error


def read_json(path: Path, source: Source) -> Any:
    """Read a JSON file. Raises MissingData if it is missing or not JSON."""
    with described(source.existing(path), source.name, "records"):
        return json.loads(path.read_text(encoding="utf-8-sig"))


def nonblank(caption: Any) -> str:
    """Return a caption. Raises ValueError for none."""
    if not isinstance(caption, str) or not caption.strip():
        raise ValueError(f"a caption is {caption!r}")
    return caption


def read_rows(path: Path, source: Source, delimiter: str = ",") -> Iterator[dict[str, str]]:
    """Yield the rows of a table by the names in its first line. Raises MissingData."""
    with described(source.existing(path), source.name, "rows"), path.open(newline="", encoding="utf-8-sig") as file:
        csv.field_size_limit(MAX_FIELD_CHARACTERS)
        yield from csv.DictReader(file, delimiter=delimiter)


def with_images(records: Iterable[Record], source: Source, limit: int | None = None) -> tuple[tuple[Record, ...], int]:
    """Keep records whose images are all here, at most `limit`, and count those left out before them.

    For benchmarks that publish only addresses of images, of which some are gone. Raises MissingData if no record has
    its images, naming the first file.
    """
    kept: list[Record] = []
    missing: list[Path] = []
    num_left_out = 0
    for record in records:
        if len(kept) == limit:
            break
        absent = [file_of(image) for image in record.images if not file_of(image).exists()]
        if absent:
            num_left_out += 1
            missing = missing or absent
        else:
            kept.append(record)
    if not kept and missing:
        source.existing(missing[0])
    return tuple(kept), num_left_out


COCO_2014 = Source("COCO's captions and images of 2014 in Karpathy's split", "https://cocodataset.org")
FLICKR30K = Source("Flickr30k in Karpathy's split", "https://shannon.cs.illinois.edu/DenotationGraph")

# Marks that ARO's authors take out of captions.
_MARKS = str.maketrans(dict.fromkeys('.!"()*#:;~', " "))


@dataclass(frozen=True)
class CaptionedImage:
    """An image and what people wrote about it."""

    image: Path
    captions: tuple[str, ...]


def load_coco(folder: Path) -> list[CaptionedImage]:
    """Load 5,000 images from `coco_karpathy_test.json` or `dataset_coco.json`, with `val2014`. Raises MissingData."""
    return _load(folder, ("coco_karpathy_test.json", "dataset_coco.json"), COCO_2014, "val2014")


def load_flickr30k(folder: Path) -> list[CaptionedImage]:
    """Load 1,000 images from `flickr30k_test.json` or `dataset_flickr30k.json`, with `flickr30k-images`.

    Raises MissingData.
    """
    return _load(folder, ("flickr30k_test.json", "dataset_flickr30k.json"), FLICKR30K, "flickr30k-images")


def _load(folder: Path, names: Sequence[str], source: Source, images: str) -> list[CaptionedImage]:
    path = next((folder / name for name in names if (folder / name).exists()), folder / names[0])
    content = read_json(path, source)
    with described(path, source.name, "images with captions"):
        rows = _karpathys(content, images) if isinstance(content, dict) else _blips(content)
        found = [CaptionedImage(folder / name, tuple(map(nonblank, captions))) for name, captions in rows]
        if not found:
            raise ValueError("it has no images of the test split")
        return found


def _karpathys(content: dict[str, Any], images: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the test split of a file with all splits; Flickr30k's has no folders."""
    for row in content["images"]:
        if row["split"] == "test":
            yield f"{row.get('filepath', images)}/{row['filename']}", [one["raw"] for one in row["sentences"]]


def _blips(content: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the images of a file that has only the test split."""
    for row in content:
        yield row["image"], row["caption"]


def cleaned(caption: str, max_words: int) -> str:
    """Write a caption as ARO's authors do: in lower case, without most marks, and cut to some words."""
    return " ".join(caption.lower().translate(_MARKS).split()[:max_words])
