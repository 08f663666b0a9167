"""Pictures show what they are said to show, are anti-aliased and real JPEGs, and are the same for the same seed."""

import base64
import io
from random import Random
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from starters.visitor.backgrounds import Background
from starters.visitor.galleries import ALL_RENDERINGS, MANY_WORDS, MIXED, USUAL, gallery_question
from starters.visitor.pictures import COLORS, SHAPES, Picture, Thing, draw_picture, encode_picture

BACKGROUNDS: tuple[Background, ...] = get_args(Background)


def decoded(uri: str) -> Image.Image:
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    image.load()
    return image


def areas(shape: str, **options: object) -> float:
    """Return the share of the picture that a blue thing covers on white."""
    thing = Thing("blue", shape, **options)  # type: ignore[arg-type]
    pixels = np.asarray(draw_picture(Picture((thing,)), Random(0)), dtype=float)
    return float(np.mean(pixels[..., 0] < 150))


def test_a_picture_is_a_jpeg_of_its_size() -> None:
    image = decoded(encode_picture(Picture((Thing("red", "circle"),), size=(120, 80)), Random(0)))
    assert (image.format, image.size, image.mode) == ("JPEG", (120, 80), "RGB")


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_equal_seeds_draw_equal_pictures_on_every_background(background: Background) -> None:
    picture = Picture((Thing("red", "star"),), background)
    assert encode_picture(picture, Random(3)) == encode_picture(picture, Random(3))
    assert encode_picture(picture, Random(3)) != encode_picture(picture, Random(4))


@pytest.mark.parametrize("color", COLORS)
def test_a_thing_has_about_its_color_in_its_middle(color: str) -> None:
    for seed in range(5):
        image = draw_picture(Picture((Thing(color, "circle"),), "noise"), Random(seed))
        middle = np.array(image.getpixel((96, 96)), dtype=float)
        distances = {name: np.abs(middle - np.array(known)).sum() for name, known in COLORS.items()}
        assert min(distances, key=distances.__getitem__) == color


def test_shapes_have_the_areas_of_their_geometry() -> None:
    radius = 0.3
    expected = {"circle": np.pi, "square": 1.6**2, "triangle": 3 * 3**0.5 / 4, "hexagon": 3 * 3**0.5 / 2}
    for shape, area in expected.items():
        assert areas(shape, radius=radius) == pytest.approx(area * radius**2, rel=0.03), shape
        assert areas(shape, radius=radius, angle=33) == pytest.approx(area * radius**2, rel=0.03), shape


def test_no_two_shapes_look_alike() -> None:
    pictures = [np.asarray(draw_picture(Picture((Thing("blue", shape),)), Random(0)), dtype=float) for shape in SHAPES]
    for number, picture in enumerate(pictures):
        assert all(np.mean(np.abs(picture - other)) > 3 for other in pictures[:number])


def test_edges_are_smooth() -> None:
    pixels = np.asarray(draw_picture(Picture((Thing("blue", "circle"),)), Random(0)))[..., 0]
    assert len(np.unique(pixels)) > 6


def test_outlines_are_empty_and_patterns_are_between_outlines_and_full_shapes() -> None:
    full = areas("square")
    assert areas("square", pattern="outline") < 0.45 * full
    assert areas("square", pattern="outline", stroke=0.3) > areas("square", pattern="outline")
    for pattern in ("striped", "dotted", "checkered"):
        assert 0.35 * full < areas("square", pattern=pattern) < 0.9 * full


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no shape is called 'blob'"):
        draw_picture(Picture((Thing("red", "blob"),)), Random(0))


def test_dark_backgrounds_are_dark_and_light_ones_light() -> None:
    for background, (low, high) in {"black": (0, 1), "dark": (10, 50), "white": (254, 255), "pale": (220, 252)}.items():
        pixels = np.asarray(draw_picture(Picture((), background), Random(0)))  # type: ignore[arg-type]
        assert low <= pixels.mean() <= high, background


def test_a_gallery_has_every_color_and_shape_equally_often_and_independently() -> None:
    for words, count in ((None, 32), (MANY_WORDS, 64)):
        options = {} if words is None else {"words": words}
        question = gallery_question(ALL_RENDERINGS[MIXED], Random(0), count, conditions=USUAL, **options)
        colors, shapes = question.right
        classes = list(zip(colors, shapes, strict=True))
        assert {classes.count(one) for one in classes} == {count // (16 if words is None else 64)}
        assert len(set(question.body["images"])) == count
