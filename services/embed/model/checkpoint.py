"""FocalLens checkpoint directories.

A directory holds the configuration and the merges of an open_clip directory, `model.safetensors` (image tower, frozen
text tower, condition tower) and `focallens.json`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from services.embed.focallens import FocalLens
from services.nn.clip_model import ClipModel, create_clip, half_precision, read_config, write_config
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform

FOCALLENS_CONFIG = "focallens.json"
FOCALLENS_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class FocalLensCheckpoint:
    """A FocalLens model ready to embed."""

    model: FocalLens
    tokenizer: Tokenizer
    transform: ImageTransform


def save_focallens(model: FocalLens, clip: ClipModel, directory: Path) -> None:
    """Write a FocalLens directory with `clip`'s configuration and tokenizer. Weights are stored as float16."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(clip, directory)
    settings = {"condition_layer": model.condition_layer, "visibility": model.visibility}
    (directory / FOCALLENS_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
    save_file(half_precision(model.state_dict()), directory / FOCALLENS_WEIGHTS)


def load_focallens(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> FocalLensCheckpoint:
    """Read a FocalLens directory for inference. Raises OSError, ValueError or RuntimeError if it is not one."""
    clip = create_clip(*read_config(directory))
    model = FocalLens(clip.model, **json.loads((directory / FOCALLENS_CONFIG).read_text()))
    model.load_state_dict(load_file(directory / FOCALLENS_WEIGHTS))
    model.eval().requires_grad_(False)
    return FocalLensCheckpoint(model.to(device=device, dtype=dtype), clip.tokenizer, clip.transform)
