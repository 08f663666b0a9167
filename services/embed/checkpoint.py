"""Checkpoint directories: open_clip's own and FocalLens's, with their tokenizer and image transform.

An open_clip directory holds `open_clip_config.json`, `open_clip_model.safetensors` and, where the model has a
vocabulary of its own, `bpe.txt.gz`. A FocalLens directory holds the same configuration and merges,
`model.safetensors` (image tower, frozen text tower, condition tower) and `focallens.json`.

One addition to open_clip's configuration: `conv_stem`, the channels of strided convolutions that make the patches in
place of a single linear one. A small ViT learns shapes from a thousandth of the images with it; models that have one
load here and not in open_clip.
"""

import functools
import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from services.embed.focallens import FocalLens
from services.nn.torchvision_operators import declare_torchvision_operators

OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
FOCALLENS_CONFIG = "focallens.json"
FOCALLENS_WEIGHTS = "model.safetensors"
MERGES = "bpe.txt.gz"

# Beyond it the ends of an image are cut off before it is resized; the centre crop never sees them.
MAX_ASPECT_RATIO = 32

# SimpleTokenizer remembers every word that it ever saw; a server forgets them at this many.
MAX_REMEMBERED_WORDS = 100_000


@dataclass(frozen=True)
class ImageTransform:
    """open_clip's image preprocessing, split at the point where pixels are still bytes.

    `size` is (height, width) in pixels; `mean` and `std` are those of RGB in 0..1; `resize_mode` is open_clip's
    `shortest` (resize the shorter side, crop the centre) or `squash` (ignore the aspect ratio).
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"

    def __call__(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """An RGB image of any size → (height, width, 3) uint8."""
        resampling = Image.Resampling[self.interpolation.upper()]
        height, width = self.size
        if self.resize_mode == "squash":
            return np.asarray(image.resize((width, height), resampling))
        if height != width:
            raise ValueError(f"resize_mode {self.resize_mode!r} needs a square input, this model's is {self.size}")
        image = _without_far_ends(image)
        short = min(image.size)
        scaled = (height * image.width // short, height * image.height // short)
        if scaled != image.size:
            image = image.resize(scaled, resampling)
        left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
        return np.asarray(image.crop((left, top, left + width, top + height)))

    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, 3, height, width) float32, on the device of `pixels`."""
        mean = torch.tensor(self.mean, device=pixels.device)
        std = torch.tensor(self.std, device=pixels.device)
        return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


def _without_far_ends(image: Image.Image) -> Image.Image:
    """The middle of a very long image: the ends are cropped away anyway, and resizing them first could fill the
    memory (a line of 30,000 pixels becomes a plane of a hundred million)."""
    short = min(image.size)
    width, height = (min(side, MAX_ASPECT_RATIO * short) for side in image.size)
    if (width, height) == image.size:
        return image
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


class Tokenizer:
    """A CLIP tokenizer that can say how long a text is before it cuts it."""

    def __init__(self, tokenizer: Any, context_length: int) -> None:
        self._tokenizer = tokenizer
        self.context_length = context_length

    def num_tokens(self, text: str) -> int:
        """Tokens of a text with its start and end, before any truncation."""
        if hasattr(self._tokenizer, "encode"):
            self._forget_words()
            return len(self._tokenizer.encode(text)) + 2
        return len(self._tokenizer.tokenizer(text)["input_ids"])

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(C, W) int64, padded to and cut at the model's context length."""
        self._forget_words()
        input_ids: Tensor = self._tokenizer(list(texts), context_length=self.context_length)
        return input_ids

    def _forget_words(self) -> None:
        words: dict[str, str] = getattr(self._tokenizer, "cache", {})
        if len(words) > MAX_REMEMBERED_WORDS:
            words.clear()


@dataclass(frozen=True)
class ClipModel:
    """An open_clip model with what stands around it; `config` is open_clip's configuration of it."""

    model: Any
    tokenizer: Tokenizer
    transform: ImageTransform
    config: dict[str, Any]
    merges: Path | None = None


@dataclass(frozen=True)
class FocalLensCheckpoint:
    """A FocalLens model ready to embed."""

    model: FocalLens
    tokenizer: Tokenizer
    transform: ImageTransform


@functools.cache
def open_clip() -> Any:
    """The open_clip package, which imports torchvision."""
    declare_torchvision_operators()
    import open_clip

    return open_clip


def create_clip(config: dict[str, Any], merges: Path | None = None) -> ClipModel:
    """A randomly initialised open_clip model of a configuration (`model_cfg` and `preprocess_cfg`)."""
    model_config = {**config["model_cfg"]}
    text_config = {**model_config["text_cfg"]}
    text_config.pop("tokenizer_kwargs", None)
    model_config["text_cfg"] = text_config
    custom_text = model_config.pop("custom_text", False)
    build = open_clip().CustomTextCLIP if custom_text else open_clip().CLIP
    model = build(**model_config)
    if "conv_stem" in config:
        model.visual.conv1 = _conv_stem(config["conv_stem"], model.visual)
    preprocess = config.get("preprocess_cfg", {})
    return ClipModel(
        model=model,
        tokenizer=_tokenizer(text_config, merges),
        transform=ImageTransform(
            size=tuple(model.visual.image_size),
            mean=tuple(preprocess.get("mean", open_clip().OPENAI_DATASET_MEAN)),
            std=tuple(preprocess.get("std", open_clip().OPENAI_DATASET_STD)),
            interpolation=preprocess.get("interpolation", "bicubic"),
            resize_mode=preprocess.get("resize_mode", "shortest"),
        ),
        config=config,
        merges=merges,
    )


