"""The fourteen kinds of Table D.1 as WordNet and ImageNet have them, and retrieval within each."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.embed.evaluation.same_class import evaluate_imagenet, load_folders, read_nodes
from tests.embed.evaluation.data_sets import write_imagenet
from tests.embed.evaluation.embedders import MeanColor

# Table D.1, number of classes
PUBLISHED = {
    **{"Dog": 118, "Bird": 59, "Musical Instrument": 28, "Snake": 17, "Fish": 16, "Monkey": 13, "Ball": 10},
    **{"Car": 10, "Edible Fruit": 10, "Beetle": 8, "Cat": 7, "Spider": 6, "Bag": 5, "Piano": 2},
}
# The one count that no node of WordNet 3.0 above ImageNet's classes has: below musical_instrument lie this many.
INSTRUMENTS = 26


def test_the_kinds_have_the_published_numbers_of_classes_but_for_the_instruments() -> None:
    counts = {node.node: len(set(node.classes)) for node in read_nodes()}
    assert list(counts) == list(PUBLISHED)
    assert counts == {**PUBLISHED, "Musical Instrument": INSTRUMENTS}


def test_the_guide_tells_every_kinds_synset_and_number_of_classes() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "evaluate.md").read_text()
    for node in read_nodes():
        row = f"| {node.node} | {node.synset} {node.words[0]} | {len(node.classes)} | {PUBLISHED[node.node]} |"
        assert row in guide


def test_the_kinds_are_sets_of_imagenets_classes() -> None:
    # timm comes with open_clip and knows the thousand classes
    timm = find_spec("timm")
    assert timm is not None and timm.origin is not None
    known = set((Path(timm.origin).parent / "data" / "_info" / "imagenet_synsets.txt").read_text().split())
    assert len(known) == 1000
    for node in read_nodes():
        assert set(node.classes) <= known
        assert len(node.classes) == len(set(node.classes))


def test_pianos_are_instruments_and_dogs_are_no_cats() -> None:
    nodes = {node.node: set(node.classes) for node in read_nodes()}
    assert nodes["Piano"] < nodes["Musical Instrument"]
    assert not nodes["Dog"] & nodes["Cat"]
    assert "n02085620" in nodes["Dog"]  # the Chihuahua
    assert "n02123045" in nodes["Cat"]  # the tabby


def test_images_of_the_same_class_are_retrieved_within_their_kind(tmp_path: Path) -> None:
    nodes = [node for node in read_nodes() if node.node in ("Piano", "Bag")]
    write_imagenet(tmp_path, images_per_class=3)
    embedder = MeanColor()
    scores = evaluate_imagenet(embedder, tmp_path, nodes, images_per_class=2)
    assert scores == pytest.approx({"Bag": 100, "Piano": 100})
    assert embedder.asked == ["What type of bag is in the image?", "What type of piano is in the image?"]
    assert embedder.num_images == 2 * (5 + 2)


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    (piano,) = (node for node in read_nodes() if node.node == "Piano")
    write_imagenet(tmp_path, nodes=["Piano"])
    (tmp_path / piano.classes[0] / "ILSVRC2012_val_00000000.JPEG").unlink()
    assert len(load_folders(tmp_path, piano.classes).paths) == 3
    (tmp_path / piano.classes[0] / "ILSVRC2012_val_00000001.JPEG").unlink()
    with pytest.raises(BadFile, match=rf"{piano.classes[0]} holds 0 images, not 1.*image-net.org"):
        load_folders(tmp_path, piano.classes)
    (tmp_path / piano.classes[0]).rmdir()
    with pytest.raises(BadFile, match=rf"{piano.classes[0]} is missing"):
        load_folders(tmp_path, piano.classes)
