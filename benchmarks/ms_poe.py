"""Ms-PoE: rotary positions that each attention head divides by its own ratio (Zhang et al. 2024, arXiv 2403.04797).

While a prompt of l tokens is prefilled, each layer scores its H heads by the weights A of the prompt's last row,

    S_P = 1/l Σ_i [A_i ≥ α · 1/l Σ_j A_j]      with α = 3                    (Eq. 1)

and the head with the i-th highest score has its queries and keys at p / r_i instead of p,

    r_i = r_min + (i − 1) (r_max − r_min) / (H − 1)      from 1.2 to 1.8      (Eq. 2)

in the prompt and in its answer: the fewer tokens a head attends to, the closer together it sees all of them. A layer's
weights are those with the model's own positions, on what the re-scaled layers before it give (Algorithm 1). The
released code scores queries and keys without positions and has a largest ratio below r_max; its script keeps the first
two of 32 layers as they are, of which the paper says nothing.

Rotations add up, so a query or key at p is moved to p / r by turning it by p / r − p more. Everything else is the
engine's own, so that found-in-the-middle measures and calibrates the attention that these positions give. A head needs
keys of its own, which `save_with_own_keys` makes.

Shapes: B sequences, H heads, T tokens of a pass, D' width of a head.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.generate.calibration import row_scores
from services.generate.model.branches import BranchPass
from services.generate.model.decoder import ForwardPass
from services.generate.model.language_model import LanguageModel
from services.generate.model.packing import DecodePass, PackedPass, PrefillPass

THRESHOLD = 3.0


@dataclass(frozen=True)
class Ratios:
    """The least and the greatest ratio of a layer's heads, and the first layer that is re-scaled, counted from 0."""

    least: float = 1.2
    greatest: float = 1.8
    first_layer: int = 0


PAPER = Ratios()
RELEASED = Ratios(first_layer=2)  # the layers of the released script


def position_awareness(weights: Tensor) -> Tensor:
    """S_P of Eq. 1: (H, l) weights of a prompt's last row → (H,), the share of them with at least 3 times the mean."""
    return (weights >= THRESHOLD * weights.mean(dim=-1, keepdim=True)).float().mean(dim=-1)


def head_ratios(awareness: Tensor, ratios: Ratios) -> Tensor:
    """Eq. 2: (H,) scores → (H,) ratios, the least for the highest score; of equal scores, the earlier counts as higher.

    A single head has the least ratio.
    """
    order = awareness.argsort(descending=True, stable=True)
    return torch.empty_like(awareness).scatter_(0, order, torch.linspace(ratios.least, ratios.greatest, len(order)))


def turn(rows: Tensor, offsets: Tensor, frequencies: Tensor) -> Tensor:
    """Turn queries or keys (B, H, T, D') by `offsets` (B, H, T) further positions; `frequencies` (D'/2,)."""
    angles = offsets[..., None] * frequencies
    cos, sin = angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)
    first, second = rows.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class MsPoeModel(LanguageModel):
    """A model with its own positions if `ratios` is None, else with re-scaled ones.

    Its slots have to be of one cache at a time, and prompts may not be prefilled in pieces.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Raises ValueError for a model whose heads share keys."""
        super().__init__(model, tokenizer)
        if self.config.num_heads != self.config.num_kv_heads:
            raise ValueError("heads that share keys cannot have positions of their own; see save_with_own_keys")
        self.ratios: Ratios | None = None
        self.chosen: dict[tuple[int, int], Tensor] = {}  # by slot and layer, the ratios (H,) of its latest prompt

    def _run_layers(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_pass: ForwardPass,
        num_layers: int,
        wanted: Tensor | None = None,
    ) -> Tensor:
        if self.ratios is not None:
            frequencies = self._decoder.rotary_embedding.inv_freq
            forward_pass = _RescaledPass(forward_pass, positions, frequencies, self.ratios, self.chosen)
        return super()._run_layers(input_ids, positions, forward_pass, num_layers, wanted)


@dataclass(frozen=True, eq=False)
class _RescaledPass:
    """The attention of another pass, whose queries and keys stand at `positions` (B, T), with re-scaled positions."""

    inner: ForwardPass
    positions: Tensor
    frequencies: Tensor
    ratios: Ratios
    chosen: dict[tuple[int, int], Tensor]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend as `ForwardPass.attend`; a prefill chooses the ratios of its prompts first."""
        if layer >= self.ratios.first_layer:
            if isinstance(self.inner, PrefillPass):
                self._choose(layer, query, key, scaling)
            of_rows = [self.chosen[slot, layer][:, None].expand(-1, number) for slot, number in _slots(self.inner)]
            # either B or T is 1
            ratios = torch.cat(of_rows, dim=1).view(-1, *self.positions.shape).transpose(0, 1)
            positions = self.positions[:, None].float()
            offsets = positions / ratios - positions
            query, key = (turn(rows, offsets, self.frequencies) for rows in (query, key))
        return self.inner.attend(layer, query, key, value, scaling=scaling, sliding_window=sliding_window)

    def _choose(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        assert isinstance(self.inner, PrefillPass)
        for stretch in self.inner.stretches:
            rows = stretch.rows
            weights = row_scores(query[:, :, rows.stop - 1 : rows.stop], key[:, :, rows], scaling).softmax(dim=-1)
            awareness = position_awareness(weights[0, :, 0])
            self.chosen[stretch.slot.index, layer] = head_ratios(awareness, self.ratios)


def _slots(forward_pass: ForwardPass) -> list[tuple[int, int]]:
    """List the slot and the number of rows of each sequence of a pass, in the order of its rows."""
    if isinstance(forward_pass, PackedPass):
        return [(stretch.slot.index, stretch.num_rows) for stretch in forward_pass.stretches]
    if isinstance(forward_pass, BranchPass):
        return [(branch.slot.index, branch.num_tokens) for branch in forward_pass._branches]
    assert isinstance(forward_pass, DecodePass)
    return [(index, 1) for index in forward_pass._index.tolist()]


def save_with_own_keys(source: Path, target: Path) -> None:
    """Write a checkpoint's copy whose groups' keys and values are repeated for each head, into a new folder.

    It computes the same as the source.
    """
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    num_heads, num_groups = config["num_attention_heads"], config["num_key_value_heads"]
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if ".k_proj." in name or ".v_proj." in name:
            groups = weight.view(num_groups, weight.shape[0] // num_groups, *weight.shape[1:])
            weights[name] = groups.repeat_interleave(num_heads // num_groups, dim=0).flatten(0, 1)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps({**config, "num_key_value_heads": num_heads}))
