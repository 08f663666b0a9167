"""An FSC-CLIP checkpoint small enough for every test: random weights, real format, real tokenizer."""

import copy
from pathlib import Path
from typing import Any

import torch

from services.nn.clip_model import ClipModel, create_clip
from services.score.model.checkpoint import FscClipCheckpoint, save_fsc_clip

IMAGE_SIZE = 32
CONTEXT_LENGTH = 24
EMBEDDING_WIDTH = 24
NUM_PATCHES = (IMAGE_SIZE // 8) ** 2

CONFIG: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": EMBEDDING_WIDTH,
        "vision_cfg": {"image_size": IMAGE_SIZE, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16},
        "text_cfg": {"context_length": CONTEXT_LENGTH, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
}


def tiny_clip(
    *, seed: int = 0, vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **config: Any
) -> ClipModel:
    """A randomly initialised model in evaluation mode; `vision`, `text` and `config` change its configuration.

    `conv_stem` stands beside `model_cfg`, everything else in it.
    """
    changed = copy.deepcopy(CONFIG)
    changed["model_cfg"]["vision_cfg"].update(vision or {})
    changed["model_cfg"]["text_cfg"].update(text or {})
    if "conv_stem" in config:
        changed["conv_stem"] = config.pop("conv_stem")
    changed["model_cfg"].update(config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        clip = create_clip(changed)
        # as open_clip initialises it, a tower of two blocks hardly looks beyond its own class token
        for parameter in clip.model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    clip.model.eval()
    return clip


def write_tiny_checkpoint(directory: Path, *, local_weight: float = 0.5, seed: int = 0) -> Path:
    """A checkpoint directory of a randomly initialised model; another seed makes another model."""
    save_fsc_clip(FscClipCheckpoint(tiny_clip(seed=seed), local_weight), directory)
    return directory
