"""Captions of generated scenes, as a file of JSON lines."""

import json
from pathlib import Path
from random import Random

from services.jobs.colorshape import COLORS, RELATIONS, SHAPES
from starters.score.data.scene_captions import Facts, Group, sentence


def scene_caption(random: Random) -> Facts:
    def group() -> Group:
        return Group(random.choice((1, 1, 2)), None, random.choice([*COLORS]), random.choice(SHAPES))

    if random.random() < 0.7:
        return Facts((group(), group()), random.choice(RELATIONS))
    return Facts((group(),), place="top left", background="gray")


def write_scene_captions(path: Path, num_captions: int, seed: int = 0) -> Path:
    """Write captions of scenes, each with another wording of the same facts."""
    random = Random(seed)
    lines = []
    for number in range(num_captions):
        facts = scene_caption(random)
        record = {"id": f"s{number}", "filename": f"{number:04d}.png", "caption": sentence(facts)}
        lines.append(json.dumps({**record, "second_caption": sentence(facts, 1)}) + "\n")
    path.write_text("".join(lines))
    return path
