"""The open_clip configuration of a CLIP, told from the shapes of its weights.

Shapes tell everything but the activation, which is QuickGELU in all of OpenAI's models.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from services.core.refusals import Refused
from services.jobs.released_weights import State

# CLIP's own means and deviations of RGB (Radford et al. 2021).
OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)
# Width of one head of attention, in every model that OpenAI released.
HEAD_WIDTH = 64
RESNET_STAGES = (1, 2, 3, 4)
# Pixels of a side for one position of a ResNet's last features.
RESNET_STRIDE = 32

# The models of Hugging Face that open_clip's published text towers are made of, by the beginning of their names: what
# shapes do not tell. Padding comes before the first position.
TEXT_TOWERS: dict[str, dict[str, Any]] = {
    "xlm-roberta": {"model_type": "xlm-roberta", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
    "roberta": {"model_type": "roberta", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
}


def clip_config(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the configuration of OpenAI's model with these weights: a ViT or a ResNet, with CLIP's own text tower.

    Raises Refused for weights of another architecture.
    """
    try:
        width = state["ln_final.weight"].shape[0]
        text = {
            "context_length": state["positional_embedding"].shape[0],
            "vocab_size": state["token_embedding.weight"].shape[0],
            "width": width,
            "heads": width // HEAD_WIDTH,
            "layers": _count(state, "transformer.resblocks."),
        }
        vision = _vit(state) if "visual.proj" in state else _resnet(state)
        model = {"embed_dim": state["text_projection"].shape[1], "vision_cfg": vision, "text_cfg": text}
    except (KeyError, IndexError, ZeroDivisionError) as error:
        raise Refused(
            f"these are not the weights of a ViT or a ResNet with CLIP's own text tower ({error}); give the name of "
            "their open_clip architecture"
        ) from error
    return {
        "model_cfg": {**model, "quick_gelu": True},
        "preprocess_cfg": {"mean": list(OPENAI_MEAN), "std": list(OPENAI_STD)},
    }


def text_tower_config(state: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Return transformers' configuration of a text tower of Hugging Face's, from its name and its weights.

    Raises Refused for one that open_clip's published models do not have.
    """
    prefix = "text.transformer."
    known = next((fields for beginning, fields in TEXT_TOWERS.items() if name.startswith(beginning)), None)
    if known is None:
        raise Refused(f"a text tower of {name!r} is not supported, only {', '.join(TEXT_TOWERS)}")
    try:
        vocab_size, width = state[f"{prefix}embeddings.word_embeddings.weight"].shape
        return {
            **known,
            "vocab_size": vocab_size,
            "hidden_size": width,
            "num_hidden_layers": _count(state, f"{prefix}encoder.layer."),
            "num_attention_heads": width // HEAD_WIDTH,
            "intermediate_size": state[f"{prefix}encoder.layer.0.intermediate.dense.weight"].shape[0],
            "max_position_embeddings": state[f"{prefix}embeddings.position_embeddings.weight"].shape[0],
            "type_vocab_size": state[f"{prefix}embeddings.token_type_embeddings.weight"].shape[0],
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
        }
    except KeyError as error:
        raise Refused(f"the file has no {error.args[0]}, which a text tower of {name!r} has") from error


def with_counters(state: Mapping[str, Tensor]) -> State:
    """Add the counters of batches that older versions of torch did not write for batch normalisation."""
    counted = dict(state)
    for name in state:
        if name.endswith(".running_mean"):
            counter = name.removesuffix("running_mean") + "num_batches_tracked"
            counted.setdefault(counter, state[name].new_zeros((), dtype=torch.int64))
    return counted


def _vit(state: Mapping[str, Tensor]) -> dict[str, Any]:
    width, _, patch_size, _ = state["visual.conv1.weight"].shape
    grid = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
    hidden = state["visual.transformer.resblocks.0.mlp.c_fc.weight"].shape[0]
    vision = {
        "image_size": grid * patch_size,
        "layers": _count(state, "visual.transformer.resblocks."),
        "width": width,
        "patch_size": patch_size,
    }
    return vision if hidden == 4 * width else {**vision, "mlp_ratio": hidden / width}


def _resnet(state: Mapping[str, Tensor]) -> dict[str, Any]:
    positions = state["visual.attnpool.positional_embedding"].shape[0]
    return {
        "image_size": RESNET_STRIDE * round((positions - 1) ** 0.5),
        "layers": [_count(state, f"visual.layer{stage}.") for stage in RESNET_STAGES],
        "width": state["visual.layer1.0.conv1.weight"].shape[0],
        "patch_size": None,
    }


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    return len({name[len(prefix) :].partition(".")[0] for name in state if name.startswith(prefix)})
