"""Pooled features and token features of an open_clip model, from one pass of each tower.

Patch tokens are ln_post(patches) · proj and text tokens ln_final(words) · text_projection: in the shared space, but not
normalised, as in FSC-CLIP's alignment.

Two kinds of tower have them: a plain ViT, and CLIP's own causal text transformer, pooled at the end of text.

Shapes: B images, N texts, P patches, W text tokens, E embedding width. Tokens are float of the towers' dtype,
pooled features are at least single precision.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.text_transformer import cut_at_end, last_tokens, project_text
from services.nn.vision_transformer import encode, is_plain_vit, pool
from services.score.fsc_clip import ImageFeatures, TextFeatures


def check_towers(clip: Any) -> None:
    """Raises ValueError for a model without token features."""
    if needed := missing_for_tokens(clip):
        raise ValueError(f"FSC-CLIP needs {needed}")


def missing_for_tokens(clip: Any) -> str | None:
    """Return what a model without token features would need, None for one that has them.

    Towers pooled by attention, residual networks, towers of other libraries (such as SigLIP's), and texts that are not
    read from left to right have none.
    """
    return _missing_in_images(clip) or missing_in_texts(clip)


def _missing_in_images(clip: Any) -> str | None:
    visual = clip.visual
    if not hasattr(visual, "class_embedding") or getattr(visual, "attn_pool", None) is not None:
        return "a plain ViT: an image tower with a class token and no attention pooling"
    if visual.pool_type not in ("tok", "avg") or visual.proj is None:
        return f"a pooled and projected ViT, this one pools by {visual.pool_type!r}"
    return None


def missing_in_texts(clip: Any) -> str | None:
    """Return what a model without token features of texts would need, None for one that has them."""
    tower = _text_tower(clip)
    is_causal = getattr(tower, "attn_mask", None) is not None
    if not is_causal or _text_pool(tower) not in ("argmax", "eos") or getattr(tower, "cls_emb", None) is not None:
        return "CLIP's own text tower: causal, and pooled at the end of the text"
    return None


def encode_images(clip: Any, pixels: Tensor) -> ImageFeatures:
    """Encode (B, 3, height, width), normalised for the model, with an open_clip model's image tower.

    Raises ValueError for a model without token features.
    """
    check_towers(clip)
    visual = clip.visual
    if _is_packed(visual) or (pixels.is_cuda and is_plain_vit(visual) and not torch.is_grad_enabled()):
        x = encode(visual, pixels)
        return ImageFeatures(pool(visual, x), visual.ln_post(x[:, 1:]) @ visual.proj)
    outputs = visual.forward_intermediates(pixels, indices=1, output_fmt="NLC")
    patches: Tensor = outputs["image_intermediates"][0]
    return ImageFeatures(_unit(outputs["image_features"]), visual.ln_post(patches) @ visual.proj)


def encode_texts(clip: Any, input_ids: Tensor) -> TextFeatures:
    """Encode token ids (N, W) int64, padded, with an open_clip model's text tower.

    A causal tower pooled at the end of text never sees the padding after it, so the batch is cut to its longest text:
    equal results for a fraction of the work. Ids in host memory are copied to the tower's device. Raises ValueError for
    a model without token features of texts.
    """
    if needed := missing_in_texts(clip):
        raise ValueError(f"FSC-CLIP needs {needed}")
    tower = _text_tower(clip)
    return encode_cut(clip, *cut_at_end(input_ids, end_of_text(clip, input_ids), tower.positional_embedding.device))


def encode_cut(clip: Any, input_ids: Tensor, end: Tensor) -> TextFeatures:
    """Encode as `encode_texts`: token ids (N, W) and ends (N,) of `cut_at_end`."""
    tower = _text_tower(clip)
    tokens = project_text(tower, last_tokens(tower, input_ids))
    pooled = _unit(tokens[torch.arange(len(end), device=end.device), end])
    position = torch.arange(input_ids.shape[1], device=end.device)
    return TextFeatures(pooled, tokens, (position > 0) & (position <= end[:, None]))


def end_of_text(clip: Any, input_ids: Tensor) -> Tensor:
    """Find the end of texts (N, W) according to a model's text tower, (N,) int64: the first occurrence of a text's
    highest id, or of the end token if the tower has another vocabulary. Tokens after it are not read."""
    tower = _text_tower(clip)
    if _text_pool(tower) == "argmax":
        return input_ids.argmax(dim=-1)
    eos_id: int = tower.text_eos_id if hasattr(tower, "text_eos_id") else tower.eos_id
    return (input_ids == eos_id).int().argmax(dim=-1)


def _unit(x: Tensor) -> Tensor:
    """L2-normalise in at least single precision: a caption and its negative may differ by less than bfloat16 shows."""
    return F.normalize(x if x.dtype.itemsize > 2 else x.float(), dim=-1)


def _is_packed(visual: Any) -> bool:
    return hasattr(visual.transformer.resblocks[0].attn, "packed_in_proj")


def _text_tower(clip: Any) -> Any:
    """Return the text tower: CustomTextCLIP has one, open_clip.CLIP holds its parts itself."""
    return getattr(clip, "text", clip)


def _text_pool(tower: Any) -> str | None:
    return getattr(tower, "text_pool_type", None) or getattr(tower, "pool_type", None)
