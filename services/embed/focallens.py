"""FocalLens-CLIP: image embeddings conditioned on a text (dissertation, chapter 5).

    φ(image, instruction) = normalise(proj(ln_post(CLS))), where the ViT sees one token more: the condition.

The condition token is the pooled feature of a second, trainable text tower (a copy of CLIP's own) mapped to the
ViT's width. φ is compared with T(answer), the frozen CLIP text tower, so images and texts share one space.

Two visibilities of the condition token:

    full      every token attends to it (the paper)
    readout   patch tokens attend to patch tokens only, CLS and the condition attend to everything: the keys and
              values of the patches do not depend on the condition, so that one pass over an image serves any
              number of conditions

Shapes: B images, R readouts (an image under a condition, or under none), C conditions, P patches, D ViT width,
E embedding width, W text tokens, H heads, A answers. Features are float of the towers' dtype.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Visibility = Literal["full", "readout"]

# CLIP clamps its learned scale here (ln 100), and so does every loss of this file.
MAX_LOG_SCALE = math.log(100.0)


@dataclass(frozen=True)
class PatchStates:
    """What a readout needs of an image: each layer's patch keys and values, layer by layer, (B, H, P, D/H) each."""

    keys: list[Tensor]
    values: list[Tensor]


@dataclass(frozen=True)
class Readouts:
    """Which images are read under which conditions.

    `image_index` (R,) int64 points into the batch of images; `condition_index` (R,) int64 points into the batch
    of conditions, −1 for the unconditional embedding.
    """

    image_index: Tensor
    condition_index: Tensor


