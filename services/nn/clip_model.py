"""open_clip's models and their directories, with tokenizer and image transform.

A directory holds `open_clip_config.json`, `open_clip_model.safetensors` and, if the model has its own vocabulary,
`bpe.txt.gz` or the files of a Hugging Face tokenizer. Nothing is ever downloaded for a directory.

Two additions to open_clip's configuration: `conv_stem`, the channels of strided convolutions that compute the patches
instead of a single linear layer, and `conv_stem_blocks`, the number of residual blocks after the last strided one, or a
list of the numbers after each. With them a small ViT learns shapes from a thousandth of the images; such models can be
loaded here but not by open_clip.
"""

import copy
import functools
import gzip
import importlib
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from services.core.refusals import Refused
from services.nn.clip_tokenizer import Tokenizer, read_hugging_face_tokenizer
from services.nn.image_transform import ImageTransform
from services.nn.loading import MODEL_CONFIG, declare_torchvision_operators, light_imports, transformers
from services.nn.model_configs import StoredWeights, faults_of, read_config
from services.nn.weight_files import readable_weights

OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
MERGES = "bpe.txt.gz"
# Five times as many bytes as CLIP's merges.
MAX_MERGES_BYTES = 2**24
# The configuration of a text tower of Hugging Face's, in a folder of its own, as transformers reads it.
TEXT_TOWER = "text_tower"
HUGGING_FACE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    f"{TEXT_TOWER}/config.json",
)
PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")
# timm's own names; with a colon or a slash they would be addresses, from which timm downloads.
TIMM_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class ClipModel:
    """An open_clip model with its tokenizer and image transform; `config` is its configuration for open_clip,
    `directory` the place of a Hugging Face tokenizer's files."""

    model: Any
    tokenizer: Tokenizer
    transform: ImageTransform
    config: dict[str, Any]
    merges: Path | None = None
    directory: Path | None = None


@functools.cache
def plain_open_clip() -> Any:
    """Import the open_clip package, which imports torchvision, without the libraries of towers that are not its own."""
    declare_torchvision_operators()
    with light_imports("timm", "transformers"):
        import open_clip

    return open_clip


@functools.cache
def open_clip() -> Any:
    """Import the open_clip package with timm and transformers, as far as they are installed."""
    library = plain_open_clip()
    if library.hf_model.transformers is None or library.timm_model.timm is None:
        with suppress(ModuleNotFoundError):
            transformers()
        with light_imports():
            importlib.reload(library.hf_model)
            importlib.reload(library.timm_model)
    return library


def create_clip(config: dict[str, Any], merges: Path | None = None, directory: Path | None = None) -> ClipModel:
    """Create a randomly initialised open_clip model from a configuration (`model_cfg` and `preprocess_cfg`).

    A Hugging Face tokenizer or text tower is read from `directory`. Raises Refused for a model whose files are not
    there, and for one that open_clip would have to download.
    """
    model = _build(config, directory)
    preprocess = config.get("preprocess_cfg", {})
    size = model.visual.image_size
    return ClipModel(
        model=model,
        tokenizer=_tokenizer(config["model_cfg"]["text_cfg"], merges, directory),
        transform=ImageTransform(
            size=(size, size) if isinstance(size, int) else tuple(size),
            mean=tuple(preprocess.get("mean", plain_open_clip().OPENAI_DATASET_MEAN)),
            std=tuple(preprocess.get("std", plain_open_clip().OPENAI_DATASET_STD)),
            interpolation=preprocess.get("interpolation", "bicubic"),
            resize_mode=preprocess.get("resize_mode", "shortest"),
        ),
        config=config,
        merges=merges,
        directory=directory,
    )


def uses_quick_gelu(name: str, pretrained: str | None) -> bool:
    """Whether weights of a model that open_clip knows were trained with QuickGELU and need `force_quick_gelu`.

    open_clip's configurations of plain names say GELU, even if the weights of a tag (such as OpenAI's) were trained
    with QuickGELU. For a file, only the name under which it is loaded tells: `ViT-B-32-quickgelu`.
    """
    of_tag = open_clip().get_pretrained_cfg(name, pretrained) if pretrained else {}
    return bool(of_tag.get("quick_gelu") or open_clip().get_model_config(name).get("quick_gelu"))


