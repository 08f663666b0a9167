"""A FocalLens checkpoint small enough for every test: random weights, real format, real tokenizer."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from services.embed.focallens import FocalLens, Visibility
from services.embed.model.focallens_engine import save_focallens
from services.nn.clip_model import create_clip

IMAGE_SIZE = 32
CONTEXT_LENGTH = 16
EMBEDDING_WIDTH = 24
NUM_PATCHES = (IMAGE_SIZE // 8) ** 2

CONFIG: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": EMBEDDING_WIDTH,
        "vision_cfg": {"image_size": IMAGE_SIZE, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16},
        "text_cfg": {"context_length": CONTEXT_LENGTH, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
}


def write_tiny_checkpoint(
    directory: Path, *, visibility: Visibility = "readout", condition_layer: int = 0, seed: int = 0
) -> Path:
    """A checkpoint directory of a randomly initialised model; another seed makes another model."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        clip = create_clip(CONFIG)
        model = FocalLens(clip.model, visibility=visibility, condition_layer=condition_layer)
        # as open_clip initialises it, a tower of two blocks hardly looks beyond its own class token
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    save_focallens(model, clip, directory)
    return directory


def wait_until_ready(is_ready: Callable[[], bool], within_s: float = 60.0) -> None:
    """A process that loads its checkpoint beside its server answers probes meanwhile."""
    give_up = time.monotonic() + within_s
    while not is_ready():
        assert time.monotonic() < give_up, f"not ready within {within_s} s"
        time.sleep(0.02)  # nothing announces readiness but the probe itself