class FocalLens(nn.Module):
    """A CLIP model with a condition token.

    `clip` is an open_clip model with a plain ViT (class token pooling for `readout`); its text tower is frozen in
    place. `condition_layer` n inserts the token before block n: 0 is the paper, n > 0 leaves the blocks below
    untouched by any condition. Raises ValueError for an image tower that has no such place.
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
        """The frozen tower T: everything of `clip` but its image tower."""
        return [p for name, p in self.clip.named_parameters() if not name.startswith("visual.")]

    def encode_texts(self, input_ids: Tensor) -> Tensor:
        """T(y): (B, W) int64 → (B, E), L2-normalised."""
        return F.normalize(encode_text(self.clip, input_ids), dim=-1)

    def encode_conditions(self, input_ids: Tensor) -> Tensor:
        """Condition tokens: (C, W) int64 → (C, D), in the scale that the ViT's first block expects."""
        pooled = encode_text(self.condition_tower, input_ids)
        token: Tensor = self.clip.visual.ln_pre(self.condition_projection(pooled))
        return token

    def encode_images(
        self, pixels: Tensor, conditions: Tensor | None = None, readouts: Readouts | None = None
    ) -> Tensor:
        """φ: (B, 3, height, width) and condition tokens (C, D) → (R, E), L2-normalised.

        Without `readouts` image i is read under condition i (C = B), or all under none where `conditions` is None.
        """
        if readouts is None:
            everyone = torch.arange(pixels.shape[0], device=pixels.device)
            readouts = Readouts(everyone, torch.full_like(everyone, -1) if conditions is None else everyone)
        if conditions is None:
            conditions = pixels.new_zeros(1, self.clip.visual.class_embedding.shape[0])
        if self.visibility == "readout":
            return self._encode_and_read(pixels, conditions, readouts)
        return self._encode_full(pixels, conditions, readouts)

    def encode_patches(self, pixels: Tensor) -> PatchStates:
        """The condition-independent pass of `readout`: (B, 3, height, width) → keys and values of every layer."""
        visual = self.clip.visual
        x = _embed(visual, pixels)[:, 1:]
        states = PatchStates([], [])
        blocks = list(visual.transformer.resblocks)
        for depth, block in enumerate(blocks):
            query, key, value = _project(block.attn, block.ln_1(x))
            states.keys.append(key)
            states.values.append(value)
            if depth + 1 < len(blocks):  # the last block's patch outputs are read by nobody
                x = _advance(block, x, _attend(query, key, value))
        return states

    def read_out(self, states: PatchStates, conditions: Tensor, readouts: Readouts) -> Tensor:
        """Run CLS and condition tokens alone over the patches' keys and values: → (R, E), L2-normalised."""
        blocks = self.clip.visual.transformer.resblocks
        reader = _Reader(self, conditions, readouts, num_patches=states.keys[0].shape[2])
        x = reader.begin(states.keys[0].dtype)
        for depth, block in enumerate(blocks):
            x = reader.enter(depth, x)
            query, key, value = _project(block.attn, block.ln_1(x))
            x = _advance(block, x, reader.attend(query, key, value, states.keys[depth], states.values[depth]))
        return _pool(self.clip.visual, x[:, :1])

    def _encode_and_read(self, pixels: Tensor, conditions: Tensor, readouts: Readouts) -> Tensor:
        """`read_out` over `encode_patches` in one go: both kinds of tokens pass each weight together, which halves
        what a small batch reads from memory."""
        visual = self.clip.visual
        blocks = list(visual.transformer.resblocks)
        patches = _embed(visual, pixels)[:, 1:]
        reader = _Reader(self, conditions, readouts, num_patches=patches.shape[1])
        x = reader.begin(patches.dtype)
        for depth, block in enumerate(blocks):
            x = reader.enter(depth, x)
            together = torch.cat([patches.flatten(0, 1), x.flatten(0, 1)])  # (B·P + R·T, D)
            projected = _linear(block.attn, block.ln_1(together))
            num_rows = patches.shape[0] * patches.shape[1]
            query, key, value = _by_head(block.attn, projected[:num_rows].view(*patches.shape[:2], -1))
            own = _by_head(block.attn, projected[num_rows:].view(*x.shape[:2], -1))
            attended = reader.attend(*own, key, value)
            if depth + 1 == len(blocks):  # the last block's patch outputs are read by nobody
                x = _advance(block, x, attended)
                break
            attended = torch.cat([_attend(query, key, value).flatten(0, 1), attended.flatten(0, 1)])
            together = _advance(block, together, attended)
            patches, x = together[:num_rows].view_as(patches), together[num_rows:].view_as(x)
        return _pool(visual, x[:, :1])

    def _encode_full(self, pixels: Tensor, conditions: Tensor, readouts: Readouts) -> Tensor:
        visual = self.clip.visual
        blocks = visual.transformer.resblocks
        x = _embed(visual, pixels)
        for block in blocks[: self.condition_layer]:  # shared by all conditions of an image
            x = block(x)
        x = x[readouts.image_index]  # (R, 1 + P, D)
        num_tokens = x.shape[1]
        mask = None
        if bool((readouts.condition_index >= 0).any()):
            token, is_visible = _select_conditions(conditions, readouts)
            x = torch.cat([x, token[:, None].to(x.dtype)], dim=1)
            mask = F.pad(is_visible, (num_tokens, 0), value=True)[:, None, None, :]  # (R, 1, 1, 2 + P)
        for block in blocks[self.condition_layer :]:
            query, key, value = _project(block.attn, block.ln_1(x))
            x = _advance(block, x, _attend(query, key, value, mask))
        return _pool(visual, x[:, :num_tokens])