def load_clip(name: str, pretrained: str | None = None) -> ClipModel:
    """Load an open_clip model: a directory in open_clip's format, or a name that open_clip knows with `pretrained`
    weights (a tag, or a file of any kind that open_clip reads).

    Raises Refused for a name that is neither, and for damaged weights.
    """
    directory = Path(name.removeprefix("local-dir:"))
    if (directory / OPEN_CLIP_CONFIG).is_file():
        clip = build_clip(directory)
        with readable_weights(directory):
            clip.model.load_state_dict(load_file(directory / OPEN_CLIP_WEIGHTS))
        return clip
    model_config = open_clip().get_model_config(name)
    if model_config is None:
        raise Refused(f"{name!r} is neither a directory with {OPEN_CLIP_CONFIG} nor a model that open_clip knows")
    quick_gelu = uses_quick_gelu(name, pretrained)
    model = open_clip().create_model(name, pretrained=pretrained, force_quick_gelu=quick_gelu)
    preprocess = {key: model.visual.preprocess_cfg[key] for key in PREPROCESSING}
    clip = create_clip({"model_cfg": {**model_config, "quick_gelu": quick_gelu}, "preprocess_cfg": preprocess})
    clip.model.load_state_dict(model.state_dict())
    return clip


def save_clip(clip: ClipModel, directory: Path) -> None:
    """Write an open_clip directory, which open_clip's own `local-dir:` can load too."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(clip, directory)
    save_file(half_precision(clip.model.state_dict()), directory / OPEN_CLIP_WEIGHTS)


def _read_config(directory: Path) -> tuple[dict[str, Any], Path | None]:
    """Read the configuration of a directory, and name its merges if it has any.

    Raises ValueError for JSON of another form.
    """
    config = json.loads((directory / OPEN_CLIP_CONFIG).read_text())
    model_config = config.get("model_cfg") if isinstance(config, dict) else None
    if not isinstance(model_config, dict) or not {"embed_dim", "vision_cfg", "text_cfg"} <= model_config.keys():
        raise ValueError(f"{directory / OPEN_CLIP_CONFIG} has no model_cfg with embed_dim, vision_cfg and text_cfg")
    merges = directory / MERGES
    return config, merges if merges.is_file() else None


def build_clip(directory: Path) -> ClipModel:
    """Build the model that a directory describes, without its weights.

    Raises ValueError for a description of another form, and Refused for one that asks for more than its weights hold.
    """
    stored = StoredWeights.in_folder(directory)
    config, merges = _read_config(directory)
    stored.check(config, OPEN_CLIP_CONFIG)
    if (tower := directory / TEXT_TOWER / MODEL_CONFIG).is_file():
        read_config(tower.parent, stored, may_choose=False)  # open_clip reads it anew
    with faults_of(OPEN_CLIP_CONFIG), stored.bound(OPEN_CLIP_CONFIG), torch.device("meta"):
        _build(config, directory)
    return create_clip(config, merges, directory)


def write_config(clip: ClipModel, directory: Path) -> None:
    """Write what `build_clip` reads."""
    (directory / OPEN_CLIP_CONFIG).write_text(json.dumps(clip.config, indent=2) + "\n")
    if clip.merges is not None and clip.merges != directory / MERGES:
        shutil.copyfile(clip.merges, directory / MERGES)
    for name in HUGGING_FACE_FILES if clip.directory not in (None, directory) else ():
        assert clip.directory is not None
        if (clip.directory / name).is_file():
            (directory / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(clip.directory / name, directory / name)


def half_precision(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return floating point weights as float16, contiguous and on the CPU."""
    return {
        name: (tensor.half() if tensor.is_floating_point() else tensor).contiguous().cpu()
        for name, tensor in state.items()
    }


def _build(config: dict[str, Any], directory: Path | None) -> Any:
    model_config = _buildable(config["model_cfg"], directory)
    custom_text = model_config.pop("custom_text", False)
    is_plain = not (model_config["text_cfg"].get("hf_model_name") or model_config["vision_cfg"].get("timm_model_name"))
    library = plain_open_clip() if is_plain else open_clip()
    model = (library.CustomTextCLIP if custom_text else library.CLIP)(**model_config)
    if "conv_stem" in config:
        model.visual.conv1 = _conv_stem(config["conv_stem"], config.get("conv_stem_blocks", 0), model.visual)
    return model


