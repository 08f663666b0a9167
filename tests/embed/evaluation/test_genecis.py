"""GeneCIS is read as it is published, cropped as its authors crop, and scored with ties against the target."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from services.core.text_files import BadFile
from services.embed.evaluation.genecis import Focus, GeneCis, crop_object, evaluate_genecis, load_genecis
from tests.embed.evaluation.data_sets import write_genecis, write_image
from tests.embed.evaluation.embedders import MeanColor
from tests.published_data import published

IMAGES: dict[Focus, str] = {"attribute": "VG", "object": "val2017"}


def load(directory: Path, focus: Focus, limit: int | None = None) -> GeneCis:
    return load_genecis(directory, directory / IMAGES[focus], focus, limit=limit)


@pytest.fixture
def genecis(tmp_path: Path) -> Path:
    return write_genecis(tmp_path)


@pytest.mark.parametrize(("focus", "gallery"), [("attribute", 10), ("object", 12)])
def test_a_query_has_its_condition_reference_and_gallery_with_the_target_first(
    genecis: Path, focus: Focus, gallery: int
) -> None:
    first, *_ = load(genecis, focus).queries
    assert first.condition == "color"
    assert first.reference.path.stem.lstrip("0") == "1"
    assert [picture.path.stem.lstrip("0") for picture in first.gallery[:2]] == ["2", "3"]
    assert len(first.gallery) == gallery
    assert len(load(genecis, focus, limit=2).queries) == 2


@pytest.mark.parametrize("focus", ["attribute", "object"])
def test_targets_of_the_references_colour_are_found_by_colour(genecis: Path, focus: Focus) -> None:
    assert evaluate_genecis(MeanColor(), load(genecis, focus)) == 100


@pytest.mark.parametrize("focus", ["attribute", "object"])
def test_a_target_as_near_as_three_distractors_is_not_found(genecis: Path, focus: Focus) -> None:
    task = load(genecis, focus)
    target = task.queries[0].gallery[0]
    copies = tuple(replace(query, gallery=(target, target, target, target)) for query in task.queries)
    assert evaluate_genecis(MeanColor(), replace(task, queries=copies)) == 0
    assert evaluate_genecis(
        MeanColor(), replace(task, queries=tuple(replace(c, gallery=c.gallery[:3]) for c in copies))
    )


def test_each_condition_is_asked_once_and_each_of_its_images_embedded_once(genecis: Path) -> None:
    by_attribute, by_object = MeanColor(), MeanColor()
    evaluate_genecis(by_attribute, load(genecis, "attribute"))
    evaluate_genecis(by_object, load(genecis, "object"))
    assert by_attribute.asked == ["Focus on the color.", "Focus on the material."]
    assert by_object.asked == ["Is there color?", "Is there material?"]
    assert by_object.num_images == 2 * 13


def test_an_object_is_cropped_with_its_surroundings_and_padded_with_black_to_a_square() -> None:
    pixels = np.arange(100 * 200).reshape(100, 200) % 251
    image = Image.fromarray(np.repeat(pixels[..., None], 3, axis=2).astype(np.uint8))
    # 0.7 · 40 to the left of 60, 0.7 · 20 above 30; the right and the bottom are 1.7 sides from there
    square = np.asarray(crop_object(image, (60, 30, 40, 20)))
    assert square.shape == (68, 68, 3)
    np.testing.assert_array_equal(square[17:51], np.asarray(image)[16:50, 32:100])
    assert not square[:17].any()
    assert not square[51:].any()


def test_a_crop_stays_within_its_image() -> None:
    image = Image.new("RGB", (50, 40), (255, 255, 255))
    # cut at the left and the top first, it reaches 1.7 sides from the corner, or to the other edge
    corner = np.asarray(crop_object(image, (5, 4, 10, 20)))
    assert corner.shape == (34, 34, 3)
    assert corner[:, 8:25].all()
    assert not corner[:, :8].any()
    assert not corner[:, 25:].any()
    assert crop_object(image, (30, 10, 40, 40)).size == (48, 48)


def test_annotations_may_be_gzipped(genecis: Path) -> None:
    plain = genecis / "focus_object.json"
    (genecis / "focus_object.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    expected = load(genecis, "object")
    plain.unlink()
    assert load(genecis, "object") == expected


def test_missing_annotations_and_images_are_named_with_where_they_come_from(genecis: Path) -> None:
    task = load(genecis, "attribute")
    task.queries[0].reference.path.unlink()
    embedder = MeanColor()
    with pytest.raises(BadFile, match=r"1.jpg is missing. It belongs to Visual Genome"):
        evaluate_genecis(embedder, replace(task, queries=task.queries[::-1]))
    assert embedder.num_images == 0
    (genecis / "focus_attribute.json").unlink()
    with pytest.raises(BadFile, match=r"focus_attribute.json is missing.*github.com/facebookresearch/genecis"):
        load(genecis, "attribute")


def test_another_json_is_refused(genecis: Path) -> None:
    (genecis / "focus_object.json").write_text('[{"question": 1}]')
    with pytest.raises(BadFile, match=r"focus_object.json, record 1: condition is missing; there is question"):
        load(genecis, "object")


def test_the_published_object_queries_are_read_and_answered(tmp_path: Path) -> None:
    task = load_genecis(published("genecis"), tmp_path, "object")
    assert len(task.queries) == 1960
    assert {len(query.gallery) for query in task.queries} == {15}
    few = replace(task, queries=task.queries[:4])
    for query in few.queries:
        for picture in (query.reference, *query.gallery):
            assert len(picture.path.stem) == 12
            write_image(picture.path, (10, 10, 250), size=(4, 4))
        for picture in (query.reference, query.gallery[0]):
            write_image(picture.path, (250, 10, 10), size=(4, 4))
    assert evaluate_genecis(MeanColor(), few) > 0
