"""MagicLens in exactly the layout in which it is published, with random weights of tiny dimensions.

The file is a pickle of the bytes that flax's `to_bytes` makes of the parameters: MessagePack, where an array is an
extension that holds its shape, the name of its type and its bytes.
"""

import pickle
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

WIDTH, HEADS, LAYERS = 32, 4, 2  # of what follows the towers
VISION_WIDTH, VISION_LAYERS, TEXT_WIDTH, TEXT_HEADS, TEXT_LAYERS = 64, 2, 48, 3, 1
PATCH, SIDE, CONTEXT, VOCABULARY = 8, 32, 77, 49408

Parameters = dict[str, Any]


def random_parameters(seed: int = 0) -> Parameters:
    """Draw parameters by the names of flax's modules."""
    rng = np.random.default_rng(seed)

    def array(*shape: int, around: float = 0.0, fan_in: int | None = None) -> np.ndarray:
        spread = (fan_in or shape[0]) ** -0.5 if shape else 1.0
        return np.asarray(around + spread * rng.normal(size=shape), np.float32)

    def norm(width: int, around: float) -> Parameters:
        return {"scale": array(width, around=around, fan_in=16), "bias": array(width, fan_in=16)}

    def dense(inputs: int, outputs: int) -> Parameters:
        return {"kernel": array(inputs, outputs), "bias": array(outputs, fan_in=16)}

    def block(width: int, heads: int) -> Parameters:
        head = width // heads
        project = {one: {"kernel": array(width, heads, head), "bias": array(heads, head)} for one in _PROJECTIONS}
        out = {"kernel": array(heads, head, width, fan_in=width), "bias": array(width, fan_in=16)}
        mlp = {"c_fc": dense(width, 4 * width), "c_proj": dense(4 * width, width)}
        return {"ln_1": norm(width, 1), "attn": {**project, "out": out}, "ln_2": norm(width, 1), "mlp": mlp}

    def attention(inner: int) -> Parameters:
        head = inner // HEADS
        found = {one: {"w": array(WIDTH, HEADS, head), "b": array(HEADS, head)} for one in _PROJECTIONS}
        return {**found, "post": {"w": array(WIDTH, HEADS, head, fan_in=inner), "b": array(WIDTH, fan_in=16)}}

    def layer() -> Parameters:
        ffn = [
            {"linear": {"w": array(inputs, outputs)}, "bias": {"b": array(outputs, fan_in=16)}}
            for inputs, outputs in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
        ]
        ff_layer = {"layer_norm": norm(WIDTH, 0), "ffn_layer1": ffn[0], "ffn_layer2": ffn[1]}
        return {"ff_layer": ff_layer, "self_attention": attention(WIDTH), "layer_norm": norm(WIDTH, 0)}

    visual = {
        "conv1": {"kernel": array(PATCH, PATCH, 3, VISION_WIDTH, fan_in=3 * PATCH**2)},
        "class_embedding": array(VISION_WIDTH),
        "positional_embedding": array((SIDE // PATCH) ** 2 + 1, VISION_WIDTH),
        "ln_pre": norm(VISION_WIDTH, 1),
        # heads of the image tower are always 64 wide
        "transformer": {f"resblocks_{i}": block(VISION_WIDTH, VISION_WIDTH // 64) for i in range(VISION_LAYERS)},
        "ln_post": norm(VISION_WIDTH, 1),
        "proj": {"kernel": array(VISION_WIDTH, WIDTH)},
    }
    text = {
        "positional_embedding": array(CONTEXT, TEXT_WIDTH),
        "token_embedding": {"embedding": array(VOCABULARY, TEXT_WIDTH, fan_in=4)},
        "transformer": {f"resblocks_{i}": block(TEXT_WIDTH, TEXT_HEADS) for i in range(TEXT_LAYERS)},
        "ln_final": norm(TEXT_WIDTH, 1),
        "text_projection": {"kernel": array(TEXT_WIDTH, WIDTH)},
    }
    pooler = {
        "pool_attn": {
            **attention(4 * WIDTH),
            "per_dim_scale": {"per_dim_scale": array(4 * WIDTH // HEADS, around=1, fan_in=4)},
        },
        "pool_attn_ln": norm(WIDTH, 0),
        "pooling_attn_query": array(1, WIDTH, fan_in=1),
    }
    clip = {"visual": visual, "text": text, "logit_scale": array()}
    encoder = {f"x_layers_{i}": layer() for i in range(LAYERS)}
    return {"params": {"clip": clip, "multimodal_encoder": encoder, "contrastive_multimodal_pooler": pooler}}


_PROJECTIONS = ("query", "key", "value")


def write_magiclens(path: Path, parameters: Parameters | None = None) -> Path:
    """Write `magic_lens_clip_base.pkl`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(packed(parameters or random_parameters())))
    return path


def packed(value: Any) -> bytes:
    """Pack a value as flax's `to_bytes` does."""
    data: bytes = msgpack.packb(value, default=_extension)
    return data


def _extension(array: Any) -> msgpack.ExtType:
    return msgpack.ExtType(1, msgpack.packb([list(array.shape), array.dtype.name, array.tobytes()]))
