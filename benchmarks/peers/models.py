"""One CLIP model of random weights in the layouts that different servers read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.focallens import FocalLens
from services.embed.model.focallens_engine import save_focallens
from services.nn.clip_model import ClipModel, create_clip, open_clip

ARCHITECTURE = "ViT-B-32"
FOVEA_MODEL = "peer"


@dataclass(frozen=True)
class ModelFolders:
    """The folders of the same weights in three formats: Fovea's store, open_clip's, and transformers' CLIPModel."""

    store: Path
    open_clip: Path
    transformers: Path


def write_models(folder: Path) -> ModelFolders:
    """Write the models. Weights are representable in float16, in which Fovea stores them; every server uses float32.

    Of the two visibilities of a condition, `full` embeds an image without a condition exactly as CLIP does.
    """
    torch.manual_seed(0)
    clip = create_clip({"model_cfg": open_clip().get_model_config(ARCHITECTURE)})
    clip.model.load_state_dict({name: _in_half_steps(tensor) for name, tensor in clip.model.state_dict().items()})
    folders = ModelFolders(folder / "store", folder / "open_clip", folder / "transformers")
    _write_fovea(clip, folder / "focallens", folders.store)
    _write_open_clip(clip, folders.open_clip)
    _write_transformers(clip, folders.transformers)
    return folders


def _in_half_steps(tensor: Tensor) -> Tensor:
    return tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor


def _write_fovea(clip: ClipModel, directory: Path, store: Path) -> None:
    save_focallens(FocalLens(clip.model, visibility="full"), clip, directory)
    Store.open(store.as_uri()).publish(FOVEA_MODEL, directory, CheckpointInfo(kind="focallens-clip"))


def _write_open_clip(clip: ClipModel, directory: Path) -> None:
    """Write the directory that `open_clip.create_model_and_transforms("local-dir:…")` reads."""
    directory.mkdir()
    preprocess = {"mean": clip.transform.mean, "std": clip.transform.std}
    (directory / "open_clip_config.json").write_text(json.dumps({**clip.config, "preprocess_cfg": preprocess}))
    _save(clip.model.state_dict(), directory / "open_clip_model.safetensors")


def _write_transformers(clip: ClipModel, directory: Path) -> None:
    """Write the directory that `AutoModel` and `AutoProcessor` of transformers read."""
    directory.mkdir()
    tokenizer = open_clip().tokenizer.SimpleTokenizer()
    vocabulary = {_as_transformers_writes(token): index for token, index in tokenizer.encoder.items()}
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.get)
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(merge) for merge in merges)]) + "\n")
    for name, content in {
        "config.json": _config(clip.config["model_cfg"]),
        "preprocessor_config.json": _preprocessor(clip),
        "vocab.json": vocabulary,
        "tokenizer_config.json": {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77},
    }.items():
        (directory / name).write_text(json.dumps(content))
    _save(transformers_weights(clip.model.state_dict()), directory / "model.safetensors")


def _as_transformers_writes(token: str) -> str:
    return {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}.get(token, token)


def _config(model: dict[str, Any]) -> dict[str, Any]:
    vision, text = model["vision_cfg"], model["text_cfg"]
    shared = {"hidden_act": "gelu", "projection_dim": model["embed_dim"]}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": model["embed_dim"],
        "torch_dtype": "float32",
        "vision_config": {
            **shared,
            "model_type": "clip_vision_model",
            "hidden_size": vision["width"],
            "intermediate_size": 4 * vision["width"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", 64),
            "patch_size": vision["patch_size"],
            "image_size": vision["image_size"],
        },
        "text_config": {
            **shared,
            "model_type": "clip_text_model",
            "hidden_size": text["width"],
            "intermediate_size": 4 * text["width"],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "max_position_embeddings": text["context_length"],
            "vocab_size": text["vocab_size"],
        },
    }


def _preprocessor(clip: ClipModel) -> dict[str, Any]:
    height, width = clip.transform.size
    return {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "CLIPProcessor",
        "do_resize": True,
        "size": {"shortest_edge": height},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(clip.transform.mean),
        "image_std": list(clip.transform.std),
        "do_convert_rgb": True,
    }


def transformers_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an open_clip model under their names in transformers' CLIPModel."""
    renamed = {
        "logit_scale": state["logit_scale"],
        "visual_projection.weight": state["visual.proj"].T,
        "text_projection.weight": state["text_projection"].T,
        "vision_model.embeddings.class_embedding": state["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": state["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": state["visual.positional_embedding"],
        "text_model.embeddings.token_embedding.weight": state["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": state["positional_embedding"],
    }
    norms = {
        "visual.ln_pre": "vision_model.pre_layrnorm",
        "visual.ln_post": "vision_model.post_layernorm",
        "ln_final": "text_model.final_layer_norm",
    }
    for name, tensor in state.items():
        stem, _, kind = name.rpartition(".")
        if stem in norms:
            renamed[f"{norms[stem]}.{kind}"] = tensor
        elif "resblocks" in name:
            renamed |= _block_weights(name, tensor)
    return renamed


def _block_weights(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Yield a weight of a transformer block under its new name, or three where it holds queries, keys and values."""
    stem, _, rest = name.partition("transformer.resblocks.")
    depth, _, part = rest.partition(".")
    prefix = f"{'vision' if stem else 'text'}_model.encoder.layers.{depth}"
    if part.startswith("attn.in_proj_"):
        kind = part.removeprefix("attn.in_proj_")
        return {
            f"{prefix}.self_attn.{one}_proj.{kind}": third for one, third in zip("qkv", tensor.chunk(3), strict=True)
        }
    for ours, theirs in {
        "attn.out_proj": "self_attn.out_proj",
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }.items():
        part = part.replace(ours, theirs)
    return {f"{prefix}.{part}": tensor}


def _save(state: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path, {"format": "pt"})
