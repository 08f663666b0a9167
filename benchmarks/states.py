"""A new condition over images that were encoded before: read from their kept states against encoded once more.

python -m benchmarks.states [--rounds 5] [--images 2000]

Both run in the engine of the packaged checkpoint, on one thread, in batches as a collection submits them and in
alternating rounds, each with a new condition. Seconds are processor times, so that other work on the machine matters
little. Encoding starts from decoded pixels, so reading and decoding image files would add to it; reading starts from
states in memory, and in another run from a file of states. The cost that keeping states adds to encoding is reported
too, and the size of a state in bytes.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import services.embed
from benchmarks.record import record, summary
from services.embed.collections.storage.image_states import StateCache
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.items import ImageItem, ImageState, Pixels, Reading, StateItem
from services.jobs.colorshape import render, sample_scenes
from services.nn.clip_texts import Text
from services.nn.devices import DeviceOptions

STARTER = Path(services.embed.__file__).parent / "starter" / "focallens-shapes"
BATCH_SIZE = 64
CONDITIONS = ("What is the color of the object in the image?", "What is its shape?", "Where in the image is it?")


@dataclass(frozen=True)
class Shape:
    """The dimensions that determine the size of a `readout` state."""

    num_patches: int
    num_layers: int
    width: int

    def state_bytes(self, condition_layer: int) -> int:
        """Two bytes for each number of the patches' keys and values in the layers that a condition reads, and of the
        class token where it is not the same for every image."""
        keys_and_values = 2 * (self.num_layers - condition_layer) * self.num_patches * self.width
        return 2 * (keys_and_values + (self.width if condition_layer else 0))


STARTER_SHAPE = Shape(num_patches=16, num_layers=4, width=128)
LARGE_SHAPE = Shape(num_patches=24 * 24, num_layers=24, width=1024)  # ViT-L-14 at 336 pixels


class Gallery:
    """Images, their states in memory and in a file, and an engine that makes rows of each."""

    def __init__(self, engine: FocalLensEngine, pixels: Sequence[Pixels], path: Path) -> None:
        assert engine.state_bytes is not None, "the checkpoint keeps nothing of an image"
        self.engine = engine
        self._pixels = pixels
        self._cache = StateCache.open(path, record_bytes=engine.state_bytes, max_bytes=2**40, identity="benchmark")
        self._states: list[ImageState] = []
        for start in range(0, len(pixels), BATCH_SIZE):
            piece = range(start, min(start + BATCH_SIZE, len(pixels)))
            self._states += [
                reading.state for reading in self.encode_and_keep(piece, None) if reading.state is not None
            ]
        self._cache.put(range(len(pixels)), self._states)

    def close(self) -> None:
        self._cache.close()

    def encode(self, piece: Sequence[int], condition: Text | None) -> list[Reading]:
        return self.engine.run_batch([ImageItem(str(i), self._pixels[i], (condition,)) for i in piece])

    def encode_and_keep(self, piece: Sequence[int], condition: Text | None) -> list[Reading]:
        return self.engine.run_batch(
            [ImageItem(str(i), self._pixels[i], (condition,), keeps_state=True) for i in piece]
        )

    def read(self, piece: Sequence[int], condition: Text | None) -> list[Reading]:
        return self.engine.run_batch([StateItem(str(i), self._states[i], (condition,)) for i in piece])

    def read_from_file(self, piece: Sequence[int], condition: Text | None) -> list[Reading]:
        states = self._cache.get(piece)
        return self.engine.run_batch([StateItem(str(i), states[i], (condition,)) for i in piece])


def compare(gallery: Gallery, num_images: int, num_rounds: int) -> dict[str, Any]:
    """Measure seconds for all images under a new condition, and the speed-up over encoding, round by round."""
    kinds = (gallery.encode, gallery.encode_and_keep, gallery.read, gallery.read_from_file)
    names = [kind.__name__ for kind in kinds]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(num_rounds + 1):
        for name, kind in zip(names, kinds, strict=True):
            condition = gallery.engine.prepare_text(f"{name.replace('_', ' ')} for the {round_number}th time?")
            began = time.thread_time()
            for start in range(0, num_images, BATCH_SIZE):
                kind(range(start, min(start + BATCH_SIZE, num_images)), condition)
            if round_number:  # the first warms up
                seconds[name].append(time.thread_time() - began)
    speedups = {
        f"{name}_speedup": summary([a / b for a, b in zip(seconds["encode"], seconds[name], strict=True)])
        for name in names[1:]
    }
    return {**{f"{name}_s": summary(taken) for name, taken in seconds.items()}, **speedups}


def least_cosine(gallery: Gallery, num_images: int) -> float:
    """Return the least cosine of read and encoded rows, over all images and conditions that the model was tuned for."""
    cosines = []
    for start, question in itertools.product(range(0, num_images, BATCH_SIZE), CONDITIONS):
        piece = range(start, min(start + BATCH_SIZE, num_images))
        condition = gallery.engine.prepare_text(question)
        pairs = zip(gallery.read(piece, condition), gallery.encode(piece, condition), strict=True)
        cosines += [float((read.rows * encoded.rows).sum()) for read, encoded in pairs]
    return min(cosines)


def measure(folder: Path, num_images: int, num_rounds: int) -> dict[str, Any]:
    engine = FocalLensEngine.load(STARTER, DeviceOptions(device="cpu", dtype="float32", num_threads=1))
    assert engine.state_bytes == STARTER_SHAPE.state_bytes(0), "the shape is not the checkpoint's"
    gallery = Gallery(engine, scenes(num_images), folder / "starter.states")
    result = {
        "images": num_images,
        "batch_size": BATCH_SIZE,
        "torch_threads": torch.get_num_threads(),
        **compare(gallery, num_images, num_rounds),
        "least_cosine": least_cosine(gallery, num_images),
        "state_bytes": {
            "starter": STARTER_SHAPE.state_bytes(0),
            "ViT-L-14-336, condition_layer 0": LARGE_SHAPE.state_bytes(0),
            "ViT-L-14-336, condition_layer 12": LARGE_SHAPE.state_bytes(12),
        },
    }
    gallery.close()
    return result


def scenes(num_images: int) -> list[Pixels]:
    """Return rendered scenes, (64, 64, 3) each."""
    generator = torch.Generator().manual_seed(0)
    return list(render(sample_scenes(num_images, generator)).numpy())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="Rounds of the comparison.")
    parser.add_argument("--images", type=int, default=2000, help="Images under each new condition.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), arguments.images, arguments.rounds)
    table = Table("figure", "median", "least to greatest", title=f"A new condition over {arguments.images} images")
    for figure, spread in result.items():
        if isinstance(spread, dict) and "median" in spread:
            table.add_row(figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
    table.add_row("least_cosine", f"{result['least_cosine']:.7f}", "")
    for shape, num_bytes in result["state_bytes"].items():
        table.add_row(f"bytes: {shape}", f"{num_bytes:,.0f}", "")
    Console().print(table)
    record("states", result)


if __name__ == "__main__":
    main()
