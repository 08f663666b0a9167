"""Images for the bulk jobs: small, all different, some of them damaged."""

import json
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def jpeg(seed: int) -> bytes:
    """A noisy image of 40 × 30 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def write_images(folder: Path, num_images: int, damaged: tuple[int, ...] = ()) -> Path:
    """`000.jpg`, …; the damaged ones end too early."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_images):
        data = jpeg(number)
        (folder / f"{number:03d}.jpg").write_bytes(data[:200] if number in damaged else data)
    return folder


def write_shard(path: Path, numbers: range) -> Path:
    """A webdataset tar of `000.jpg` with `{"number": 0}` beside it, …"""
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            members = {"jpg": jpeg(number), "json": json.dumps({"number": number}).encode()}
            for suffix, data in members.items():
                member = tarfile.TarInfo(f"{number:03d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, BytesIO(data))
    return path
