"""Import of MagicLens as its authors publish it: `magic_lens_clip_base.pkl` or `magic_lens_clip_large.pkl`.

The file is a pickle of bytes, which flax made of nested maps of arrays. The towers become those of an open_clip model
with QuickGELU, whose names and axes differ; what follows them keeps its names, with the layer norms' 1 + scale as one
weight.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgpack
import torch
from pydantic import JsonValue
from safetensors.torch import save_file
from torch import Tensor

from services.core.refusals import Refused, shown_names
from services.embed.magiclens import MagicLensShape
from services.embed.model.magiclens_engine import MAGICLENS_CONFIG, MAGICLENS_KIND, MAGICLENS_WEIGHTS
from services.jobs.imports.plan import Plan
from services.jobs.imports.source import Source
from services.jobs.released_weights import read_pickled_bytes
from services.nn.clip_model import OPEN_CLIP_CONFIG

# flax's extensions for an array and for a number that was one of numpy's.
ARRAY, NUMBER = 1, 3
DAMAGED = (AttributeError, msgpack.exceptions.UnpackException, RuntimeError, TypeError, ValueError)
PICKLE = ".pkl"
LAYERS = "multimodal_encoder/x_layers_"
POOLER = "contrastive_multimodal_pooler"


def read_arrays(data: bytes) -> dict[str, Tensor]:
    """Read nested maps of arrays, by their paths: `params/clip/logit_scale`. Raises Refused."""
    try:
        content = msgpack.unpackb(data, ext_hook=_array)
        if not isinstance(content, dict):
            raise ValueError("it is no map")
        return dict(_paths(content))
    except DAMAGED as error:
        raise Refused(f"these are no arrays that flax serialised: {error!r}") from error


def _paths(content: dict[str, Any], above: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in content.items():
        path = f"{above}{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{path}/")
        elif isinstance(value, Tensor):
            yield path, value
        else:
            raise ValueError(f"{path} is a {type(value).__name__}")


def _array(kind: int, data: bytes) -> Tensor:
    if kind not in (ARRAY, NUMBER):
        raise ValueError(f"extension {kind} is none of arrays")
    shape, dtype, buffer = msgpack.unpackb(data)
    known = getattr(torch, str(dtype))
    if not isinstance(known, torch.dtype):
        raise ValueError(f"{dtype!r} is no type of numbers")
    if not buffer:
        return torch.empty(shape, dtype=known)
    return torch.frombuffer(bytearray(buffer), dtype=known).reshape(shape)  # torch warns of memory that is only read


@dataclass(frozen=True)
class MagicLensImport:
    """An import of one file."""

    source: Source

    @classmethod
    def recognises(cls, source: Source) -> bool:
        """Whether a source is one pickle, as nothing else that can be imported is."""
        return len(source.files) == 1 and next(iter(source.files)).endswith(PICKLE)

    def plan(self) -> Plan:
        """Plan the import without reading weights."""
        (file,) = self.source.files
        made = dict.fromkeys((OPEN_CLIP_CONFIG, MAGICLENS_CONFIG, MAGICLENS_WEIGHTS), "the source's weights")
        facts: dict[str, JsonValue] = {"layout": "flax", "architecture": "MagicLens"}
        facts["weight_bytes"] = self.source.files[file]
        return Plan(MAGICLENS_KIND, ("embed",), (), None, (file,), made, {}, facts)

    def build(self, folder: Path) -> None:
        """Convert the source into the folder. Raises Refused."""
        (file,) = self.source.files
        try:
            convert_magiclens(self.source.fetch(file), folder)
        except Refused as error:
            raise Refused(f"{file} holds no MagicLens: {error}") from None


def convert_magiclens(source: Path, output: Path) -> None:
    """Convert a published file into a folder of kind `magiclens`. Raises Refused."""
    arrays = _Arrays(read_arrays(read_pickled_bytes(source)))
    try:
        state = _towers(arrays) | _fusion(arrays)
        clip, shape = _clip_config(arrays), _shape(arrays)
    except (RuntimeError, ValueError) as error:
        what = "" if isinstance(error, Refused) else "its arrays have other shapes: "
        raise Refused(f"{what}{error}") from error
    if unused := arrays.unused:
        raise Refused(f"unexpected arrays: {shown_names(unused)}")
    output.mkdir(parents=True, exist_ok=True)
    (output / OPEN_CLIP_CONFIG).write_text(json.dumps(clip, indent=2) + "\n")
    (output / MAGICLENS_CONFIG).write_text(json.dumps(asdict(shape), indent=2) + "\n")
    save_file({name: weight.contiguous().clone() for name, weight in state.items()}, output / MAGICLENS_WEIGHTS)


class _Arrays:
    """Arrays by their paths below `params`, and which of them were used."""

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        self._arrays = {path.removeprefix("params/"): array for path, array in arrays.items()}
        self._used: set[str] = set()

    def __getitem__(self, path: str) -> Tensor:
        if path not in self._arrays:
            raise Refused(f"{path} is missing")
        self._used.add(path)
        return self._arrays[path]

    @property
    def unused(self) -> list[str]:
        return sorted(self._arrays.keys() - self._used)

    def count(self, prefix: str) -> int:
        """Count the numbered maps whose paths begin so."""
        return len({path.removeprefix(prefix).partition("/")[0] for path in self._arrays if path.startswith(prefix)})


def _towers(arrays: _Arrays) -> dict[str, Tensor]:
    """Name and turn the arrays of both towers as open_clip does."""
    visual, text = "clip/visual", "clip/text"
    state = {
        "visual.class_embedding": arrays[f"{visual}/class_embedding"],
        "visual.positional_embedding": arrays[f"{visual}/positional_embedding"],
        "visual.conv1.weight": arrays[f"{visual}/conv1/kernel"].permute(3, 2, 0, 1),
        "visual.proj": arrays[f"{visual}/proj/kernel"],
        "positional_embedding": arrays[f"{text}/positional_embedding"],
        "token_embedding.weight": arrays[f"{text}/token_embedding/embedding"],
        "text_projection": arrays[f"{text}/text_projection/kernel"],
        "logit_scale": arrays["clip/logit_scale"].reshape(()),
    }
    norms = {f"{visual}/ln_pre": "visual.ln_pre", f"{visual}/ln_post": "visual.ln_post", f"{text}/ln_final": "ln_final"}
    for tower, prefix in ((visual, "visual."), (text, "")):
        for number in range(arrays.count(f"{tower}/transformer/resblocks_")):
            there = f"{tower}/transformer/resblocks_{number}"
            here = f"{prefix}transformer.resblocks.{number}"
            state |= _block(arrays, there, here)
            norms |= {f"{there}/{norm}": f"{here}.{norm}" for norm in ("ln_1", "ln_2")}
    for there, here in norms.items():
        state |= {f"{here}.weight": arrays[f"{there}/scale"], f"{here}.bias": arrays[f"{there}/bias"]}
    return {f"clip.{name}": weight for name, weight in state.items()}


def _block(arrays: _Arrays, there: str, here: str) -> dict[str, Tensor]:
    attention = f"{there}/attn"
    kernels = [arrays[f"{attention}/{one}/kernel"].flatten(1).T for one in ("query", "key", "value")]
    biases = [arrays[f"{attention}/{one}/bias"].flatten() for one in ("query", "key", "value")]
    return {
        f"{here}.attn.in_proj_weight": torch.cat(kernels),
        f"{here}.attn.in_proj_bias": torch.cat(biases),
        f"{here}.attn.out_proj.weight": arrays[f"{attention}/out/kernel"].flatten(0, 1).T,
        f"{here}.attn.out_proj.bias": arrays[f"{attention}/out/bias"],
        **{f"{here}.mlp.{one}.weight": arrays[f"{there}/mlp/{one}/kernel"].T for one in ("c_fc", "c_proj")},
        **{f"{here}.mlp.{one}.bias": arrays[f"{there}/mlp/{one}/bias"] for one in ("c_fc", "c_proj")},
    }


def _fusion(arrays: _Arrays) -> dict[str, Tensor]:
    """Name and turn the arrays of what follows the towers."""
    state = {"query": arrays[f"{POOLER}/pooling_attn_query"]}
    state |= _norm(arrays, f"{POOLER}/pool_attn_ln", "norm") | _attention(arrays, f"{POOLER}/pool_attn", "pooling")
    state["pooling.per_dim_scale"] = arrays[f"{POOLER}/pool_attn/per_dim_scale/per_dim_scale"]
    for number in range(arrays.count(LAYERS)):
        there, here = f"{LAYERS}{number}", f"layers.{number}"
        state |= _norm(arrays, f"{there}/layer_norm", f"{here}.attention_norm")
        state |= _attention(arrays, f"{there}/self_attention", f"{here}.attention")
        state |= _norm(arrays, f"{there}/ff_layer/layer_norm", f"{here}.hidden_norm")
        for name, linear in (("ffn_layer1", "hidden"), ("ffn_layer2", "output")):
            state[f"{here}.{linear}.weight"] = arrays[f"{there}/ff_layer/{name}/linear/w"].T
            state[f"{here}.{linear}.bias"] = arrays[f"{there}/ff_layer/{name}/bias/b"]
    return {f"fusion.{name}": weight for name, weight in state.items()}


def _norm(arrays: _Arrays, there: str, here: str) -> dict[str, Tensor]:
    return {f"{here}.weight": 1 + arrays[f"{there}/scale"], f"{here}.bias": arrays[f"{there}/bias"]}


def _attention(arrays: _Arrays, there: str, here: str) -> dict[str, Tensor]:
    """Turn (D, N, H), which for the last projection are its outputs first, into two axes."""
    state = {}
    for name in ("query", "key", "value"):
        state[f"{here}.{name}.weight"] = arrays[f"{there}/{name}/w"].flatten(1).T
        state[f"{here}.{name}.bias"] = arrays[f"{there}/{name}/b"].flatten()
    state[f"{here}.post.weight"] = arrays[f"{there}/post/w"].flatten(1)
    state[f"{here}.post.bias"] = arrays[f"{there}/post/b"]
    return state


def _clip_config(arrays: _Arrays) -> dict[str, Any]:
    """Tell open_clip the sizes of both towers, and how the authors' inference prepares an image: squashed."""
    patch, _, _, width = arrays["clip/visual/conv1/kernel"].shape
    positions = len(arrays["clip/visual/positional_embedding"])
    query = arrays["clip/visual/transformer/resblocks_0/attn/query/kernel"]
    text_query = arrays["clip/text/transformer/resblocks_0/attn/query/kernel"]
    context_length, text_width = arrays["clip/text/positional_embedding"].shape
    vision = {
        "image_size": math.isqrt(positions - 1) * patch,
        "patch_size": patch,
        "width": width,
        "layers": arrays.count("clip/visual/transformer/resblocks_"),
        "head_width": query.shape[2],
    }
    text = {
        "context_length": context_length,
        "vocab_size": len(arrays["clip/text/token_embedding/embedding"]),
        "width": text_width,
        "heads": text_query.shape[1],
        "layers": arrays.count("clip/text/transformer/resblocks_"),
    }
    embed_dim = arrays["clip/visual/proj/kernel"].shape[1]
    model = {"embed_dim": embed_dim, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    return {"model_cfg": model, "preprocess_cfg": {"interpolation": "bilinear", "resize_mode": "squash"}}


def _shape(arrays: _Arrays) -> MagicLensShape:
    query = arrays[f"{LAYERS}0/self_attention/query/w"]
    pooling = arrays[f"{POOLER}/pool_attn/query/w"]
    return MagicLensShape(
        width=query.shape[0],
        num_layers=arrays.count(LAYERS),
        num_heads=query.shape[1],
        hidden=arrays[f"{LAYERS}0/ff_layer/ffn_layer1/linear/w"].shape[1],
        pooling_width=pooling.shape[1] * pooling.shape[2],
    )
