"""open_clip's plain ViT in pieces, so that tokens of several kinds can pass through its blocks together.

Shapes: B images, N sequences, T tokens of one, P patches, D width, H heads, E embedding width. Features are float of
the tower's dtype; `visual` is open_clip's VisionTransformer, `block` one of its residual blocks.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.nn.packed_linear import PackedLinear

# The factor in QuickGELU.
QUICK = 1.702


class QueriesKeysValues(NamedTuple):
    """Queries, keys and values by head, (N, H, T, D/H) each; queries may be of fewer tokens."""

    query: Tensor
    key: Tensor
    value: Tensor


def is_plain_vit(visual: Any) -> bool:
    """Whether the functions of this module compute what the image tower does: a ViT with a class token and default
    blocks, pooled by its class token or the mean of its patches, and projected."""
    if not hasattr(visual, "class_embedding") or getattr(visual, "attn_pool", None) is not None:
        return False
    return visual.pool_type in ("tok", "avg") and visual.proj is not None and has_plain_blocks(visual)


def has_plain_blocks(tower: Any) -> bool:
    """Whether all blocks of a tower are open_clip's default ones."""
    blocks = getattr(getattr(tower, "transformer", None), "resblocks", ())
    return len(blocks) > 0 and all(
        isinstance(getattr(block, "attn", None), nn.MultiheadAttention) and hasattr(block, "ls_1") for block in blocks
    )


def pack_tower(tower: Any) -> None:
    """Repack the weights of a tower's blocks in place for a CPU; image and text towers have the same blocks.

    Only this module can run them from then on.
    """
    for block in tower.transformer.resblocks:
        attention, mlp = block.attn, block.mlp
        attention.packed_in_proj = PackedLinear(attention.in_proj_weight, attention.in_proj_bias)
        attention.in_proj_weight = None
        attention.out_proj = PackedLinear(attention.out_proj.weight, attention.out_proj.bias)
        for name in ("c_fc", "c_proj"):
            dense = getattr(mlp, name)
            setattr(mlp, name, PackedLinear(dense.weight, dense.bias))


def embed(visual: Any, pixels: Tensor) -> Tensor:
    """Embed class token and patches, with positions, after ln_pre: (B, 3, height, width) → (B, 1 + P, D)."""
    return embed_patches(visual, visual.conv1(pixels).flatten(2).transpose(1, 2))


def embed_patches(visual: Any, patches: Tensor) -> Tensor:
    """Put the class token before linear patches, with positions, after ln_pre: (B, P, D) → (B, 1 + P, D)."""
    cls = visual.class_embedding.to(patches.dtype).expand(patches.shape[0], 1, -1)
    x = torch.cat([cls, patches], dim=1) + visual.positional_embedding.to(patches.dtype)
    embedded: Tensor = visual.ln_pre(x)
    return embedded


def class_token(visual: Any) -> Tensor:
    """Return the class token before the first block, the same for every image: (D,)."""
    token: Tensor = visual.ln_pre(visual.class_embedding + visual.positional_embedding[0])
    return token


def project(block: Any, x: Tensor) -> Tensor:
    """Project each token to its query, key and value, concatenated: (…, D) → (…, 3 D)."""
    if hasattr(block.attn, "packed_in_proj"):
        projected: Tensor = block.attn.packed_in_proj(block.ln_1(x))
        return projected
    return F.linear(block.ln_1(x), block.attn.in_proj_weight, block.attn.in_proj_bias)


def by_head(block: Any, projected: Tensor) -> QueriesKeysValues:
    """Split the output of `project` for N sequences by head: (N, T, 3 D) → (N, H, T, D/H) each."""
    num_items, num_tokens, width = projected.shape
    num_heads = block.attn.num_heads
    heads = projected.view(num_items, num_tokens, 3, num_heads, width // (3 * num_heads))
    return QueriesKeysValues(*heads.permute(2, 0, 3, 1, 4))


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute softmax attention with heads concatenated again: → (N, T, D).

    `mask` is added to the logits, or true where a key may be seen.
    """
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def advance(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """Run the rest of a block, token by token, after its attention: (…, D) and (…, D) → (…, D)."""
    x = x + block.ls_1(block.attn.out_proj(attended))
    normalised = block.ln_2(x)
    is_quick = x.is_cuda and not torch.is_grad_enabled() and type(block.mlp.gelu).__name__ == "QuickGELU"
    advanced: Tensor = x + block.ls_2(quick_gelu_mlp(block.mlp, normalised) if is_quick else block.mlp(normalised))
    return advanced


def quick_gelu_mlp(mlp: Any, x: Tensor) -> Tensor:
    """Run an MLP with QuickGELU, y σ(1.702 y) = silu(1.702 y) / 1.702, whose factors the matrix products take in: its
    widest numbers are read once instead of three times, and rounded less often. For inference."""
    first, second = mlp.c_fc, mlp.c_proj
    y = torch.addmm(QUICK * first.bias, x.flatten(0, -2), first.weight.T, alpha=QUICK)
    y = torch.addmm(second.bias, F.silu(y, inplace=True), second.weight.T, alpha=1 / QUICK)
    return y.view(*x.shape[:-1], -1)


def run_block(block: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Run a block: (N, T, D) → (N, T, D). `mask` is that of `attend`."""
    return advance(block, x, attend(*by_head(block, project(block, x)), mask))


def encode(visual: Any, pixels: Tensor) -> Tensor:
    """Run all blocks: (B, 3, height, width) → (B, 1 + P, D), what `pool` pools."""
    x = embed(visual, pixels)
    for block in visual.transformer.resblocks:
        x = run_block(block, x)
    return x


def num_pooled(visual: Any) -> int:
    """Return how many tokens of the last block `pool` uses, from the first on: the class token, or all."""
    num_tokens: int = visual.positional_embedding.shape[0]
    return num_tokens if visual.pool_type == "avg" else 1


def pool(visual: Any, x: Tensor) -> Tensor:
    """Project the class token (or the patches' mean, by the model) to the shared space: (N, T, D) → (N, E), unit."""
    return F.normalize(pool_unscaled(visual, x), dim=-1)


def pool_unscaled(visual: Any, x: Tensor) -> Tensor:
    """Compute what `pool` normalises."""
    if not visual.final_ln_after_pool:
        x = visual.ln_post(x)
    pooled = x[:, 1:].mean(dim=1) if visual.pool_type == "avg" else x[:, 0]
    if visual.final_ln_after_pool:
        pooled = visual.ln_post(pooled)
    projected: Tensor = pooled @ visual.proj
    return projected


class PackedBlocks(nn.Module):
    """Replaces a text tower's transformer and runs its blocks with packed weights."""

    def __init__(self, tower: Any) -> None:
        super().__init__()
        pack_tower(tower)
        self.resblocks = tower.transformer.resblocks

    def forward(self, x: Tensor, attn_mask: Tensor) -> Tensor:
        """Run the blocks: (N, W, D) → (N, W, D); `attn_mask` (W, W) is added to the logits of attention."""
        for block in self.resblocks:
            x = run_block(block, x, attn_mask)
        return x
