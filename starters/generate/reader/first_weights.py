"""First weights of the starter's network: heads that collect the words before a token, and heads that compare them.

Trained from random weights, a network of this size copies within minutes, but does not learn for hours to find the
sentence about a name. These weights provide the parts:

* Layer 0: a head attends to the token before, the others evenly to a window of tokens before (`WINDOWS`), whatever they
  are. All embeddings share a constant in dimension 0; queries and keys read it through the rotary frequencies, with
  amplitudes fitted to the wanted function of the distance. Windows read the same projection of tokens and write it to
  dimensions of their own. The most frequent tokens, which say little about what a sentence is about, have embeddings in
  other dimensions than those that windows read.
* Layers 1 and 2: each head compares what two tokens have gathered (`COMPARED`), on the slow frequencies, which hardly
  depend on distance. A token does not attend to its neighbourhood, where everything is alike. The first head attends to
  what followed the same token before (induction, Olsson et al. 2022).

All weights are then trained. Legend: D width, H heads, C channels of a head, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from starters.generate.reader.network import ROPE_THETA, Network

# The last tokens that the heads of layer 0 after the first gather, itself included.
WINDOWS = (10, 18)
# The windows that a query and a key are compared by, in the heads after the first.
COMPARED = (((1, 0), (0, 0)), ((1, 0), (1, 1)))
FIRST_SLOW = 12  # of the rotary frequencies, fastest first
CONSTANT = 4.0  # of dimension 0 in every embedding
# Embeddings: the constant, common tokens, others; then each window's dimensions.
COMMON_END, EMBEDDING_END, GATHERED = 16, 96, 48
GATHERING_GAIN, COMPARING_GAIN = 4.0, 1.8
NEIGHBOURHOOD, AVERSION = 20, 12.0


@torch.no_grad()
def set_first_weights(network: Network, common: Sequence[int], seed: int) -> None:
    """Set the weights in place; the same for the same seed. `common` are frequent tokens that name nothing.

    Raises ValueError for a network of another width than the dimensions above.
    """
    if network.shape.width != EMBEDDING_END + GATHERED * len(WINDOWS) or network.shape.heads != 1 + len(WINDOWS):
        raise ValueError("the first weights are made for another shape")
    torch.manual_seed(seed)
    channels = network.shape.channels
    _set_embeddings(network.embeddings, common)
    layers: list[Any] = list(network.layers)
    _set_gathering_heads(layers[0], channels)
    for layer, compared in zip(layers[1:], COMPARED, strict=False):
        _set_comparing_heads(layer, layers[0], compared, channels)
    for layer in layers:
        for matrix in (layer.out, layer.down):
            matrix[0] = 0  # the constant does not change


def _set_embeddings(table: Tensor, common: Sequence[int]) -> None:
    """Set random directions of length √D in the dimensions of common and of other tokens."""
    width = table.shape[1]
    rows = torch.tensor(list(common))
    is_common = torch.zeros(len(table), 1, dtype=torch.bool)
    is_common[rows] = True
    dimension = torch.arange(width)
    low, high = (dimension > 0) & (dimension < COMMON_END), (dimension >= COMMON_END) & (dimension < EMBEDDING_END)
    table.normal_()
    table.mul_(torch.where(is_common, low, high))
    table.mul_(math.sqrt(width) / table.norm(dim=1, keepdim=True))
    table[:, 0] = CONSTANT


def _set_gathering_heads(layer: Any, channels: int) -> None:
    key, query, value = (_heads(matrix, channels) for matrix in (layer.k, layer.q, layer.v))
    key.normal_(0, 0.001)
    query.normal_(0, 0.001)
    _set_offset(query[0], key[0], 1)
    value[:, :, 0] = 0
    layer.out.normal_(0, 0.01)
    before = nn.init.orthogonal_(torch.empty(EMBEDDING_END - COMMON_END, channels))
    layer.out[COMMON_END:EMBEDDING_END, :channels] = before
    shared = nn.init.orthogonal_(torch.empty(GATHERED, EMBEDDING_END - COMMON_END))
    for number, length in enumerate(WINDOWS):
        head, start = 1 + number, EMBEDDING_END + number * GATHERED
        _set_kernel(query[head], key[head], CONSTANT, range(channels // 2), _window(length))
        value[head] = 0
        value[head, :GATHERED, COMMON_END:EMBEDDING_END] = shared
        layer.out[start : start + GATHERED] = 0
        columns = slice(head * channels, head * channels + GATHERED)
        layer.out[start : start + GATHERED, columns] = GATHERING_GAIN * torch.eye(GATHERED)


def _set_comparing_heads(layer: Any, first: Any, compared: Sequence[tuple[int, int]], channels: int) -> None:
    key, query, value = (_heads(matrix, channels) for matrix in (layer.k, layer.q, layer.v))
    half = channels // 2
    slow = [*range(FIRST_SLOW, half), *range(half + FIRST_SLOW, channels)]
    constant = CONSTANT / 1.35  # after the normalisation of layers 1 and 2
    query.zero_()
    key.zero_()
    # induction: what a token is, and what stood before another one
    mix = nn.init.orthogonal_(torch.empty(len(slow), channels))
    before = first.out[COMMON_END:EMBEDDING_END, :channels]
    query[0, slow] = 1.5 * mix @ _heads(first.v, channels)[0]
    key[0][slow, COMMON_END:EMBEDDING_END] = 1.5 * mix @ before.T
    for head, windows in enumerate(compared, start=1):
        mix = COMPARING_GAIN * nn.init.orthogonal_(torch.empty(len(slow), GATHERED))
        for side, window in zip((query, key), windows, strict=True):
            start = EMBEDDING_END + window * GATHERED
            side[head][slow, start : start + GATHERED] = mix
        _set_kernel(query[head], key[head], constant, range(FIRST_SLOW), _aversion)
    value[:, :, 0] = 0
    layer.out.copy_(value.flatten(0, 1).T * 0.5)


def _set_offset(query: Tensor, key: Tensor, offset: int) -> None:
    """Add 12 Σ_f cos(θ_f (distance − offset)) over the fastest frequencies f to q · k / √C."""
    half = len(query) // 2
    theta = ROPE_THETA ** (-torch.arange(FIRST_SLOW) / half)
    amplitude = math.sqrt(12 * math.sqrt(len(query))) / CONSTANT
    key[:FIRST_SLOW, 0] += amplitude
    query[:FIRST_SLOW, 0] += amplitude * torch.cos(offset * theta)
    query[half : half + FIRST_SLOW, 0] += -amplitude * torch.sin(offset * theta)


def _window(length: int) -> Callable[[Tensor], Tensor]:
    return lambda distance: torch.where(distance < length, 10.0, 0.0)


def _aversion(distance: Tensor) -> Tensor:
    return torch.where(distance <= NEIGHBOURHOOD, -AVERSION, 0.0)


def _set_kernel(
    query: Tensor,
    key: Tensor,
    constant: float,
    frequencies: Sequence[int],
    kernel: Callable[[Tensor], Tensor],
    longest: int = 512,
) -> None:
    """Add to q · k / √C a function of the distance, fitted by least squares with the given rotary frequencies."""
    channels = len(query)
    half = channels // 2
    theta = ROPE_THETA ** (-torch.tensor(list(frequencies)) / half)
    distance = torch.arange(longest).float()
    angles = distance[:, None] * theta
    basis = torch.cat([angles.cos(), angles.sin()], 1)
    wanted = kernel(distance)
    # near distances count more, because most of a function's change is there
    near = (1 + 20 * torch.exp(-distance / 20))[:, None]
    gram = (basis * near).T @ basis + 0.05 * torch.eye(basis.shape[1])
    cosine, sine = torch.linalg.solve(gram, (basis * near).T @ wanted).chunk(2)
    scale = math.sqrt(channels) / constant**2
    # q and k share the amplitude; rotation by the distance turns q's phase into the cosine's
    amplitude = (scale * (cosine**2 + sine**2).sqrt()).sqrt()
    phase = torch.atan2(sine, cosine)
    for place, number in enumerate(frequencies):
        key[number, 0] += amplitude[place]
        query[number, 0] += amplitude[place] * torch.cos(phase[place])
        query[number + half, 0] += -amplitude[place] * torch.sin(phase[place])


def _heads(matrix: Tensor, channels: int) -> Tensor:
    """A view of a projection as (H, C, D)."""
    return matrix.view(-1, channels, matrix.shape[1])
