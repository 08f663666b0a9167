"""First weights of the starter's network: heads that read the tokens before, and heads that find equal ones.

Trained from random weights, a network of this size needs hours until it copies; these weights provide the parts:

* layers 0 and 1: each head attends to the token a fixed number of places back (`OFFSETS`), whatever that token is. All
  embeddings share a constant in dimension 0; queries and keys read it through the fast rotary frequencies, with the
  query rotated by the offset.
* layers 2 and 3: each head compares what two tokens are or follow (`COMPARED`), on the slow frequencies, which hardly
  depend on distance, and copies what it attends to. The first head of each attends to what followed the same token
  before (induction, Olsson et al. 2022).

All weights are then trained. Legend: D width, H heads, C channels of a head.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from services.generate.training.reading.network import ROPE_THETA, Network

OFFSETS = ((1, 2, 3, 4), (1, 2, 3, 6))
# Places back of the tokens that a query and a key are compared by; 0 is the token itself.
COMPARED = (((0, 1), (1, 2), (1, 1), (0, 0)), ((0, 1), (1, 2), (2, 2), (1, 1)))
NUM_FAST, FIRST_SLOW = 10, 12  # rotary frequencies, fastest first
CONSTANT = 4.0  # of dimension 0 in every embedding
SHARPNESS = 1.5


@torch.no_grad()
def set_first_weights(network: Network, seed: int) -> None:
    """Set the weights in place; the same for the same seed."""
    torch.manual_seed(seed)
    width, channels = network.shape.width, network.shape.channels
    table = network.embeddings
    table.normal_()
    table[:, 0] = 0
    table.mul_(math.sqrt(width) / table.norm(dim=1, keepdim=True))
    table[:, 0] = CONSTANT
    layers: list[Any] = list(network.layers)
    for number, layer in enumerate(layers):
        if number < len(OFFSETS):
            constant = CONSTANT if number == 0 else CONSTANT / math.sqrt(1 + network.shape.heads)
            _set_offset_heads(layer, OFFSETS[number], constant, channels, 2.0 if number == 0 else 0.3)
        elif number < len(OFFSETS) + len(COMPARED):
            _set_comparing_heads(layer, layers[0], COMPARED[number - len(OFFSETS)], channels)
        for matrix in (layer.out, layer.down):
            matrix[0] = 0  # the constant does not change


def _set_offset_heads(layer: Any, offsets: tuple[int, ...], constant: float, channels: int, gain: float) -> None:
    """q · k = 8 Σ_f cos(θ_f (i − j − offset)) over the fast frequencies f, whatever tokens i and j are."""
    half = channels // 2
    theta = ROPE_THETA ** (-torch.arange(NUM_FAST) / half)
    amplitude = math.sqrt(8 * math.sqrt(channels)) / constant
    key, query = _heads(layer.k, channels), _heads(layer.q, channels)
    key.normal_(0, 0.001)
    query.normal_(0, 0.001)
    key[:, :NUM_FAST, 0] = amplitude
    for head, offset in enumerate(offsets):
        query[head, :NUM_FAST, 0] = amplitude * torch.cos(offset * theta)
        query[head, half : half + NUM_FAST, 0] = -amplitude * torch.sin(offset * theta)
    layer.v[:, 0] = 0
    nn.init.orthogonal_(layer.out, gain=gain)


def _set_comparing_heads(layer: Any, first: Any, compared: tuple[tuple[int, int], ...], channels: int) -> None:
    key, query, value = (_heads(matrix, channels) for matrix in (layer.k, layer.q, layer.v))
    half = channels // 2
    for head, (own, other) in enumerate(compared):
        # the channels that the slow frequencies rotate carry a random projection of the tokens that are compared
        mix = nn.init.orthogonal_(torch.empty(channels, channels))
        query[head] = SHARPNESS * mix @ _reader(first, own, other, channels)
        key[head] = SHARPNESS * mix @ _reader(first, other, own, channels)
        for start in (0, half):
            query[head, start : start + FIRST_SLOW] = 0
            key[head, start : start + FIRST_SLOW] = 0
    value[:, :, 0] = 0
    layer.out.copy_(value.flatten(0, 1).T * 0.5)


def _reader(first: Any, offset: int, other: int, channels: int) -> Tensor:
    """A matrix (C, D) that reads a token some places back, through the head of layer 0 that has copied it.

    The token itself is read through the same head's values as the `other` one, so that both are comparable.
    """
    values, out = _heads(first.v, channels), first.out
    if offset == 0:
        own: Tensor = values[max(other, 1) - 1].clone()
        return own
    columns = out[:, (offset - 1) * channels : offset * channels].T
    back: Tensor = columns / columns.norm(dim=1, keepdim=True)
    if other in (0, offset):
        return back
    between: Tensor = values[other - 1] @ values[offset - 1].T
    return between @ back


def _heads(matrix: Tensor, channels: int) -> Tensor:
    """A view of a projection as (H, C, D)."""
    return matrix.view(-1, channels, matrix.shape[1])
