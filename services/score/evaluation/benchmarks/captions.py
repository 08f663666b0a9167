"""Captions of the test splits of COCO and Flickr30k, in Karpathy's files or in those of BLIP's authors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.jobs.published_data import Source
from services.score.evaluation.benchmarks.reading import described, nonblank, read_json

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
