"""Pictures for training are what their facts say, and a variety draws only what it allows."""

import ast
import math
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from starters import pictures
from starters.pictures.rendering import render
from starters.pictures.shapes import NUM_POINTS, SHAPES, distance_tables
from starters.pictures.things import PAINTS, Background, Picture, Thing
from starters.pictures.variety import MIN_CONTRAST, Variety, draw_picture

WHITE = Background("plain", "white", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
RED, BLUE = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)
SQUARE = Thing("square", "red", "plain", 0.25, 0.5, 0.2, 0.0, RED, BLUE)


def drawn(variety: Variety, count: int = 150) -> list[Picture]:
    random = Random(1)
    return [draw_picture(variety, random) for _ in range(count)]


def test_the_same_random_state_draws_the_same_pixels() -> None:
    first, second = (draw_picture(Variety(), Random(5)) for _ in range(2))
    assert first == second
    assert np.array_equal(render(first, 48), render(second, 48))


def test_a_thing_is_painted_where_its_facts_say() -> None:
    pixels = render(Picture((SQUARE,), WHITE, aspect=2.0), 40)
    assert pixels.shape == (40, 80, 3)
    assert pixels[20, 20].tolist() == [255, 0, 0]
    assert pixels[20, 60].tolist() == [255, 255, 255]
    assert render(Picture((SQUARE,), WHITE, aspect=0.5), 40).shape == (80, 40, 3)


def test_an_outline_shows_the_background_inside() -> None:
    outlined = render(Picture((replace(SQUARE, stroke=0.3),), WHITE), 64)
    assert outlined[32, 16].tolist() == [255, 255, 255]
    assert (outlined[:, :, 1] < 10).any()


@pytest.mark.parametrize("texture", ["striped", "dotted", "checkered", "wavy"])
def test_a_texture_shows_both_colors(texture: str) -> None:
    pixels = render(Picture((replace(SQUARE, texture=texture, radius=0.24),), WHITE), 96)  # type: ignore[arg-type]
    inside = pixels[40:56, 16:32].reshape(-1, 3)
    assert (inside[:, 0] > 200).mean() > 0.15
    assert (inside[:, 2] > 200).mean() > 0.15


def test_every_shape_is_another_and_lies_within_its_table() -> None:
    tables = distance_tables()
    assert tuple(tables) == SHAPES
    areas = {name: (table <= 0).mean() for name, table in tables.items()}
    for name, table in tables.items():
        assert table.shape == (NUM_POINTS, NUM_POINTS)
        edge = np.concatenate([table[0], table[-1], table[:, 0], table[:, -1]])
        assert edge.min() > 0.2, name
        assert 0.08 < areas[name] < 0.4, name
    for first in SHAPES:
        for second in SHAPES[: SHAPES.index(first)]:
            differing = ((tables[first] <= 0) != (tables[second] <= 0)).mean()
            assert differing > 0.015, (first, second)


def test_a_turned_thing_has_other_pixels_but_as_many() -> None:
    arrow = replace(SQUARE, shape="arrow", x=0.5, radius=0.3)
    upright, turned = (render(Picture((replace(arrow, angle=angle),), WHITE), 64) for angle in (0.0, math.pi / 3))
    assert not np.array_equal(upright, turned)
    assert abs(int((upright[..., 1] < 128).sum()) - int((turned[..., 1] < 128).sum())) < 20


def test_a_variety_draws_only_what_it_allows() -> None:
    variety = Variety(
        shapes=("star", "heart"), colors=("red", "blue"), textures=("dotted",), backgrounds=("plain",), counts=(1, 3),
        radii=(0.1, 0.2), outlines=0.0, overlaps=0.0, turned=0.0, compressed=0.0, dark=0.0, max_light=0.0,
        max_noise=0.0,
    )  # fmt: skip
    for picture in drawn(variety):
        assert len(picture.things) in (1, 3)
        assert picture.background.kind == "plain"
        assert picture.jpeg is None
        assert (picture.aspect, picture.brightness, picture.light, picture.noise) == (1.0, 1.0, (0.0, 0.0), 0.0)
        for thing in picture.things:
            assert thing.shape in variety.shapes
            assert thing.color in variety.colors
            assert thing.texture in ("plain", "dotted")
            assert not thing.is_outline
            assert thing.radius <= 0.2
            assert abs(thing.angle) < 0.2


def test_a_variety_bounds_how_fine_and_how_faint_a_texture_is() -> None:
    coarse = Variety(textured=1.0, outlines=0.0, periods=(0.2, 0.9), finest=0.06, mixes=(0.8, 1.0))
    for picture in drawn(coarse):
        for thing in (thing for thing in picture.things if thing.texture != "plain"):
            assert thing.period * thing.radius > 0.06 - 1e-9
            assert 0.2 <= thing.period <= max(0.9, 0.06 / thing.radius)
            assert min(math.dist(thing.second_rgb, (white,) * 3) for white in (0.0, 1.0)) < 0.36


def test_the_default_variety_draws_everything() -> None:
    pictures_ = drawn(Variety(aspects=2.0), 600)
    things = [thing for picture in pictures_ for thing in picture.things]
    assert {thing.shape for thing in things} == set(SHAPES)
    assert {thing.color for thing in things} == set(PAINTS)
    assert {thing.texture for thing in things} == {"plain", "striped", "dotted", "checkered", "wavy"}
    assert {len(picture.things) for picture in pictures_} == {1, 2, 3, 4, 5}
    assert {picture.background.kind for picture in pictures_} == {"plain", "gradient", "pattern", "noise"}
    assert {thing.is_outline for thing in things} == {False, True}
    assert min(picture.aspect for picture in pictures_) < 0.6 < 1.6 < max(picture.aspect for picture in pictures_)


def test_things_lie_inside_apart_and_differ_from_the_background() -> None:
    for picture in drawn(Variety(overlaps=0.0)):
        for number, thing in enumerate(picture.things):
            assert thing.radius <= min(thing.x, thing.y, 1 - thing.x, 1 - thing.y) + 1e-9 or thing.radius > 0.4
            assert math.dist(thing.rgb, picture.background.rgb) >= MIN_CONTRAST
            for other in picture.things[:number]:
                assert math.dist((thing.x, thing.y), (other.x, other.y)) >= thing.radius + other.radius


def test_no_file_imports_the_held_out_suite() -> None:
    for path in Path(pictures.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert "visitor" not in (node.module or "")
