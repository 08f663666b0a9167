"""States of captions inside the text tower while it learns to read claims.

Shapes: A captions, W text tokens, D width, E embedding width.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.score.training.caption_states import TEXT_GROUPS


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
