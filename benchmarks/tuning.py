"""Training images a second of `fovea train fsc-clip`'s loop, against open_clip's own loop with the plain loss.

    python -m benchmarks.tuning [--rounds 4] [--steps 2] [--batch-size 32] [--models ViT-B-32 small] [--quick]

The same random weights, JPEG files, captions and number of threads for all, in rounds of rotating order: a ViT-B-32 on
640 x 480 photographs and a small model on 160 x 120 ones, in float32. Ours for `clip` (the plain loss), `global`
(FSC-CLIP without its local loss) and `fsc-clip` (three hard negatives a caption, made in the loop); open_clip's is
`open_clip_train.train.train_one_epoch`, with its own reader of shards where that is installed:

    pip install webdataset==0.2.86 pandas

A step is measured from one forward pass to the next, so it includes reading, negatives, backward pass and optimizer;
the first of each round, in which AdamW creates its state, does not count. Captions are new in each round, their words
are known.

On a GPU: ViT-B-32 at batch 256 in bfloat16 autocast on batches prepared in memory, with the peak memory of each, and
the time that one core needs to make a batch.
"""

import argparse
import contextlib
import copy
import gc
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import orjson
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.captioned_photographs import write_shards
from benchmarks.open_clip_training import Batches, OpenClipTraining, has_webdataset
from benchmarks.record import record, summary
from benchmarks.score import LARGE, SMALL, SMALL_CONFIG
from services.jobs.training import train
from services.nn.clip_model import ClipModel, create_clip, open_clip
from services.score.data.captioned_images import open_shards
from services.score.negatives.hard_negatives import HardNegatives, installed_hard_negatives
from services.score.training.batches import ImageSource, TuningBatch, TuningData
from services.score.training.objectives import Method, TuningLoss
from services.score.training.recipe import Recipe

OPEN_CLIP = "open_clip"
METHODS: tuple[Method, ...] = ("clip", "global", "fsc-clip")
SIDES = (OPEN_CLIP, *METHODS)
NUM_WARMUP = 1
PHOTOGRAPH = {LARGE: (640, 480), SMALL: (160, 120)}
# The small model's steps are short, so more of them are measured, by this factor.
MORE_STEPS = {LARGE: 1, SMALL: 4}
# For batches in memory: their number, and the number of warm-up steps.
NUM_READY, NUM_READY_WARMUP = 4, 10
# Steps that each side is told to train for; measurement ends earlier.
LONG_RUN = 10_000


@dataclass(frozen=True)
class Effort:
    """Effort: rounds, measured steps per side and round, images per step."""

    num_rounds: int
    num_steps: int
    batch_size: int


class Enough(Exception):
    """Ends a loop that would train for longer."""


class StopWatch:
    """Measures a training loop from inside, and ends it: the seconds from the forward pass after `num_warmup` steps to
    that `num_steps` later. Both sides call the patches' convolution once per step."""

    def __init__(self, clip: ClipModel, num_warmup: int, num_steps: int) -> None:
        self._visual = clip.model.visual
        self._first, self._last = num_warmup, num_warmup + num_steps
        self._num_passes = 0
        self._began = 0.0
        self._seconds = 0.0

    def seconds(self, loop: Callable[[], None]) -> float:
        """Return the seconds per step of the loop."""
        hook = self._visual.conv1.register_forward_pre_hook(self._pass)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # progress bars
                loop()
        except Enough:
            return self._seconds / (self._last - self._first)
        finally:
            hook.remove()
        raise AssertionError(f"the loop ended after {self._num_passes} of {self._last} steps")

    def _pass(self, *_: object) -> None:
        if self._num_passes == self._first:
            self._began = _now()
        elif self._num_passes == self._last:
            self._seconds = _now() - self._began
            raise Enough
        self._num_passes += 1


@dataclass(frozen=True)
class Ready:
    """Prepared batches, repeated: by step, or as an epoch of `num_batches`."""

    made: Sequence[Any]
    num_batches: int

    def __call__(self, step: int) -> Any:
        return self.made[step % len(self.made)]

    def __iter__(self) -> Iterator[Any]:
        return islice(cycle(self.made), self.num_batches)


