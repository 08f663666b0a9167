"""ImageNet-Subset (Tables 5.3, D.5): within a kind of thing, images of the same ImageNet class.

The fourteen kinds are nodes of WordNet 3.0; `imagenet_nodes.json` lists the ImageNet classes below each.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.embed.evaluation.embedders import ImageEmbedder
from services.embed.evaluation.labelled_images import LabelledImages, evaluate_category
from services.jobs.published_data import MissingData, Source

SOURCE = Source("ILSVRC 2012, a folder of images for each class", "https://image-net.org/challenges/LSVRC/2012")
NODES_FILE = Path(__file__).parent / "imagenet_nodes.json"


@dataclass(frozen=True)
class Node:
    """A kind of thing: its name in Table D.1, its column in Table D.5, its synset and the classes below it (wnids)."""

    node: str
    column: str
    synset: str
    words: tuple[str, ...]
    classes: tuple[str, ...]


def read_nodes() -> list[Node]:
    """The fourteen kinds, in the order of Table D.1."""
    return [Node(**entry) for entry in json.loads(NODES_FILE.read_text())]


def load_node(directory: Path, node: Node) -> LabelledImages:
    """The images of a kind's classes: `directory/<wnid>/*.JPEG`. Raises MissingData."""
    folders = [SOURCE.existing(directory / wnid) for wnid in node.classes]
    files = [sorted(folder.glob("*.JPEG")) for folder in folders]
    for folder, found in zip(folders, files, strict=True):
        if not found:
            raise MissingData(f"{folder} holds no .JPEG. It belongs to {SOURCE.name}, from {SOURCE.address}")
    labels = np.repeat(np.arange(len(files)), [len(found) for found in files])
    return LabelledImages(SOURCE, tuple(path for found in files for path in found), labels)


def evaluate_imagenet(
    embedder: ImageEmbedder, directory: Path, nodes: Sequence[Node], *, images_per_class: int | None = None
) -> dict[str, float]:
    """mAP in points by column of Table D.5. Raises MissingData."""
    # all are found before the first is embedded
    images = [load_node(directory, node).first_of_each_class(images_per_class) for node in nodes]
    return {
        node.column: evaluate_category(embedder, of_node, node.node.lower())
        for node, of_node in zip(nodes, images, strict=True)
    }
