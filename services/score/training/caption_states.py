"""States of captions inside the text tower while it learns to read claims, and their features.

Shapes: A captions, W text tokens, D width, E embedding width.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.score.fsc_clip import TextFeatures
from services.score.model.dense_features import encode_texts, end_of_text

TEXT_GROUPS = 3


@dataclass(frozen=True)
class CaptionStates:
    """States of words (A, W, D) before the last block; ends of captions (A, E) after it, not normalised; and means
    (A, E) of the words' states in the shared space, of length 1."""

    words: Tensor
    ends: Tensor
    means: Tensor


def read_captions(clip: Any, input_ids: Tensor) -> CaptionStates:
    """Read captions (A, W) int64 in one pass, in groups of similar length, because padding costs as much as words."""
    order = input_ids.argmax(dim=-1).argsort(stable=True)
    parts = [_read(clip, input_ids[some]) for some in order.tensor_split(TEXT_GROUPS) if len(some)]
    longest = max(part.words.shape[1] for part in parts)
    words = [F.pad(part.words, (0, 0, 0, longest - part.words.shape[1])) for part in parts]
    back = order.argsort()
    return CaptionStates(
        torch.cat(words)[back], torch.cat([part.ends for part in parts])[back],
        torch.cat([part.means for part in parts])[back],
    )  # fmt: skip


def encode_by_length(clip: Any, input_ids: Tensor) -> TextFeatures:
    """Encode texts, on a CPU in TEXT_GROUPS groups of similar length, because padding costs as much as words."""
    if input_ids.device.type != "cpu":
        return encode_texts(clip, input_ids)
    order = (input_ids != 0).sum(dim=1).argsort(stable=True)
    groups = [encode_texts(clip, input_ids[some]) for some in order.tensor_split(TEXT_GROUPS) if len(some)]
    longest = max(group.mask.shape[1] for group in groups)
    padded = [F.pad(group.tokens, (0, 0, 0, longest - group.mask.shape[1])) for group in groups]
    masks = [F.pad(group.mask, (0, longest - group.mask.shape[1])) for group in groups]
    back = order.argsort()
    return TextFeatures(
        torch.cat([group.pooled for group in groups])[back], torch.cat(padded)[back], torch.cat(masks)[back]
    )


def caption_ends(clip: Any, input_ids: Tensor) -> Tensor:
    """Compute the states at the ends of captions after the last norm, before the projection: (A, W) int64 → (A, D)."""
    tower, end = getattr(clip, "text", clip), end_of_text(clip, input_ids)
    length = int(end.max()) + 1
    x = tower.token_embedding(input_ids[:, :length]) + tower.positional_embedding[:length]
    x = tower.transformer(x, attn_mask=tower.attn_mask[:length, :length])
    ends: Tensor = tower.ln_final(x[torch.arange(len(end), device=end.device), end])
    return ends


def word_states(clip: Any, input_ids: Tensor) -> Tensor:
    """Compute the states of captions' words after all blocks but the last: (A, W) int64 → (A, W, D)."""
    length = int(input_ids.argmax(dim=-1).max()) + 1
    x = clip.token_embedding(input_ids[:, :length]) + clip.positional_embedding[:length]
    for block in clip.transformer.resblocks[:-1]:
        x = block(x, attn_mask=clip.attn_mask[:length, :length])
    states: Tensor = x
    return states


def _read(clip: Any, input_ids: Tensor) -> CaptionStates:
    words, end = word_states(clip, input_ids), input_ids.argmax(dim=-1)
    length = words.shape[1]
    states = clip.transformer.resblocks[-1](words, attn_mask=clip.attn_mask[:length, :length])
    last = clip.ln_final(states[torch.arange(len(end), device=end.device), end])
    position = torch.arange(length, device=end.device)
    is_word = ((position > 0) & (position <= end[:, None]))[..., None]
    mean = ((clip.ln_final(words) @ clip.text_projection).float() * is_word).sum(dim=1)
    return CaptionStates(words, last @ clip.text_projection, F.normalize(mean, dim=-1))
