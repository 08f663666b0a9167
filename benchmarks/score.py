"""The score service against plain open_clip code, with random weights and 640 x 480 JPEG photographs.

    python -m benchmarks.score [--rounds 5] [--calls 5] [--loop-pairs 10] [--quick]

Side by side on one machine, in alternating rounds, for a ViT-B-32 and for a small model: one image with 100 captions,
and 32 images with 8 captions each, over HTTP against open_clip in a loop (one forward pass per pair, measured on a few
pairs) and against open_clip batched by hand (all images in one batch, all captions in another). Then known captions
against new ones, and the cost of the local score beyond the global one, which is the only one that the other side
computes. Both sides use the number of threads that suits them best; the client runs on the same cores as the server,
and every image is new to the cache.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np
import orjson
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.photographs import Photographs
from benchmarks.record import record, summary
from benchmarks.served import served
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.nn.clip_model import ClipModel, create_clip, open_clip
from services.nn.devices import DeviceOptions
from services.score.engine import Item, ScoreEngine
from services.score.model.checkpoint import FSC_CLIP_KIND, FscClipCheckpoint, load_fsc_clip, save_fsc_clip
from services.score.model.pairing import PairItem

LARGE = "ViT-B-32"
SMALL = "small"
SMALL_CONFIG: dict[str, Any] = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": 64, "patch_size": 16, "width": 128, "layers": 4, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 3},
}
CAPTIONS_PER_IMAGE = 8

SIZES = ("tiny", "small", "big", "huge", "narrow")
COLORS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey")
THINGS = ("dog", "cat", "car", "bench", "kite", "boat", "horse", "chair", "lamp", "tree", "bird", "ball")
RELATIONS = ("left of", "right of", "above", "below", "behind", "in front of", "next to", "on")

Cosines = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Effort:
    """Effort: rounds of each comparison, calls per side and round, pairs that the loop is measured on; captions of the
    single image, and images with a few captions each."""

    num_rounds: int = 5
    num_calls: int = 5
    num_loop_pairs: int = 10
    num_captions: int = 100
    num_images: int = 32


class Captions:
    """Make sentences of ten to twelve words, all different."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self._seen: set[str] = set()

    def take(self, num_captions: int) -> list[str]:
        taken: list[str] = []
        while len(taken) < num_captions:
            first, second = (
                " ".join(map(str, (self._draw.choice(SIZES), self._draw.choice(COLORS), self._draw.choice(THINGS))))
                for _ in range(2)
            )
            caption = f"a {first} {self._draw.choice(RELATIONS)} a {second} in the park"
            if caption not in self._seen:
                self._seen.add(caption)
                taken.append(caption)
        return taken


class ByHand:
    """The code of an open_clip user, with the number of threads that is fastest for it."""

    def __init__(self, clip: ClipModel, num_threads: int) -> None:
        self._model = clip.model.eval()
        self._tokenizer = clip.tokenizer
        transform = clip.transform
        self._transform = open_clip().image_transform(
            transform.size, is_train=False, mean=transform.mean, std=transform.std
        )
        self.num_threads = {"batched": num_threads, "loop": num_threads}

    def choose_threads(self, file: bytes, captions: Sequence[str]) -> None:
        """Try one thread and all of them, in turn."""
        work: dict[str, Callable[[], object]] = {
            "batched": lambda: self.batched([file], [captions]),
            "loop": lambda: self.loop(file, captions[:2]),
        }
        for name, run in work.items():
            seconds: dict[int, list[float]] = {1: [], self.num_threads[name]: []}
            for _ in range(4):
                for num_threads, taken in seconds.items():
                    self.num_threads[name] = num_threads
                    taken.append(timed(run))
            self.num_threads[name] = min(seconds, key=lambda num_threads: min(seconds[num_threads]))

    def batched(self, files: Sequence[bytes], captions: Sequence[Sequence[str]]) -> list[Cosines]:
        """Compute the cosines of each image with its captions: all images in one batch, all captions in another."""
        torch.set_num_threads(self.num_threads["batched"])
        pixels = torch.stack([self._transform(Image.open(BytesIO(file)).convert("RGB")) for file in files])
        with torch.inference_mode():
            images = self._model.encode_image(pixels, normalize=True)
            texts = self._model.encode_text(self._tokenizer([one for some in captions for one in some]), normalize=True)
            cosines = images @ texts.T
        ends = np.cumsum([len(some) for some in captions])
        return [row[end - len(some) : end].numpy() for row, some, end in zip(cosines, captions, ends, strict=True)]

    def loop(self, file: bytes, captions: Sequence[str]) -> list[float]:
        """Compute a forward pass of both towers for each pair."""
        torch.set_num_threads(self.num_threads["loop"])
        cosines = []
        for caption in captions:
            pixels = self._transform(Image.open(BytesIO(file)).convert("RGB"))[None]
            with torch.inference_mode():
                image, text, _ = self._model(pixels, self._tokenizer([caption]))
                cosines.append(float(image[0] @ text[0]))
        return cosines


