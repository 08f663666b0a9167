"""FocalLens-CLIP: image embeddings conditioned on a text (dissertation, chapter 5).

        φ(image, instruction) = normalise(proj(ln_post(CLS))), where the ViT has one additional token: the condition.

The condition token is the pooled feature of a second, trainable text tower (a copy of CLIP's own) mapped to the
ViT's width. φ is compared with T(answer), the frozen CLIP text tower, so images and texts share one space.

Two visibilities of the condition token:

    full      every token attends to it (the paper)
    readout   patch tokens attend to patch tokens only, CLS and the condition attend to everything: the keys and
              values of the patches do not depend on the condition, so that one pass over an image serves any
              number of conditions

Activations that do not depend on a condition can be kept as an image's state, from which new conditions are read later.

Shapes: B images, S numbers in a state, R readouts (an image under a condition, or under none), C conditions, D ViT
width, E embedding width, W text tokens, A answers. Features are float of the towers' dtype.
"""

import copy
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.embed.visibility import Full, Grid, Readout, Readouts
from services.nn.text_transformer import encode_text

Visibility = Literal["full", "readout"]


class FocalLens(nn.Module):
    """A CLIP model with a condition token.

    `clip` is an open_clip model with a plain ViT (class token pooling for `readout`); its text tower is frozen in
    place. `condition_layer` n inserts the token before block n: 0 is the paper, n > 0 leaves the blocks below
    untouched by any condition. Raises ValueError for an image tower without such a place.
    """

    def __init__(self, clip: Any, *, condition_layer: int = 0, visibility: Visibility = "full") -> None:
        super().__init__()
        _check_image_tower(clip.visual, condition_layer, visibility)
        self.clip = clip
        self.condition_layer = condition_layer
        self.visibility: Visibility = visibility
        self.condition_tower = _copy_of_text_tower(clip)
        text_width: int = self.condition_tower.ln_final.weight.shape[0]
        vision_width: int = clip.visual.class_embedding.shape[0]
        self.condition_projection = nn.Linear(text_width, vision_width, bias=False)
        for parameter in self.text_parameters():
            parameter.requires_grad_(False)

    def text_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the frozen tower T: everything in `clip` except its image tower."""
        return [p for name, p in self.clip.named_parameters() if not name.startswith("visual.")]

    def encode_texts(self, input_ids: Tensor) -> Tensor:
        """Compute T(y): (B, W) int64 → (B, E), L2-normalised."""
        return F.normalize(encode_text(self.clip, input_ids), dim=-1)

    def encode_conditions(self, input_ids: Tensor) -> Tensor:
        """Compute condition tokens: (C, W) int64 → (C, D), in the scale that the ViT's first block expects."""
        pooled = encode_text(self.condition_tower, input_ids)
        token: Tensor = self.clip.visual.ln_pre(self.condition_projection(pooled))
        return token

    def encode_images(
        self, pixels: Tensor, conditions: Tensor | None = None, readouts: Readouts | None = None
    ) -> Tensor:
        """Compute φ: (B, 3, height, width) and condition tokens (C, D) → (R, E), L2-normalised.

        Without `readouts` image i is read under condition i (C = B), or all without a condition if `conditions` is
        None.
        """
        asked = self.grid(conditions, readouts, pixels)
        return asked.chosen(self.encode_grid(pixels, asked))

    def grid(self, conditions: Tensor | None, readouts: Readouts | None, images: Tensor) -> Grid:
        """Arrange readouts of images (B, …) for `encode_grid`."""
        return self._tower.grid(conditions, readouts, len(images), images.device)

    def encode_grid(self, pixels: Tensor, asked: Grid) -> Tensor:
        """Encode all places of a grid: (B, 3, height, width) → (B · W, E), or (R, E) for a grid that has `images`."""
        return self._tower.encode(pixels, asked)

    @property
    def state_size(self) -> int | None:
        """S, or None if nothing can be kept: in `full`, a condition that joins at block 0 affects all activations."""
        return self._tower.state_size

    def encode_images_and_states(
        self, pixels: Tensor, conditions: Tensor | None = None, readouts: Readouts | None = None, *, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Encode like `encode_images`, and return each image's state from the same pass: (R, E), (B, S) of `dtype`.

        Raises ValueError for a model whose images have no state.
        """
        if self.state_size is None:
            raise ValueError("full visibility from block 0: no state of an image is independent of the condition")
        states = pixels.new_empty(pixels.shape[0], self.state_size, dtype=dtype)
        asked = self.grid(conditions, readouts, pixels)
        return asked.chosen(self._tower.encode(pixels, asked, states)), states

    def read_states(self, states: Tensor, conditions: Tensor | None = None, readouts: Readouts | None = None) -> Tensor:
        """Encode like `encode_images`, but from states (B, S), possibly of a narrower dtype than the towers → (R, E).

        Raises ValueError for states that are not from this model.
        """
        if states.ndim != 2 or states.shape[1] != self.state_size:
            raise ValueError(f"states of the shape {list(states.shape)} are not this model's: (B, {self.state_size})")
        asked = self.grid(conditions, readouts, states)
        return asked.chosen(self._tower.read(states, asked))

    @property
    def _tower(self) -> Full | Readout:
        tower = Readout if self.visibility == "readout" else Full
        return tower(self.clip.visual, self.condition_layer)


def unique_answer_loss(
    image_features: Tensor,
    answer_features: Tensor,
    answer_index: Tensor,
    logit_scale: Tensor | float,
    *,
    symmetric: bool = False,
) -> Tensor:
    """Compute eq. 5.1 for rows that share answers: the softmax is over the distinct answers, so that rows with the same
    answer are not false negatives.

    (R, E) features, (A, E) features of the distinct answers (of the batch, or a bank of all answers) and
    `answer_index` (R,) int64 into them. If symmetric, the answers' side is added: its target is spread evenly over the
    rows that gave the answer, and answers of the bank that no row gave are left out. Returns a scalar.
    """
    logits = logit_scale * image_features @ answer_features.T  # (R, A)
    rows = F.cross_entropy(logits, answer_index)
    if not symmetric:
        return rows
    given = F.one_hot(answer_index, logits.shape[1]).T.to(logits.dtype)  # (A, R)
    is_given = given.sum(dim=1) > 0
    target = given[is_given] / given[is_given].sum(dim=1, keepdim=True)
    return (rows + F.cross_entropy(logits.T[is_given], target)) / 2


def _check_image_tower(visual: Any, condition_layer: int, visibility: str) -> None:
    if not hasattr(visual, "class_embedding") or getattr(visual, "attn_pool", None) is not None:
        raise ValueError("FocalLens needs a plain ViT: an image tower with a class token and no attention pooling")
    num_layers = len(visual.transformer.resblocks)
    if not 0 <= condition_layer < num_layers:
        raise ValueError(f"condition_layer is {condition_layer}: this ViT has blocks 0 to {num_layers - 1}")
    if visibility not in ("full", "readout"):
        raise ValueError(f"visibility is {visibility!r}: it must be 'full' or 'readout'")
    if visibility == "readout" and visual.pool_type != "tok":
        raise ValueError(f"visibility 'readout' needs class token pooling, this ViT pools by {visual.pool_type!r}")
    if not isinstance(visual.transformer.resblocks[0].attn, nn.MultiheadAttention):
        raise ValueError("FocalLens needs open_clip's default blocks (nn.MultiheadAttention)")


def _copy_of_text_tower(clip: Any) -> Any:
    """Make a trainable copy that ends before the projection into the shared space."""
    if hasattr(clip, "text"):
        tower = copy.deepcopy(clip.text)
    else:  # open_clip.CLIP holds the parts of its text tower itself, next to the image tower
        visual, clip.visual = clip.visual, None
        tower = copy.deepcopy(clip)
        clip.visual = visual
        del tower.visual, tower.logit_scale
    tower.text_projection = None
    return tower
