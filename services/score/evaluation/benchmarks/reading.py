"""Files of benchmarks: what is missing or has another form is named, with the file and the record.

Captions of the test splits of COCO and Flickr30k are in Karpathy's files or in those of BLIP's authors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from services.core.text_files import Place, read_json
from services.jobs.published_data import Source, described
from services.score.evaluation.records import Record, check_captions, file_of

RowT = TypeVar("RowT")


def listed(path: Path, source: Source, what: str) -> Iterator[tuple[Place, Any]]:
    """Yield the values of a file that is one JSON list, each with its place. Raises BadFile for another file."""
    values = read_json(source.existing(path))
    with described(path, source.name, what):
        if not isinstance(values, list):
            raise TypeError("it is not a list")
    for number, value in enumerate(values, 1):
        yield Place(path, number, ", record "), value


def records_of(
    rows: Iterable[tuple[Place, RowT]], source: Source, what: str, make: Callable[[str, RowT], Record]
) -> list[Record]:
    """Make a record of each row from its id, a number from 0, and the row. Raises BadFile, naming the row's place."""
    found = []
    for number, (place, row) in enumerate(rows):
        with described(place, source.name, what):
            found.append(make(str(number), row))
    return found


def true_first(options: Sequence[str], label: int) -> tuple[str, ...]:
    """Put the option with a number first. Raises ValueError if there is none."""
    if not 0 <= label < len(options):
        raise ValueError(f"label {label} is none of {len(options)} options")
    return (options[label], *options[:label], *options[label + 1 :])


def with_images(records: Iterable[Record], limit: int | None = None) -> tuple[tuple[Record, ...], int]:
    """Keep records whose images are all here, at most `limit`, and count those left out before them.

    For benchmarks that publish only addresses of images, of which some are gone. Where no record has its images, the
    first records are kept: a judge that reads only captions needs none, and any other names the first missing file.
    """
    every = tuple(records)
    kept: list[Record] = []
    num_left_out = 0
    for record in every:
        if len(kept) == limit:
            break
        if all(file_of(image).exists() for image in record.images):
            kept.append(record)
        else:
            num_left_out += 1
    return (tuple(kept), num_left_out) if kept else (every[:limit], 0)


COCO_2014 = Source("COCO's captions and images of 2014 in Karpathy's split", "https://cocodataset.org")
FLICKR30K = Source("Flickr30k in Karpathy's split", "https://shannon.cs.illinois.edu/DenotationGraph")

# Marks that ARO's authors take out of captions.
_MARKS = str.maketrans(dict.fromkeys('.!"()*#:;~', " "))


@dataclass(frozen=True)
class CaptionedImage:
    """An image and what people wrote about it."""

    image: Path
    captions: tuple[str, ...]

    def __post_init__(self) -> None:
        check_captions(self.image.name, self.captions)


def load_coco(folder: Path) -> list[CaptionedImage]:
    """Load 5,000 images from `coco_karpathy_test.json` or `dataset_coco.json`, with `val2014`. Raises BadFile."""
    return _load(folder, ("coco_karpathy_test.json", "dataset_coco.json"), COCO_2014, "val2014")


def load_flickr30k(folder: Path) -> list[CaptionedImage]:
    """Load 1,000 images from `flickr30k_test.json` or `dataset_flickr30k.json`, with `flickr30k-images`.

    Raises BadFile.
    """
    return _load(folder, ("flickr30k_test.json", "dataset_flickr30k.json"), FLICKR30K, "flickr30k-images")


def _load(folder: Path, names: Sequence[str], source: Source, images: str) -> list[CaptionedImage]:
    path = next((folder / name for name in names if (folder / name).exists()), folder / names[0])
    content = read_json(source.existing(path))
    with described(path, source.name, "images with captions"):
        rows = _karpathys(content, images) if isinstance(content, dict) else _blips(content)
        found = [CaptionedImage(folder / name, tuple(captions)) for name, captions in rows]
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