@dataclass(frozen=True)
class Client:
    """A client of one served process."""

    session: aiohttp.ClientSession
    url: str

    async def score(self, file: bytes, captions: Sequence[str]) -> list[float]:
        """Return the global cosine of each caption."""
        form = aiohttp.FormData()
        form.add_field("file", file, filename="photo.jpg", content_type="image/jpeg")
        for caption in captions:
            form.add_field("captions", caption)
        async with self.session.post(f"{self.url}/score", data=form) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return [one["global"] for one in answer["scores"]]


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def timed_call(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def publish(folder: Path, name: str) -> None:
    config = {**open_clip().get_model_config(LARGE), "quick_gelu": True} if name == LARGE else SMALL_CONFIG
    torch.manual_seed(0)
    clip = create_clip({"model_cfg": config})
    save_fsc_clip(FscClipCheckpoint(clip, 0.5), folder / name)
    Store.open((folder / "store").as_uri()).publish(name.lower(), folder / name, CheckpointInfo(kind=FSC_CLIP_KIND))


@asynccontextmanager
async def served_score(folder: Path, name: str) -> AsyncIterator[Client]:
    """A service process with default settings."""
    settings = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_SCORE_MODELS": name.lower(),
    }
    async with (
        served("services.score", "FOVEA_SCORE_PORT", settings) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Client(session, url)


@dataclass(frozen=True)
class Comparison:
    """Both sides of one model, and their inputs."""

    client: Client
    by_hand: ByHand
    photographs: Photographs
    captions: Captions
    effort: Effort

    async def check(self) -> None:
        """Raises AssertionError where the sides' results differ."""
        (file,), captions = self.photographs.take(1), self.captions.take(8)
        over_http = await self.client.score(file, captions)
        assert np.abs(self.by_hand.batched([file], [captions])[0] - over_http).max() < 5e-3
        assert np.abs(np.array(self.by_hand.loop(file, captions[:2])) - over_http[:2]).max() < 5e-3

    async def one_image(self) -> dict[str, Any]:
        """Measure milliseconds for one image and many new captions."""
        return _figures(await self._rounds(1, self.effort.num_captions))

    async def many_images(self) -> dict[str, Any]:
        """Measure milliseconds for many images with CAPTIONS_PER_IMAGE new captions each, one request per image."""
        return _figures(await self._rounds(self.effort.num_images, CAPTIONS_PER_IMAGE))

    async def repeated_captions(self) -> dict[str, Any]:
        """Measure milliseconds for a new image with captions that were asked before, and with new ones."""
        num_captions = self.effort.num_captions
        asked = self.captions.take(num_captions)
        await self.client.score(self.photographs.take(1)[0], asked)
        cold: list[float] = []
        warm: list[float] = []
        for _ in range(self.effort.num_rounds):
            for captions, seconds in ((None, cold), (asked, warm)):
                calls = [
                    await timed_call(self.client.score(file, captions or self.captions.take(num_captions)))
                    for file in self.photographs.take(self.effort.num_calls)
                ]
                seconds.append(1e3 * median(calls))
        return {
            "new_ms": summary(cold),
            "asked_before_ms": summary(warm),
            "ratio": summary([a / b for a, b in zip(cold, warm, strict=True)]),
        }

    async def _rounds(self, num_images: int, num_captions: int) -> dict[str, list[float]]:
        """Measure milliseconds of each side in each round; the first round warms up."""
        sides: dict[str, list[float]] = {"http": [], "batched": [], "loop": []}
        for _ in range(self.effort.num_rounds + 1):
            files, captions = self._take(num_images, num_captions)
            pairs = zip(files, captions, strict=True)
            calls = asyncio.gather(*(self.client.score(file, some) for file, some in pairs))
            sides["http"].append(1e3 * await timed_call(calls))
            files, captions = self._take(num_images, num_captions)
            sides["batched"].append(1e3 * timed(lambda: self.by_hand.batched(files, captions)))  # noqa: B023 run at once
            measured = self.captions.take(self.effort.num_loop_pairs)
            seconds = timed(lambda: self.by_hand.loop(files[0], measured))  # noqa: B023 likewise
            sides["loop"].append(1e3 * seconds * num_images * num_captions / len(measured))
        return {name: milliseconds[1:] for name, milliseconds in sides.items()}

    def _take(self, num_images: int, num_captions: int) -> tuple[list[bytes], list[list[str]]]:
        return self.photographs.take(num_images), [self.captions.take(num_captions) for _ in range(num_images)]


def _figures(sides: dict[str, list[float]]) -> dict[str, Any]:
    return {
        **{f"{name}_ms": summary(milliseconds) for name, milliseconds in sides.items()},
        **{
            f"{name}_over_http": summary([a / b for a, b in zip(sides[name], sides["http"], strict=True)])
            for name in ("batched", "loop")
        },
    }


def local_cost(directory: Path, photographs: Photographs, captions: Captions, effort: Effort) -> dict[str, Any]:
    """Measure milliseconds of the engine alone for one image and its captions: encoding both, comparing the pooled
    features, and comparing the tokens as well."""
    engine = ScoreEngine.load(directory, DeviceOptions())
    engine.warm_up()
    figures: dict[str, list[float]] = {"encode_ms": [], "global_ms": [], "both_ms": []}
    for _ in range(effort.num_rounds):
        image = engine.prepare_image(Image.open(BytesIO(photographs.take(1)[0])).convert("RGB"), "photo")
        items: list[Item] = [image, *map(engine.prepare_caption, captions.take(effort.num_captions))]
        began = time.perf_counter()
        picture, *texts = engine.run_batch(items)
        figures["encode_ms"].append(1e3 * (time.perf_counter() - began))
        pair = PairItem(picture, texts)
        repeated = range(effort.num_calls)
        both = [timed(lambda: engine.pairing.run_batch([pair])) for _ in repeated]  # noqa: B023 run at once
        pooled = [timed(lambda: np.stack([one.pooled for one in texts]) @ picture.pooled) for _ in repeated]  # noqa: B023
        figures["both_ms"].append(1e3 * median(both))
        figures["global_ms"].append(1e3 * median(pooled))
    added = [
        (both - pooled) / (encode + pooled)
        for encode, pooled, both in zip(figures["encode_ms"], figures["global_ms"], figures["both_ms"], strict=True)
    ]
    return {**{name: summary(values) for name, values in figures.items()}, "added_share": summary(added)}


async def measure(folder: Path, effort: Effort) -> dict[str, Any]:
    all_threads = torch.get_num_threads()  # read now: an engine changes it to suit its model
    result: dict[str, Any] = {"torch_threads": all_threads, **asdict(effort)}
    one, many = f"1 x {effort.num_captions}", f"{effort.num_images} x {CAPTIONS_PER_IMAGE}"
    photographs, captions = Photographs(), Captions()
    for name in (SMALL, LARGE):
        publish(folder, name)
        by_hand = ByHand(load_fsc_clip(folder / name).clip, all_threads)
        by_hand.choose_threads(photographs.take(1)[0], captions.take(effort.num_captions))
        async with served_score(folder, name) as client:
            comparison = Comparison(client, by_hand, photographs, captions, effort)
            await comparison.check()
            result[f"{name}, {one}"] = await comparison.one_image()
            result[f"{name}, {many}"] = await comparison.many_images()
            result[f"{name}, asked before"] = await comparison.repeated_captions()
        result[f"{name}, local score"] = local_cost(folder / name, photographs, captions, effort)
        result[f"{name}, threads by hand"] = by_hand.num_threads
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="Rounds of each comparison.")
    parser.add_argument("--calls", type=int, default=5, help="Single calls of each side in a round of latency.")
    parser.add_argument("--loop-pairs", type=int, default=10, help="Pairs that the loop is measured on.")
    parser.add_argument("--quick", action="store_true", help="Two rounds of little, shown and not kept.")
    arguments = parser.parse_args()
    effort = Effort(arguments.rounds, arguments.calls, arguments.loop_pairs)
    if arguments.quick:
        effort = Effort(2, 2, 2, num_captions=24, num_images=4)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), effort))
    table = Table("comparison", "figure", "median", "least to greatest", title="Score service")
    for comparison, figures in result.items():
        for figure, spread in figures.items() if isinstance(figures, dict) else ():
            if isinstance(spread, dict):
                table.add_row(comparison, figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
    Console().print(table)
    if arguments.quick:
        print(orjson.dumps(result).decode())
    else:
        record("score", result)


if __name__ == "__main__":
    main()
