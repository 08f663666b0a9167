"""`python -m starters scenes`: generated scenes as captions and images, each with a second caption in other words.

They are data for `fovea curate` where no photographs are at hand.
"""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from PIL import Image

from services.core.durable_files import write_durably
from services.jobs.options import MAX_SEED, command_line, output_folder
from starters.score.data.scene_captions import NUM_STYLES, Facts, detail, sentence
from starters.score.data.scenes import GroupScenes, generator_of, render_scenes, sample_scenes, scene_facts

PAIR_FRACTION = 0.8
# Scenes that are rendered at once.
BATCH = 50
CAPTIONS = "captions.jsonl"
NUM_DICE = 4

app = command_line()


@app.command()
def scenes(
    num_scenes: Annotated[int, typer.Argument(min=1, metavar="NUMBER", help="Number of scenes.")],
    output: Annotated[Path, typer.Option(callback=output_folder, help="Folder of captions.jsonl and the images.")],
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the scenes and their captions.")] = 0,
    side: Annotated[int, typer.Option(min=32, max=1024, help="Side of an image in pixels.")] = 224,
) -> None:
    """Draw scenes and write their captions, for `fovea curate generate` and its recipes."""
    typer.echo(f"{num_scenes:,} captions are in {written_scenes(output, num_scenes, seed=seed, side=side)}")


def written_scenes(folder: Path, num_scenes: int, *, seed: int, side: int) -> Path:
    """Write scenes' images and captions, unless they are there, and return the file of captions.

    The same number, seed and side give the same files. Raises OSError.
    """
    path = folder / CAPTIONS
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for start in range(0, num_scenes, BATCH):
        generator = generator_of(seed, start)
        scenes = sample_scenes(min(BATCH, num_scenes - start), generator, pair_fraction=PAIR_FRACTION)
        _write_images(folder, scenes, start, side)
        dice = torch.rand(len(scenes), NUM_DICE, generator=generator).tolist()
        facts = [detail(one, some) for one, some in zip(scene_facts(scenes), dice, strict=True)]
        lines += [_line(start + place, said) for place, said in enumerate(facts)]
    # last, so that captions without images are never read
    write_durably(path, ["".join(lines).encode()])
    return path


def _write_images(folder: Path, scenes: GroupScenes, start: int, side: int) -> None:
    for place, pixels in enumerate(render_scenes(scenes, side).numpy()):
        Image.fromarray(pixels).save(folder / _filename(start + place))


def _filename(number: int) -> str:
    return f"{number:06d}.png"


def _line(number: int, said: Facts) -> str:
    style = 1 + number % (NUM_STYLES - 1) if len(said.groups) == 1 else 1
    record = {
        "id": f"scene{number}",
        "filename": _filename(number),
        "caption": sentence(said),
        "second_caption": sentence(said, style),
    }
    return json.dumps(record) + "\n"


if __name__ == "__main__":
    app()