class ResidualConvolutions(nn.Module):
    """A block of two 3 × 3 convolutions beside an identity (He et al. 2016), which it is at first: (B, C, H, W) → the
    same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (x + self.layers(x)).relu()
        return y


def _conv_stem(channels: Sequence[int], blocks: int | Sequence[int], visual: Any) -> nn.Sequential:
    """Return 3 × 3 convolutions of stride 2 from RGB to the ViT's width, all but the last with batch norm and ReLU and
    followed by residual `blocks`: a number after each of these, or one number after the last of these. The last one has
    stride 1 if the others make patches of the right size.

    Raises ValueError if the product of their strides is not the patch size.
    """
    patch_size = visual.patch_size[0]
    if patch_size not in (2 ** len(channels), 2 ** (len(channels) + 1)):
        raise ValueError(
            f"conv_stem {list(channels)} makes patches of {2 ** (len(channels) + 1)} pixels, not {patch_size}"
        )
    layers: list[nn.Module] = []
    if isinstance(blocks, int):
        blocks = [*(0 for _ in channels[1:]), blocks]
    inputs = 3
    for outputs, num_blocks in zip(channels, blocks, strict=True):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [ResidualConvolutions(outputs) for _ in range(num_blocks)]
        inputs = outputs
    stride = patch_size // 2 ** len(channels)
    return nn.Sequential(*layers, nn.Conv2d(inputs, visual.conv1.out_channels, 3, stride, 1))


def _buildable(config: dict[str, Any], directory: Path | None) -> dict[str, Any]:
    """Return open_clip's arguments for a model whose weights will be loaded: nothing is fetched for it.

    Raises Refused for what would be, and for models with a decoder.
    """
    if "multimodal_cfg" in config:
        raise Refused("multimodal_cfg: a model with a decoder (CoCa) is not supported")
    text, vision = {**config["text_cfg"]}, {**config["vision_cfg"]}
    text.pop("tokenizer_kwargs", None)
    custom_text = config.get("custom_text", False)
    if (timm_name := vision.get("timm_model_name")) is not None:
        if TIMM_NAME.fullmatch(timm_name) is None:
            raise Refused(f"vision_cfg.timm_model_name is {timm_name!r}: it must be the name of one of timm's models")
        vision["timm_model_pretrained"] = False
    if (tower := text.get("hf_model_name")) is not None:
        folder = None if directory is None else directory / TEXT_TOWER
        if folder is None or not (folder / "config.json").is_file():
            raise Refused(f"text_cfg.hf_model_name is {tower!r}: its configuration is not in {TEXT_TOWER}/config.json")
        text |= {"hf_model_name": str(folder), "hf_model_pretrained": False}
        custom_text = True
    return {**config, "text_cfg": text, "vision_cfg": vision, "custom_text": custom_text}


def _tokenizer(text_config: dict[str, Any], merges: Path | None, directory: Path | None) -> Tokenizer:
    context_length = text_config.get("context_length", 77)
    options = text_config.get("tokenizer_kwargs") or {}
    if name := text_config.get("hf_tokenizer_name"):
        if directory is None or not (directory / "tokenizer.json").is_file():
            raise Refused(f"text_cfg.hf_tokenizer_name is {name!r}: its tokenizer.json is not in the folder")
        mode = text_config.get("tokenizer_mode")
        return read_hugging_face_tokenizer(directory, context_length, {**options, "tokenizer_mode": mode})
    arguments = {name: value for name, value in options.items() if name == "clean"}
    tokenizer_of = _clips_own_tokenizer
    if merges is not None:
        with gzip.open(merges) as file:
            if len(file.read(MAX_MERGES_BYTES + 1)) > MAX_MERGES_BYTES:
                raise Refused(f"{MERGES} unpacks to more than {MAX_MERGES_BYTES} bytes")
        arguments["bpe_path"] = str(merges)
        tokenizer_of = plain_open_clip().tokenizer.SimpleTokenizer
    simple = copy.copy(tokenizer_of(**arguments))
    simple.context_length, simple.cache = context_length, {**simple.cache}
    if simple.vocab_size > (num_rows := text_config.get("vocab_size", simple.vocab_size)):
        raise Refused(
            f"text_cfg.vocab_size is {num_rows}, and the vocabulary has {simple.vocab_size} tokens: a model with a"
            f" vocabulary of its own has it in {MERGES}; publish its folder by `fovea store publish`"
        )
    return Tokenizer(simple, context_length)


@functools.cache
def _clips_own_tokenizer(**arguments: Any) -> Any:
    """Read CLIP's vocabulary, which takes a fifth of a second, once."""
    return plain_open_clip().tokenizer.SimpleTokenizer(**arguments)