def load_clip(name: str, pretrained: str | None = None) -> ClipModel:
    """An open_clip model: a directory in open_clip's format, or a name that open_clip knows with `pretrained`
    weights (a tag, or a file of any kind that open_clip reads).

    Raises ValueError for a name that is neither.
    """
    directory = Path(name.removeprefix("local-dir:"))
    if (directory / OPEN_CLIP_CONFIG).is_file():
        clip = create_clip(*_read_config(directory))
        clip.model.load_state_dict(load_file(directory / OPEN_CLIP_WEIGHTS))
        return clip
    model_config = open_clip().get_model_config(name)
    if model_config is None:
        raise ValueError(f"{name!r} is neither a directory with {OPEN_CLIP_CONFIG} nor a model that open_clip knows")
    model = open_clip().create_model(name, pretrained=pretrained)
    preprocess = {key: list(value) for key, value in _mean_and_std(model.visual).items()}
    # `-quickgelu` names and OpenAI's weights change the activation, not the configuration file
    uses_quick_gelu = type(model.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    clip = create_clip({"model_cfg": {**model_config, "quick_gelu": uses_quick_gelu}, "preprocess_cfg": preprocess})
    clip.model.load_state_dict(model.state_dict())
    return clip


def save_clip(clip: ClipModel, directory: Path) -> None:
    """Write an open_clip directory, which open_clip's own `local-dir:` loads too."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_config(clip, directory)
    save_file(_half(clip.model.state_dict()), directory / OPEN_CLIP_WEIGHTS)


def save_focallens(model: FocalLens, clip: ClipModel, directory: Path) -> None:
    """Write a FocalLens directory; `clip` lends configuration and tokenizer. Weights are stored as float16."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_config(clip, directory)
    settings = {"condition_layer": model.condition_layer, "visibility": model.visibility}
    (directory / FOCALLENS_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
    save_file(_half(model.state_dict()), directory / FOCALLENS_WEIGHTS)


def load_focallens(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> FocalLensCheckpoint:
    """Read a FocalLens directory for evaluation. Raises OSError, ValueError or RuntimeError where it is not one."""
    clip = create_clip(*_read_config(directory))
    model = FocalLens(clip.model, **json.loads((directory / FOCALLENS_CONFIG).read_text()))
    model.load_state_dict(load_file(directory / FOCALLENS_WEIGHTS))
    model.eval().requires_grad_(False)
    return FocalLensCheckpoint(model.to(device=device, dtype=dtype), clip.tokenizer, clip.transform)


def write_merges(merges: Sequence[tuple[str, str]], path: Path) -> None:
    """A BPE vocabulary in the format of open_clip's SimpleTokenizer: a header line, then a merge a line."""
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    # a fixed time in the gzip header keeps equal vocabularies equal in bytes, and so in digest
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def _conv_stem(channels: Sequence[int], visual: Any) -> nn.Sequential:
    """3 × 3 convolutions of stride 2 from RGB to the ViT's width, each but the last with batch norm and ReLU.

    Raises ValueError where their strides do not multiply to the patch size.
    """
    if 2 ** (len(channels) + 1) != visual.patch_size[0]:
        raise ValueError(
            f"conv_stem {list(channels)} makes patches of {2 ** (len(channels) + 1)} pixels, not {visual.patch_size[0]}"
        )
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in channels:
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Conv2d(inputs, visual.conv1.out_channels, 3, 2, 1))


def _tokenizer(text_config: dict[str, Any], merges: Path | None) -> Tokenizer:
    context_length = text_config.get("context_length", 77)
    arguments = {} if merges is None else {"bpe_path": str(merges)}
    return Tokenizer(open_clip().tokenizer.SimpleTokenizer(context_length=context_length, **arguments), context_length)


def _read_config(directory: Path) -> tuple[dict[str, Any], Path | None]:
    config = json.loads((directory / OPEN_CLIP_CONFIG).read_text())
    merges = directory / MERGES
    return config, merges if merges.is_file() else None


def _write_config(clip: ClipModel, directory: Path) -> None:
    (directory / OPEN_CLIP_CONFIG).write_text(json.dumps(clip.config, indent=2) + "\n")
    if clip.merges is not None and clip.merges != directory / MERGES:
        shutil.copyfile(clip.merges, directory / MERGES)


def _mean_and_std(visual: Any) -> dict[str, Any]:
    mean = getattr(visual, "image_mean", None) or open_clip().OPENAI_DATASET_MEAN
    std = getattr(visual, "image_std", None) or open_clip().OPENAI_DATASET_STD
    return {"mean": mean, "std": std}


def _half(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Floating point weights as float16, contiguous and on the CPU."""
    return {
        name: (tensor.half() if tensor.is_floating_point() else tensor).contiguous().cpu()
        for name, tensor in state.items()
    }