class _Reader:
    """CLS and condition tokens on their way through the blocks in `readout`: they see all, and no patch sees them."""

    def __init__(self, model: FocalLens, conditions: Tensor, readouts: Readouts, *, num_patches: int) -> None:
        self._visual = model.clip.visual
        self._condition_layer = model.condition_layer
        self._image_index = readouts.image_index
        self._token, is_visible = _select_conditions(conditions, readouts)
        self._has_conditions = bool((readouts.condition_index >= 0).any())
        # CLS may look at the patches, itself and the condition, which is masked where there is none
        self._mask = F.pad(is_visible, (num_patches + 1, 0), value=True)[:, None, None, :]  # (R, 1, 1, P + 2)

    def begin(self, dtype: torch.dtype) -> Tensor:
        """CLS alone: (R, 1, D)."""
        visual = self._visual
        cls = visual.ln_pre((visual.class_embedding + visual.positional_embedding[0]).to(dtype))
        begun: Tensor = cls.expand(self._image_index.shape[0], 1, -1)
        return begun

    def enter(self, depth: int, x: Tensor) -> Tensor:
        """With the condition beside it from `condition_layer` on: (R, 2, D)."""
        if depth != self._condition_layer or not self._has_conditions:
            return x
        return torch.cat([x, self._token[:, None].to(x.dtype)], dim=1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, patch_keys: Tensor, patch_values: Tensor) -> Tensor:
        """Own queries, keys and values (R, H, T, D/H) and those of the images' patches (B, H, P, D/H) → (R, T, D)."""
        keys = torch.cat([patch_keys[self._image_index], key], dim=2)
        values = torch.cat([patch_values[self._image_index], value], dim=2)
        return _attend(query, keys, values, self._mask if key.shape[2] == 2 else None)


def encode_text(tower: Any, input_ids: Tensor) -> Tensor:
    """The text features of an open_clip model or of its bare text tower: (N, W) int64 → (N, E), not normalised.

    A causal tower pooled at the end of text never sees the padding behind it, so the batch is cut at its longest
    text: equal results for a fraction of the work.
    """
    if not hasattr(tower, "encode_text"):
        features: Tensor = tower(input_ids)
        return features
    if tower.text_pool_type != "argmax":
        features = tower.encode_text(input_ids)
        return features
    end = input_ids.argmax(dim=-1)  # the end of text is the highest id
    num_tokens = int(end.max()) + 1
    x = tower.token_embedding(input_ids[:, :num_tokens]) + tower.positional_embedding[:num_tokens]
    x = tower.transformer(x, attn_mask=tower.attn_mask[:num_tokens, :num_tokens])
    features = tower.ln_final(x)[torch.arange(len(end), device=end.device), end]
    if tower.text_projection is not None:
        features = features @ tower.text_projection
    return features


def contrastive_loss(
    image_features: Tensor, text_features: Tensor, logit_scale: Tensor | float, *, symmetric: bool = False
) -> Tensor:
    """Eq. 5.1: softmax cross-entropy over S_ij = scale · φ_i·T(y_j), rows only, or the mean with the columns'.

    (B, E) and (B, E), both L2-normalised, row i of one belonging to row i of the other. Returns a scalar.
    """
    logits = logit_scale * image_features @ text_features.T
    target = torch.arange(logits.shape[0], device=logits.device)
    rows = F.cross_entropy(logits, target)
    if not symmetric:
        return rows
    return (rows + F.cross_entropy(logits.T, target)) / 2


def unique_answer_loss(
    image_features: Tensor,
    answer_features: Tensor,
    answer_index: Tensor,
    logit_scale: Tensor | float,
    *,
    symmetric: bool = False,
) -> Tensor:
    """Eq. 5.1 where many rows share an answer: the softmax runs over the distinct answers, so that a row with the
    same answer is no false negative.

    (R, E) features, (A, E) features of the distinct answers (of the batch, or a bank of all answers) and
    `answer_index` (R,) int64 into them. Symmetric adds the answers' side, whose target is spread evenly over
    the rows that gave the answer; answers of the bank that no row gave drop out of it. Returns a scalar.
    """
    logits = logit_scale * image_features @ answer_features.T  # (R, A)
    rows = F.cross_entropy(logits, answer_index)
    if not symmetric:
        return rows
    given = F.one_hot(answer_index, logits.shape[1]).T.to(logits.dtype)  # (A, R)
    is_given = given.sum(dim=1) > 0
    target = given[is_given] / given[is_given].sum(dim=1, keepdim=True)
    return (rows + F.cross_entropy(logits.T[is_given], target)) / 2


