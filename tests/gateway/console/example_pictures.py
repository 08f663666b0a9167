"""`python -m tests.gateway.console.example_pictures` draws the pictures that ship with the console anew."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from services.jobs.colorshape import (
    BACKGROUNDS,
    COLORS,
    SHAPES,
    TEXTURES,
    Scenes,
    compose_scenes,
    render,
    sample_scenes,
)

FOLDER = Path(__file__).parents[3] / "gateway" / "console" / "page" / "examples"
SIDE = 256
COLORS_SHOWN = ("red", "blue", "green", "orange", "purple", "yellow")
SHAPES_SHOWN = ("star", "heart", "circle", "square")
PAIRS_SHOWN = 3


def gallery() -> tuple[Scenes, list[dict[str, str]]]:
    """Every color with every shape once, each background and pattern with each of them as often as may be."""
    pairs = [(color, shape) for color in range(len(COLORS_SHOWN)) for shape in range(len(SHAPES_SHOWN))]
    background = torch.tensor([(color + shape) % len(BACKGROUNDS) for color, shape in pairs])
    texture = torch.tensor([(color // 2 + shape) % len(TEXTURES) for color, shape in pairs])
    colors = torch.tensor([[list(COLORS).index(COLORS_SHOWN[color])] * 2 for color, _ in pairs])
    shapes = torch.tensor([[SHAPES.index(SHAPES_SHOWN[shape])] * 2 for _, shape in pairs])
    scenes = compose_scenes(colors, shapes, torch.Generator().manual_seed(5))
    scenes = replace(scenes, background=background, texture=texture)
    said = [
        {
            "color": COLORS_SHOWN[color],
            "shape": SHAPES_SHOWN[shape],
            "background": list(BACKGROUNDS)[background[i]],
            "pattern": TEXTURES[texture[i]],
        }
        for i, (color, shape) in enumerate(pairs)
    ]
    return scenes, said


def main() -> None:
    scenes, said = gallery()
    for pixels, words in zip(render(scenes, SIDE), said, strict=True):
        save(pixels, f"{words['color']}-{words['shape']}.jpg")
    listed = {f"{words['color']}-{words['shape']}.jpg": words for words in said}
    (FOLDER / "gallery.json").write_text(json.dumps(listed, indent=1) + "\n")
    for number, pixels in enumerate(
        render(sample_scenes(PAIRS_SHOWN, torch.Generator().manual_seed(11), pair_fraction=1.0), SIDE)
    ):
        save(pixels, f"pair-{number + 1}.jpg")


def save(pixels: torch.Tensor, name: str) -> None:
    Image.fromarray(pixels.numpy()).save(FOLDER / name, quality=80)


if __name__ == "__main__":
    main()