@dataclass(frozen=True)
class Comparison:
    """All sides on one model and the same shards; `is_ready` where batches are in memory before a loop begins."""

    clip: ClipModel
    shards: str
    effort: Effort
    negatives: HardNegatives
    device: torch.device
    is_ready: bool

    def check(self) -> None:
        """Raises AssertionError where the plain losses of both sides differ on the same batch."""
        batch = self._data("clip", 0)(0)
        loss = TuningLoss((self.clip.model, self.clip.transform), "clip").eval()
        with torch.inference_mode():
            ours = float(loss(batch.to(self.device)))
        pixels = batch.pixels(self.clip.transform).to(self.device)
        theirs = self._open_clip().loss(pixels, batch.input_ids.to(self.device))
        assert abs(ours - theirs) < 1e-3 * abs(theirs), (ours, theirs)

    def rounds(self, folder: Path) -> dict[str, Any]:
        """Measure all sides; the first round warms up and is not counted."""
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        making: dict[str, list[float]] = {"batch": [], "negatives": []}
        memory: dict[str, int] = {}
        for number in range(self.effort.num_rounds + 1):
            turn = number % len(SIDES)
            for side in (*SIDES[turn:], *SIDES[:turn]):
                self._forget()
                seconds[side].append(self._seconds(side, number, folder / f"{number}-{side}"))
                memory[side] = torch.cuda.max_memory_allocated() >> 20 if self.device.type == "cuda" else 0
            for name, spent in self._making(number).items():
                making[name].append(spent)
        counted = {side: values[1:] for side, values in seconds.items()}
        figures = _figures(counted, {name: values[1:] for name, values in making.items()}, self.effort.batch_size)
        return {**figures, "peak_memory_mib": memory} if self.device.type == "cuda" else figures

    def _seconds(self, side: str, number: int, output: Path) -> float:
        watch = StopWatch(self.clip, NUM_READY_WARMUP if self.is_ready else NUM_WARMUP, self.effort.num_steps)
        if side == OPEN_CLIP:
            training = self._open_clip()
            batches: Batches = training.batches()
            if self.is_ready:
                batches = Ready(list(islice(batches, NUM_READY)), LONG_RUN)
            return watch.seconds(lambda: training.run(batches, LONG_RUN))
        recipe = self._recipe(side)
        run = replace(recipe.run(output, None, seed=0), precision="bf16" if self.device.type == "cuda" else "no")
        make_batch: Callable[[int], TuningBatch] = self._data(side, number)
        if self.is_ready:
            make_batch = Ready([make_batch(step) for step in range(NUM_READY)], LONG_RUN)
        loss = TuningLoss((self.clip.model, self.clip.transform), recipe.method, recipe.weights)
        return watch.seconds(lambda: train(run, loss, make_batch))

    def _making(self, number: int) -> dict[str, float]:
        """Measure this process's seconds for a batch of `fsc-clip` from disk, and for its negatives alone, with
        captions that the round has not read."""
        data = self._data("fsc-clip", number)
        _, captions, *_ = data.source.draw(number, 0, self.effort.batch_size)
        began = time.perf_counter()
        data(0)
        read = time.perf_counter()
        negatives = copy.copy(self.negatives)
        for place, caption in enumerate(captions):
            negatives.make(caption, self._recipe("fsc-clip").kinds, place)
        return {"batch": read - began, "negatives": time.perf_counter() - read}

    def _data(self, side: str, number: int) -> TuningData:
        source = ImageSource(open_shards([self.shards]), self.clip.transform)
        kinds = self._recipe(side).kinds
        # a copy knows the same words but no captions yet
        made = copy.copy(self.negatives)
        return TuningData(source, self.clip.tokenizer, made, kinds, number, self.effort.batch_size)

    def _recipe(self, side: str) -> Recipe:
        (method,) = (method for method in METHODS if method == side)
        return Recipe(method=method, batch_size=self.effort.batch_size, steps=LONG_RUN)

    def _open_clip(self) -> OpenClipTraining:
        num_images = num_images_of(self.effort, is_ready=self.is_ready)
        precision = "amp_bf16" if self.device.type == "cuda" else "fp32"
        return OpenClipTraining(self.clip, self.shards, num_images, self.effort.batch_size, self.device, precision)

    def _forget(self) -> None:
        """Free the memory of the previous side."""
        self.clip.model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def num_images_of(effort: Effort, *, is_ready: bool) -> int:
    """Return the images on disk: an epoch longer than a measurement, so that a round reads no caption twice."""
    return effort.batch_size * (NUM_READY if is_ready else NUM_WARMUP + effort.num_steps + 2)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _figures(seconds: dict[str, list[float]], making: dict[str, list[float]], batch_size: int) -> dict[str, Any]:
    """Summarise images a second, and ratios of the sides within each round."""

    def share(part: Sequence[float], whole: Sequence[float]) -> dict[str, float | int]:
        return summary([a / b for a, b in zip(part, whole, strict=True)])

    added = [a / b - 1 for a, b in zip(seconds["fsc-clip"], seconds["global"], strict=True)]
    return {
        **{f"{side}_images_per_s": summary([batch_size / value for value in seconds[side]]) for side in SIDES},
        **{f"{method}_over_open_clip": share(seconds[OPEN_CLIP], seconds[method]) for method in METHODS},
        "fsc-clip_over_clip": share(seconds["clip"], seconds["fsc-clip"]),
        "local_loss_added_share": summary(added),
        "negatives_share_of_step": share(making["negatives"], seconds["fsc-clip"]),
        "negatives_ms_per_batch": summary([1e3 * value for value in making["negatives"]]),
        "batch_from_disk_ms": summary([1e3 * value for value in making["batch"]]),
    }