def clamped_scale(log_scale: Tensor) -> Tensor:
    """CLIP's learned temperature: exp of the parameter, at most 100."""
    return log_scale.clamp(max=MAX_LOG_SCALE).exp()


def _check_image_tower(visual: Any, condition_layer: int, visibility: str) -> None:
    if not hasattr(visual, "class_embedding") or getattr(visual, "attn_pool", None) is not None:
        raise ValueError("FocalLens needs a plain ViT: an image tower with a class token and no attention pooling")
    num_layers = len(visual.transformer.resblocks)
    if not 0 <= condition_layer < num_layers:
        raise ValueError(f"condition_layer is {condition_layer}: this ViT has blocks 0 to {num_layers - 1}")
    if visibility not in ("full", "readout"):
        raise ValueError(f"visibility is {visibility!r}: it is 'full' or 'readout'")
    if visibility == "readout" and visual.pool_type != "tok":
        raise ValueError(f"visibility 'readout' needs class token pooling, this ViT pools by {visual.pool_type!r}")
    if not isinstance(visual.transformer.resblocks[0].attn, nn.MultiheadAttention):
        raise ValueError("FocalLens needs open_clip's default blocks (nn.MultiheadAttention)")


def _copy_of_text_tower(clip: Any) -> Any:
    """A trainable copy that ends before the projection into the shared space."""
    if hasattr(clip, "text"):
        tower = copy.deepcopy(clip.text)
    else:  # open_clip.CLIP holds its text tower's parts itself, beside the image tower
        visual, clip.visual = clip.visual, None
        tower = copy.deepcopy(clip)
        clip.visual = visual
        del tower.visual, tower.logit_scale
    tower.text_projection = None
    return tower


def _embed(visual: Any, pixels: Tensor) -> Tensor:
    """Patches behind the class token, with positions, after ln_pre: (B, 1 + P, D)."""
    patches = visual.conv1(pixels).flatten(2).transpose(1, 2)
    cls = visual.class_embedding.to(patches.dtype).expand(patches.shape[0], 1, -1)
    x = torch.cat([cls, patches], dim=1) + visual.positional_embedding.to(patches.dtype)
    embedded: Tensor = visual.ln_pre(x)
    return embedded


def _linear(attn: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """The query, key and value of each token, one behind the other: (…, D) → (…, 3 D)."""
    return F.linear(x, attn.in_proj_weight, attn.in_proj_bias)


def _by_head(attn: nn.MultiheadAttention, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, T, 3 D) → queries, keys and values, (N, H, T, D/H) each."""
    num_items, num_tokens, width = projected.shape
    by_head = projected.view(num_items, num_tokens, 3, attn.num_heads, width // (3 * attn.num_heads))
    query, key, value = by_head.permute(2, 0, 3, 1, 4)
    return query, key, value


def _project(attn: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by head: (N, T, D) → three times (N, H, T, D/H)."""
    return _by_head(attn, _linear(attn, x))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention, heads put side by side again: → (N, T, D). `mask` is true where a key may be seen."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def _advance(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of a residual block, token by token, once its attention is computed."""
    x = x + block.ls_1(block.attn.out_proj(attended))
    advanced: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
    return advanced


def _pool(visual: Any, x: Tensor) -> Tensor:
    """Class token (or the mean of the patches, as the model was built) → shared space, L2-normalised."""
    if not visual.final_ln_after_pool:
        x = visual.ln_post(x)
    pooled = x[:, 1:].mean(dim=1) if visual.pool_type == "avg" else x[:, 0]
    if visual.final_ln_after_pool:
        pooled = visual.ln_post(pooled)
    return F.normalize(pooled @ visual.proj, dim=-1)


def _select_conditions(conditions: Tensor, readouts: Readouts) -> tuple[Tensor, Tensor]:
    """Each readout's condition token (R, D), and whether it may be seen (R, 1) bool."""
    index = readouts.condition_index
    return conditions[index.clamp(min=0)], (index >= 0)[:, None]
