"""Visual instruction data in LLaVA's format, with its images."""

import json
from pathlib import Path

import numpy as np
from PIL import Image


def write_conversations(folder: Path, num_images: int = 4) -> list[str]:
    """Write conversations of one or two turns about grey images, and return the options that name them."""
    records = []
    for i in range(num_images):
        Image.fromarray(np.full((40, 60, 3), 60 * i, dtype=np.uint8)).save(folder / f"{i}.png")
        turns = [{"from": "human", "value": f"<image>\nHow bright is {i}?"}, {"from": "gpt", "value": f"level {i}"}]
        records.append({"id": str(i), "image": f"{i}.png", "conversations": turns * (1 + i % 2)})
    (folder / "llava.json").write_text(json.dumps(records))
    return ["--llava", str(folder / "llava.json"), "--image-folder", str(folder)]