def create(name: str) -> ClipModel:
    """Create a model with random weights, and the outputs that open_clip's loop reads by name."""
    torch.manual_seed(0)
    config = open_clip().get_model_config(LARGE) if name == LARGE else SMALL_CONFIG
    clip = create_clip({"model_cfg": config})
    clip.model.output_dict = True
    return clip


def measure(folder: Path, effort: Effort, models: Sequence[str]) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_gpu = device.type == "cuda"
    negatives = installed_hard_negatives()
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "torch_threads": torch.get_num_threads(),
        "precision": "bf16" if is_gpu else "float32",
        "open_clip_reader": "webdataset" if has_webdataset() else "ours",
        "wordnet": negatives.sources["wordnet"] is not None,
        "tagger": negatives.sources["tagger"],
    }
    for name in models:
        own = replace(effort, num_steps=effort.num_steps * MORE_STEPS[name])
        num_images = num_images_of(own, is_ready=is_gpu)
        shards = write_shards(folder / name, num_images, 4, PHOTOGRAPH[name])
        clip = create(name)
        clip.model.to(device)
        comparison = Comparison(clip, shards, own, negatives, device, is_ready=is_gpu)
        comparison.check()
        result[f"{name}, batch {own.batch_size}, {own.num_steps} steps"] = comparison.rounds(folder / f"{name}-runs")
    return result


def show(result: dict[str, Any]) -> None:
    title = f"Tuning on {result['device']}, {result['torch_threads']} threads"
    table = Table("model", "figure", "median", "least to greatest", title=title)
    for model, figures in result.items():
        for figure, spread in figures.items() if isinstance(figures, dict) else ():
            if "median" in spread:
                table.add_row(model, figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
            else:
                table.add_row(model, figure, ", ".join(f"{side} {value}" for side, value in spread.items()), "")
    Console(width=120).print(table)


def main() -> None:
    is_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4, help="Rounds, after one that warms up.")
    parser.add_argument(
        "--steps",
        type=int,
        default=30 if is_gpu else 2,
        help="Measured steps of a side in a round, four times as many of the small model.",
    )
    parser.add_argument("--batch-size", type=int, default=256 if is_gpu else 32, help="Images a step.")
    models = [LARGE] if is_gpu else [LARGE, SMALL]
    parser.add_argument("--models", nargs="+", choices=PHOTOGRAPH, default=models, help="Both, on a GPU the large one.")
    parser.add_argument("--quick", action="store_true", help="Two rounds of little, shown and not kept.")
    arguments = parser.parse_args()
    effort = Effort(arguments.rounds, arguments.steps, arguments.batch_size)
    if arguments.quick:
        effort = Effort(2, 1, 4)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), effort, arguments.models)
    show(result)
    if arguments.quick:
        print(orjson.dumps(result).decode())
    else:
        record("tuning", result)


if __name__ == "__main__":
    main()
