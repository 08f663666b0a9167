"""Files of benchmarks: what is missing or has another form is named, with the file.

Captions of the test splits of COCO and Flickr30k are in Karpathy's files or in those of BLIP's authors.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.core.text_files import read_json
from services.jobs.published_data import Source, described
from services.score.evaluation.records import Record, check_captions, file_of


def with_images(records: Iterable[Record], source: Source, limit: int | None = None) -> tuple[tuple[Record, ...], int]:
    """Keep records whose images are all here, at most `limit`, and count those left out before them.

    For benchmarks that publish only addresses of images, of which some are gone. Raises BadFile if no record has
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
