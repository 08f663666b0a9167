"""CLIP's towers in score's and embed's engines, beside open_clip's own encode."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import embed, score
from benchmarks.on_gpu.measuring import DEVICE, DTYPE, Figures, Sizes, Way, compared, without_graphs
from services.embed.focallens import FocalLens
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.image_engine import Checkpoint
from services.embed.model.items import Pixels
from services.nn.captured import MAX_ROWS
from services.nn.clip_model import ClipModel, create_clip
from services.score.engine import ImageItem, ScoreEngine
from services.score.model.checkpoint import FscClipCheckpoint

CONDITIONS = (*embed.CONDITIONS, "What is its texture?")


def towers(sizes: Sizes) -> Iterator[tuple[str, Figures]]:
    clip = create_clip({"model_cfg": sizes.clip_config()})
    clip.model.eval().requires_grad_(False).to(DEVICE, DTYPE)
    # on a CPU engines pack the weights of their model
    scoring = ScoreEngine(FscClipCheckpoint(replace(clip, model=copy.deepcopy(clip.model)), 0.5), DEVICE, DTYPE)
    lens = FocalLens(copy.deepcopy(clip.model), visibility="readout").eval().requires_grad_(False).to(DEVICE, DTYPE)
    embedding = FocalLensEngine(Checkpoint(lens, clip.tokenizer, clip.transform), DEVICE, DTYPE)
    captions = score.Captions()
    for batch in sizes.batches:
        pixels = [scoring.sample_pixels(seed) for seed in range(batch)]
        yield f"batch of {batch}, images", images(clip, scoring, embedding, pixels)
        texts = captions.take(batch)
        ways: dict[str, Way] = {
            "open_clip": partial(encode_texts, clip, clip.tokenizer(texts)),
            "score": partial(scoring.run_batch, [scoring.prepare_caption(text) for text in texts]),
        }
        if batch <= MAX_ROWS:
            ways["score, no graphs"] = without_graphs(ways["score"])
        yield f"batch of {batch}, captions", compared(ways, num_items=batch)


def images(clip: ClipModel, scoring: ScoreEngine, embedding: FocalLensEngine, pixels: Sequence[Pixels]) -> Figures:
    conditions = [embedding.prepare_condition(text) for text in CONDITIONS]
    ways: dict[str, Way] = {
        "open_clip": partial(encode_images, clip, pixels),
        "score": partial(scoring.run_batch, [ImageItem(str(number), one) for number, one in enumerate(pixels)]),
    }
    for name, some in (("no condition", [None]), ("1 condition", conditions[:1]), ("4 conditions", conditions)):
        items = [embedding.prepare_pixels(one, str(number), some) for number, one in enumerate(pixels)]
        ways[f"embed, {name}"] = partial(embedding.run_batch, [item for of_image in items for item in of_image])
    has_graphs = len(pixels) <= MAX_ROWS
    for name in ("score", "embed, no condition", "embed, 1 condition") if has_graphs else ():
        ways[f"{name}, no graphs"] = without_graphs(ways[name])
    found = compared(ways, num_items=len(pixels))
    if has_graphs:
        found["largest difference by graphs"] = f"{difference_by_graphs(ways):.1e}"
    four, one_condition = (found[f"embed, {name}"]["ms"] for name in ("4 conditions", "1 condition"))
    return {**found, "embed, time of 4 conditions over 1": round(four / one_condition, 3)}


def difference_by_graphs(ways: Mapping[str, Any]) -> float:
    """Find the largest difference of a number with and without graphs."""
    scored = [np.stack([one.pooled for one in ways[name]()]) for name in ("score", "score, no graphs")]
    name = "embed, 1 condition"
    embedded = [np.concatenate([one.rows for one in ways[own]()]) for own in (name, f"{name}, no graphs")]
    return max(float(np.abs(some - others).max()) for some, others in (scored, embedded))


@torch.inference_mode()
def encode_images(clip: ClipModel, pixels: Sequence[Pixels]) -> Tensor:
    normalised = clip.transform.normalise(torch.from_numpy(np.stack(pixels)).to(DEVICE)).to(DTYPE)
    features: Any = clip.model.encode_image(normalised, normalize=True)
    return features.float().cpu()  # type: ignore[no-any-return]


@torch.inference_mode()
def encode_texts(clip: ClipModel, input_ids: Tensor) -> Tensor:
    features: Any = clip.model.encode_text(input_ids.to(DEVICE), normalize=True)
    return features.float().cpu()  # type: ignore[no-any-return]
