"""Hugging Face's `CLIPModel` as an open_clip model: its configuration, names and shapes.

The two compute the same: queries, keys and values are separate matrices here and one there, and projections are
transposed.
"""

import gzip
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from services.core.refusals import Refused
from services.jobs.imports.clip_architecture import OPENAI_MEAN, OPENAI_STD
from services.jobs.imports.source import Source, read_object
from services.jobs.released_weights import State

# transformers writes only what differs from these.
TEXT_DEFAULTS: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "vocab_size": 49408,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}
VISION_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
PROJECTION_DEFAULT = 512
# An end of text that early configurations name wrongly, and that transformers replaces by the highest id.
WRONG_END = 2
OPEN_CLIP_EPS = 1e-5
INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}
TOWERS = {"text_model.": "", "vision_model.": "visual."}
NAMES = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.class_embedding": "class_embedding",
    "embeddings.patch_embedding.weight": "conv1.weight",
    "pre_layrnorm": "ln_pre",
    "post_layernorm": "ln_post",
    "final_layer_norm": "ln_final",
    "encoder.layers": "transformer.resblocks",
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
PROJECTIONS = {"text_projection.weight": "text_projection", "visual_projection.weight": "visual.proj"}
SEPARATE = re.compile(r"(?P<block>.+)\.self_attn\.(?P<part>[qkv])_proj\.(?P<kind>weight|bias)")
PARTS = "qkv"
# CLIP's vocabulary: each byte inside and at the end of a word, then the merges, then start and end of text.
NUM_BYTES = 512
NOT_MERGED = NUM_BYTES + 2


def open_clip_config(config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the open_clip configuration of a `config.json` and a `preprocessor_config.json`, empty if there is none.

    Raises Refused for a model that open_clip can't compute.
    """
    text = _merged(TEXT_DEFAULTS, config.get("text_config"), config.get("text_config_dict"))
    vision = _merged(VISION_DEFAULTS, config.get("vision_config"), config.get("vision_config_dict"))
    acts = {text["hidden_act"], vision["hidden_act"]}
    if len(acts) > 1 or not acts <= {"quick_gelu", "gelu"}:
        raise Refused(f"hidden_act is {' and '.join(sorted(acts))}: it must be quick_gelu or gelu in both towers")
    text_config = {
        "context_length": text["max_position_embeddings"],
        "vocab_size": text["vocab_size"],
        "width": text["hidden_size"],
        "heads": text["num_attention_heads"],
        "layers": text["num_hidden_layers"],
        **_further(text),
    }
    end = text["eos_token_id"]
    if end not in (WRONG_END, text["vocab_size"] - 1):
        text_config |= {"pool_type": "eos", "eos_id": end}
    model = {
        "embed_dim": config.get("projection_dim", PROJECTION_DEFAULT),
        "vision_cfg": {
            "image_size": vision["image_size"],
            "layers": vision["num_hidden_layers"],
            "width": vision["hidden_size"],
            "head_width": vision["hidden_size"] // vision["num_attention_heads"],
            "patch_size": vision["patch_size"],
            **_further(vision),
        },
        "text_cfg": text_config,
    }
    if acts == {"quick_gelu"}:
        model["quick_gelu"] = True
    return {"model_cfg": model, "preprocess_cfg": _preprocessing(preprocessor)}


def open_clip_state(state: Mapping[str, Tensor]) -> State:
    """Return `CLIPModel`'s weights by open_clip's names. Raises Refused for a part of attention that lacks."""
    renamed: State = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, weight in state.items():
        if name in PROJECTIONS:
            renamed[PROJECTIONS[name]] = weight.T
        elif found := SEPARATE.fullmatch(name):
            target = f"{_renamed(found['block'])}.attn.in_proj_{found['kind']}"
            parts.setdefault(target, {})[found["part"]] = weight
        elif not name.endswith("position_ids"):
            renamed[_renamed(name)] = weight
    for target, found_parts in parts.items():
        if missing := [part for part in PARTS if part not in found_parts]:
            raise Refused(f"the file has no {missing[0]}_proj of {target}")
        renamed[target] = torch.cat([found_parts[part] for part in PARTS])
    return renamed


def own_merges(source: Source, known: Sequence[str], vocab_size: int) -> bytes | None:
    """Return the byte-pair merges of a source as open_clip reads them, None if they are CLIP's own (`known`) or lack.

    Raises Refused for a tokenizer that is not of CLIP's kind: bytes, merges in their order, start and end.
    """
    if "merges.txt" in source.files:
        lines = source.fetch("merges.txt").read_text(encoding="utf-8").splitlines()
        merges = [line for line in lines if line.strip() and not line.startswith("#version")]
        vocabulary = read_object(source, "vocab.json")
    elif "tokenizer.json" in source.files:
        model = read_object(source, "tokenizer.json").get("model") or {}
        vocabulary = model.get("vocab") or {}
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges") or ()]
    else:
        return None
    if merges == list(known):
        return None
    ids = {merge: vocabulary.get(merge.replace(" ", "")) for merge in merges if vocabulary}
    if len(merges) + NOT_MERGED != vocab_size or any(
        number != NUM_BYTES + place for place, number in enumerate(ids.values())
    ):
        raise Refused(f"a tokenizer with {len(merges)} merges and {vocab_size} tokens is not of CLIP's kind")
    # a fixed time in the gzip header makes equal vocabularies equal bytes
    return gzip.compress("\n".join(["#version: 0.2", *merges]).encode(), mtime=0)


def _merged(defaults: Mapping[str, Any], *given: Mapping[str, Any] | None) -> dict[str, Any]:
    merged = dict(defaults)
    for one in given:
        merged |= {name: value for name, value in (one or {}).items() if value is not None}
    return merged


def _further(tower: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in which a tower differs from open_clip's own ones."""
    further: dict[str, Any] = {}
    if tower["intermediate_size"] != 4 * tower["hidden_size"]:
        further["mlp_ratio"] = tower["intermediate_size"] / tower["hidden_size"]
    if tower["layer_norm_eps"] != OPEN_CLIP_EPS:
        further["norm_kwargs"] = {"eps": tower["layer_norm_eps"]}
    return further


def _preprocessing(preprocessor: Mapping[str, Any]) -> dict[str, Any]:
    resample = preprocessor.get("resample", 3)
    if resample not in INTERPOLATIONS:
        raise Refused(f"preprocessor_config.json: resample is {resample}: it must be 2 or 3")
    preprocessing = {
        "mean": list(preprocessor.get("image_mean") or OPENAI_MEAN),
        "std": list(preprocessor.get("image_std") or OPENAI_STD),
        "interpolation": INTERPOLATIONS[resample],
    }
    size = preprocessor.get("size")
    is_squashed = isinstance(size, dict) and "height" in size and not preprocessor.get("do_center_crop", True)
    return {**preprocessing, "resize_mode": "squash" if is_squashed else "shortest"}


def _renamed(name: str) -> str:
    for tower, prefix in TOWERS.items():
        if name.startswith(tower):
            name = prefix + name.removeprefix(tower)
    for theirs, ours in NAMES.items():
        name = re.sub(rf"(?<![a-z0-9_]){re.escape(theirs)}(?![a-z0-9_])", ours, name)
    return name
