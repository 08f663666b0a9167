"""The grid shows each query's nearest others under each condition, framed by what they share with it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from services.core.text_files import BadFile
from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS
from services.embed.evaluation.grid import (
    ALIKE,
    QUERY,
    SCENE_CONDITIONS,
    THUMBNAIL,
    UNLIKE,
    Block,
    FolderGallery,
    GridOptions,
    Neighbour,
    Row,
    SceneGallery,
    draw_grid,
    nearest_others,
    retrieve_grid,
)
from tests.embed.evaluation.data_sets import BLUE, RED, write_image
from tests.embed.evaluation.embedders import MeanColor

NAMES = ("CLIP", "FocalLens")


class Scripted:
    """Knows each image by its place: under no condition far from all others, under the first one its neighbours."""

    name = "scripted"
    image_size = 16

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> NDArray[np.float32]:
        angles = np.arange(len(list(images)), dtype=np.float32)
        directions = [angles * (0.01 if instruction is None else -0.02) for instruction in instructions]
        return np.stack([np.stack([np.cos(a), np.sin(a)], axis=1) for a in directions])

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise NotImplementedError


def test_nearest_are_best_first_and_never_the_query() -> None:
    angles = np.deg2rad([0, 30, 5, 90, 10])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    nearest, cosines = nearest_others(embeddings, 0, 3)
    assert nearest.tolist() == [2, 4, 1]
    np.testing.assert_allclose(cosines, np.cos(angles[nearest]), atol=1e-6)
    assert nearest_others(embeddings, 0, 9)[0].tolist() == [2, 4, 1, 3]
    # a copy of the query is a neighbour
    assert nearest_others(np.ones((3, 1), np.float32), 1, 2)[0].tolist() == [0, 2]


@pytest.mark.slow
def test_each_block_has_the_baselines_row_and_one_for_each_condition() -> None:
    gallery = SceneGallery(30)
    blocks = retrieve_grid(gallery, Scripted(), Scripted(), GridOptions(SCENE_CONDITIONS, num_queries=2, k=4))
    assert len(blocks) == 2
    for block in blocks:
        assert [row.condition for row in block.rows] == ["", *SCENE_CONDITIONS]
        assert block.query.size == (QUERY, QUERY)
        plain, *under = block.rows
        assert [one.is_alike for one in plain.neighbours] == [None] * 4
        for row in under:
            assert all(one.is_alike is not None for one in row.neighbours)
            assert all(one.image.size == (THUMBNAIL, THUMBNAIL) for one in row.neighbours)
            cosines = [one.cosine for one in row.neighbours]
            assert cosines == sorted(cosines, reverse=True)
        # neighbours by place lie twice as far under a condition
        assert under[0].neighbours[0].cosine == pytest.approx(np.cos(0.02), abs=1e-4)
        assert plain.neighbours[0].cosine == pytest.approx(np.cos(0.01), abs=1e-4)


def test_scenes_are_alike_in_the_attribute_that_the_condition_names() -> None:
    gallery = SceneGallery(60)
    color, shape = TEST_INSTRUCTIONS["color"], TEST_INSTRUCTIONS["shape"]
    pairs = [(query, other) for query in range(60) for other in range(60)]
    answers = {(gallery.is_alike(*pair, color), gallery.is_alike(*pair, shape)) for pair in pairs}
    assert answers == {(False, False), (False, True), (True, False), (True, True)}
    assert all(gallery.is_alike(query, query, color) for query in range(60))
    assert gallery.is_alike(0, 1, "Something else?") is None


class AlikeInShape(SceneGallery):
    """All scenes share their shape, and nothing else."""

    def is_alike(self, query: int, other: int, condition: str) -> bool | None:
        return condition == TEST_INSTRUCTIONS["shape"]


def test_each_row_is_framed_by_its_own_condition() -> None:
    options = GridOptions([TEST_INSTRUCTIONS[name] for name in ("color", "shape", "size")], num_queries=1, k=2)
    (block,) = retrieve_grid(AlikeInShape(5), Scripted(), Scripted(), options)
    assert [[one.is_alike for one in row.neighbours] for row in block.rows[1:]] == [
        [False] * 2,
        [True] * 2,
        [False] * 2,
    ]


def test_a_seed_draws_the_queries() -> None:
    gallery = SceneGallery(50)
    queries = [
        np.asarray(retrieve_grid(gallery, Scripted(), Scripted(), GridOptions(("?",), 1, 1, seed))[0].query)
        for seed in (0, 0, 1)
    ]
    assert np.array_equal(queries[0], queries[1])
    assert not np.array_equal(queries[0], queries[2])


def test_a_folders_images_are_found_in_all_of_its_folders_and_cut_square(tmp_path: Path) -> None:
    write_image(tmp_path / "b" / "2.JPG", RED, size=(60, 20))
    write_image(tmp_path / "1.jpeg", BLUE)
    (tmp_path / "notes.txt").write_text("no image")
    gallery = FolderGallery(tmp_path)
    assert len(gallery) == 2
    assert [image.size for image in gallery.images(8)] == [(40, 32), (60, 20)]
    assert gallery.thumbnail(1, 50).size == (50, 50)
    assert gallery.is_alike(0, 1, TEST_INSTRUCTIONS["color"]) is None
    blocks = retrieve_grid(gallery, MeanColor(), MeanColor(), GridOptions(("What color?",), num_queries=5))
    assert len(blocks) == 2
    assert {len(row.neighbours) for block in blocks for row in block.rows} == {1}


def test_a_folder_of_fewer_than_two_images_is_refused_by_name(tmp_path: Path) -> None:
    write_image(tmp_path / "1.jpg")
    with pytest.raises(BadFile, match="holds 1 images"):
        FolderGallery(tmp_path)


def block(*, is_alike: tuple[bool | None, ...], num_rows: int = 2, condition: str = "What color?") -> Block:
    gray = Image.new("RGB", (THUMBNAIL, THUMBNAIL), (128, 128, 128))
    neighbours = tuple(Neighbour(gray, 0.5, alike) for alike in is_alike)
    rows = [Row("" if number == 0 else condition, neighbours) for number in range(num_rows)]
    return Block(gray.resize((QUERY, QUERY)), tuple(rows))


def colors(picture: Image.Image) -> dict[tuple[int, ...], int]:
    values, counts = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}


@pytest.mark.slow
def test_frames_are_green_or_red_and_absent_where_nobody_knows() -> None:
    framed = colors(draw_grid([block(is_alike=(True, True, False))], NAMES))
    assert framed[ALIKE] > 1.5 * framed[UNLIKE] > 0
    plain = colors(draw_grid([block(is_alike=(None, None, None))], NAMES))
    assert ALIKE not in plain
    assert UNLIKE not in plain


@pytest.mark.parametrize("condition", ["What color?", "a long question about many things " * 3, "x" * 200])
@pytest.mark.slow
def test_nothing_reaches_into_the_margins_and_every_image_is_whole(condition: str) -> None:
    picture = draw_grid([block(is_alike=(True, False), num_rows=3, condition=condition)] * 2, NAMES)
    pixels = np.asarray(picture)
    for edge in (pixels[:30], pixels[-20:], pixels[:, :30], pixels[:, -30:]):
        assert (edge == 255).all()
    num_thumbnails = 2 * 3 * 2
    assert colors(picture)[(128, 128, 128)] >= 0.75 * (num_thumbnails * THUMBNAIL**2 + 2 * QUERY**2)


def test_a_condition_is_written_as_far_as_its_row_has_room() -> None:
    def picture(condition: str) -> bytes:
        return draw_grid([block(is_alike=(None,), condition=condition)], NAMES).tobytes()

    assert picture("What is the color of the object?") != picture("What is the color of the circle?")
    words = "words " * 18
    assert picture(f"{words} one end") == picture(f"{words} another end")
