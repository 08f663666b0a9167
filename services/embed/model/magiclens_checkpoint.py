"""MagicLens checkpoint directories.

A directory holds the configuration of an open_clip model, whose towers it has, `model.safetensors` (the towers and what
follows them) and `magiclens.json`, the sizes of what follows them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from services.embed.magiclens import MagicLens, MagicLensShape
from services.nn.clip_model import create_clip, read_config
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import encode_text
from services.nn.vision_transformer import advance, attend, by_head, embed, pool_unscaled, project
from services.nn.weight_files import load_exactly, readable_weights

# the kind of such a directory in manifests of the model store
MAGICLENS_KIND = "magiclens"
MAGICLENS_CONFIG = "magiclens.json"
MAGICLENS_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class MagicLensCheckpoint:
    """A MagicLens ready to embed."""

    model: MagicLens
    tokenizer: Tokenizer
    transform: ImageTransform


def load_magiclens(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> MagicLensCheckpoint:
    """Read a MagicLens directory for inference; only its towers compute in `dtype`.

    Raises OSError, ValueError, TypeError or RuntimeError if it is not one.
    """
    clip = create_clip(*read_config(directory))
    shape = MagicLensShape(**json.loads((directory / MAGICLENS_CONFIG).read_text()))
    model = MagicLens(clip.model, shape, encode_image=encode_image, encode_text=encode_text)
    with readable_weights(directory):
        load_exactly(model, load_file(directory / MAGICLENS_WEIGHTS))
    model.eval().requires_grad_(False).to(device)
    model.clip.to(dtype)
    return MagicLensCheckpoint(model, clip.tokenizer, clip.transform)


def encode_image(clip: Any, pixels: Tensor) -> Tensor:
    """Encode normalised pixels by a plain ViT: (B, 3, height, width) → (B, E), not normalised."""
    visual = clip.visual
    x = embed(visual, pixels.to(visual.conv1.weight.dtype))
    for block in visual.transformer.resblocks:
        x = advance(block, x, attend(*by_head(block, project(block, x))))
    return pool_unscaled(visual, x)
