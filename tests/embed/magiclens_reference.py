"""MagicLens in numpy, from the paper's and its code's arithmetic and by the published names, in double precision.

Nothing of it is shared with the implementation under test.
"""

from typing import Any

import numpy as np

Array = np.ndarray
Parameters = dict[str, Any]


def embedding(parameters: Parameters, pixels: Array, input_ids: Array) -> Array:
    """Embed one image (height, width, 3), normalised, under the instruction of token ids (W,) → (D,)."""
    p = parameters["params"]
    x = np.stack([image_features(p["clip"]["visual"], pixels), text_features(p["clip"]["text"], input_ids)])
    for number in range(len(p["multimodal_encoder"])):
        x = fusion_layer(p["multimodal_encoder"][f"x_layers_{number}"], x)
    pooler = p["contrastive_multimodal_pooler"]
    query = pooler["pooling_attn_query"].astype(np.float64)
    (r,) = own_norm(pooler["pool_attn_ln"], capped_attention(pooler["pool_attn"], query, x))
    return np.asarray(r / np.sqrt((r**2).sum() + 1e-12))


def image_features(p: Parameters, pixels: Array) -> Array:
    patch = p["conv1"]["kernel"].shape[0]
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    patches = [
        np.einsum("hwc,hwcd->d", pixels[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch], p["conv1"]["kernel"])
        for r in range(rows)
        for c in range(columns)
    ]
    x = np.stack([p["class_embedding"].astype(np.float64), *patches]) + p["positional_embedding"]
    x = clip_norm(p["ln_pre"], x)
    for number in range(len(p["transformer"])):
        x = clip_block(p["transformer"][f"resblocks_{number}"], x, np.zeros((len(x), len(x))))
    return np.asarray(clip_norm(p["ln_post"], x[0]) @ p["proj"]["kernel"])


def text_features(p: Parameters, input_ids: Array) -> Array:
    x = p["token_embedding"]["embedding"][input_ids].astype(np.float64) + p["positional_embedding"]
    seen = np.tril(np.ones((len(x), len(x)))) * (input_ids > 0)[None]
    for number in range(len(p["transformer"])):
        x = clip_block(p["transformer"][f"resblocks_{number}"], x, np.where(seen > 0, 0, -1e30))
    return np.asarray(clip_norm(p["ln_final"], x)[input_ids.argmax()] @ p["text_projection"]["kernel"])


def clip_block(p: Parameters, x: Array, mask: Array) -> Array:
    h, attn = clip_norm(p["ln_1"], x), p["attn"]
    q, k, v = (np.einsum("td,dnh->nth", h, attn[one]["kernel"]) + attn[one]["bias"][:, None] for one in _QKV)
    share = softmax(np.einsum("nth,nsh->nts", q, k) / np.sqrt(q.shape[-1]) + mask)
    x = x + np.einsum("nts,nsh,nhd->td", share, v, attn["out"]["kernel"]) + attn["out"]["bias"]
    h = clip_norm(p["ln_2"], x) @ p["mlp"]["c_fc"]["kernel"] + p["mlp"]["c_fc"]["bias"]
    h = h / (1 + np.exp(-1.702 * h))
    return np.asarray(x + h @ p["mlp"]["c_proj"]["kernel"] + p["mlp"]["c_proj"]["bias"])


_QKV = ("query", "key", "value")


def fusion_layer(p: Parameters, x: Array) -> Array:
    h = own_norm(p["layer_norm"], x)
    x = x + capped_attention(p["self_attention"], h, h)
    ff = p["ff_layer"]
    h = own_norm(ff["layer_norm"], x)
    h = np.maximum(h @ ff["ffn_layer1"]["linear"]["w"] + ff["ffn_layer1"]["bias"]["b"], 0)
    return np.asarray(x + h @ ff["ffn_layer2"]["linear"]["w"] + ff["ffn_layer2"]["bias"]["b"])


def capped_attention(p: Parameters, queries: Array, tokens: Array) -> Array:
    q, k, v = (
        np.einsum("td,dnh->nth", x, p[one]["w"]) + p[one]["b"][:, None]
        for one, x in zip(_QKV, (queries, tokens, tokens), strict=True)
    )
    width = q.shape[-1]
    if "per_dim_scale" in p:
        q = q * 1.442695041 / np.sqrt(width) * np.log1p(np.exp(p["per_dim_scale"]["per_dim_scale"]))
    else:
        q = q * width**-0.5
    share = softmax(50 * np.tanh(np.einsum("nth,nsh->nts", q, k) / 50))
    return np.asarray(np.einsum("nts,nsh,dnh->td", share, v, p["post"]["w"]) + p["post"]["b"])


def own_norm(p: Parameters, x: Array) -> Array:
    return np.asarray(standardised(x, 1e-6) * (1 + p["scale"]) + p["bias"])


def clip_norm(p: Parameters, x: Array) -> Array:
    return np.asarray(standardised(x, 1e-5) * p["scale"] + p["bias"])


def standardised(x: Array, epsilon: float) -> Array:
    return np.asarray((x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon))


def softmax(x: Array) -> Array:
    share = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(share / share.sum(axis=-1, keepdims=True))
