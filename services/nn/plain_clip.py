"""CLIPs as they are published, folders of kind `open-clip`, and any of their towers on a device.

A folder is in open_clip's hub layout: `open_clip_config.json`, `open_clip_model.safetensors` and, if the texts are
tokenised by a Hugging Face tokenizer, its JSON files. Plain ViTs and CLIP's own text tower run in the pieces that the
other checkpoints use; residual networks, SigLIP's towers and everything else in open_clip's own modules.

Shapes: B images, N texts, W text tokens, E embedding width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from services.nn.captured import Captured
from services.nn.clip_model import OPEN_CLIP_WEIGHTS, ClipModel, build_clip
from services.nn.clip_texts import InputIds
from services.nn.clip_tokenizer import Tokenizer
from services.nn.device_copies import to_device
from services.nn.image_transform import ImageTransform
from services.nn.model_configs import check_tokens
from services.nn.packed_linear import can_pack
from services.nn.text_transformer import TextEncoder, is_causal
from services.nn.vision_transformer import PackedBlocks, encode, has_plain_blocks, is_plain_vit, pack_tower, pool
from services.nn.weight_files import EMBEDDINGS, load_exactly, readable_weights

# the kind of such a folder in manifests of the model store
OPEN_CLIP_KIND = "open-clip"
# Pixels of a side for which a tower without patches costs as much as one token of a ViT.
PIXELS_OF_A_TOKEN = 32


@dataclass(frozen=True)
class PlainClip:
    """A model in evaluation mode; `logit_scale` multiplies cosines, and `logit_bias` is added where the model was
    trained with a sigmoid for each pair (SigLIP), None where with a softmax."""

    clip: ClipModel
    logit_scale: float
    logit_bias: float | None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.clip.tokenizer

    @property
    def transform(self) -> ImageTransform:
        return self.clip.transform


def load_plain_clip(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> PlainClip:
    """Read an `open-clip` folder for inference. Raises OSError, ValueError or RuntimeError if it is not one."""
    clip = build_clip(directory)
    with readable_weights(directory):
        state = load_file(directory / OPEN_CLIP_WEIGHTS)
    load_exactly(clip.model, state)
    if (hugging_faces := getattr(clip.tokenizer.wrapped, "tokenizer", None)) is not None:
        for embeddings in [weight for name, weight in state.items() if EMBEDDINGS.fullmatch(name)]:
            check_tokens(hugging_faces, len(embeddings))
    clip.model.eval().requires_grad_(False)
    # before a narrower dtype rounds them
    bias = clip.model.logit_bias
    scale = math.exp(clip.model.logit_scale.item())
    plain = PlainClip(clip, scale, None if bias is None else float(bias.item()))
    clip.model.to(device=device, dtype=dtype)
    return plain


class PlainEncoder:
    """Runs under torch.inference_mode, on one thread at a time. It owns the model, and repacks plain towers on CPUs.

    `reads_padding` tells that a text costs as much as a whole context, however short it is.
    """

    def __init__(self, clip: ClipModel, device: torch.device, dtype: torch.dtype) -> None:
        self._model = clip.model
        self._device = device
        self.reads_padding = not is_causal(self._model)
        self._encode_pixels = Captured(partial(_encode_pixels, clip, dtype))
        self._texts = TextEncoder(clip.model, device)
        if can_pack(device, dtype):
            if is_plain_vit(self._model.visual):
                pack_tower(self._model.visual)
            if is_causal(self._model) and has_plain_blocks(self._model):
                self._model.transformer = PackedBlocks(self._model)

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Encode images (B, height, width, 3) uint8 → (B, E) float32, L2-normalised."""
        (rows,) = self._encode_pixels(to_device(pixels, self._device), num_rows=len(pixels))
        return rows

    def encode_texts(self, texts: Sequence[InputIds]) -> Tensor:
        """Encode token ids (W,) each → (N, E) float32, L2-normalised."""
        return _unit(self._texts.encode(texts))


def _encode_pixels(clip: ClipModel, dtype: torch.dtype, pixels: Tensor) -> tuple[Tensor]:
    x, visual = clip.transform.normalise(pixels).to(dtype), clip.model.visual
    return (_unit(pool(visual, encode(visual, x)) if is_plain_vit(visual) else clip.model.encode_image(x)),)


def embedding_width(clip: ClipModel) -> int:
    """Return E."""
    return int(clip.config["model_cfg"]["embed_dim"])


def num_image_tokens(clip: ClipModel) -> int:
    """Count the tokens of the image tower for one image; of a network without any, what costs about as much."""
    visual = clip.model.visual
    for place in (visual, getattr(visual, "attnpool", None), getattr(visual, "trunk", None)):
        positions = getattr(place, "positional_embedding", None)
        positions = getattr(place, "pos_embed", None) if positions is None else positions
        if isinstance(positions, Tensor):
            return int(positions.shape[-2])
    height, width = clip.transform.size
    return math.ceil(height / PIXELS_OF_A_TOKEN) * math.ceil(width / PIXELS_OF_A_TOKEN)


def tower_name(visual: Any) -> str:
    """Name an image tower for a message: `ModifiedResNet`, or the name of timm's model."""
    return type(getattr(visual, "trunk", visual)).__name__


def tower_width(visual: Any) -> int:
    """Return the numbers in a token of the image tower, or in a pixel of a residual network's last features."""
    if hasattr(visual, "class_embedding"):
        return int(visual.class_embedding.shape[0])
    if hasattr(visual, "attnpool"):
        return int(visual.attnpool.positional_embedding.shape[1])
    return int(visual.trunk.num_features)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x.float(), dim=-1)
