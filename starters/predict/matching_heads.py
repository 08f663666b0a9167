"""T5s from scratch that begin by comparing: half of the encoder's heads attend to equal tokens, the others nearby."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from services.predict.training.initialisation import Shape, create_t5

# The first bucket of T5's relative positions is a token's own; equal tokens begin with a logit of √d_kv, 5.7 for 32.
OWN_POSITION_BIAS = -12.0
# Where other heads do not begin to look: a bias moves by at most the learning rate a step, too slowly to learn this.
ELSEWHERE_BIAS = -6.0
# Buckets of relative positions: 0 is a token's own, 1 to 7 tokens so many places before it, the next 8 those further
# before, and the second half those after it.
_AFTER = 16
_NEAR = 3

SHAPES: Mapping[str, Shape] = {
    # Two sentences are compared word by word: from random keys, 50,000 pairs of sentences taught nothing.
    "micro": Shape(128, 3, 4, 512, d_kv=32, dropout=0.0),
    # The encoder compares; a decoder that writes one of three labels costs as much for each of its layers.
    "milli": Shape(192, 4, 6, 512, d_kv=32, dropout=0.0, num_decoder_layers=2),
    # Learns what "milli" has no room for, from millions of pairs: hours on a CPU, minutes on a GPU.
    "centi": Shape(256, 6, 8, 640, d_kv=32, dropout=0.0, num_decoder_layers=2),
}


def create_matching_t5(shape: str, vocab_size: int, seed: int) -> Any:
    """Create a T5 whose equal tokens attend to each other in half of the encoder's heads.

    The other heads begin to look only before a token, near it, or after it. Raises KeyError for an unknown shape.
    """
    sizes = SHAPES[shape]
    model = create_t5(sizes, vocab_size, seed)
    _match_equal_tokens(model, sizes)
    return model


@torch.no_grad()
def _match_equal_tokens(model: Any, sizes: Shape) -> None:
    """Begin half of the encoder's heads with their queries as keys, in the keys' scale, and without their own position.

    In the first block, what such a head returns is the token that it attends to, projected and negative: what two
    sentences share is taken away, and the words in which they differ remain.
    """
    num_heads = sizes.num_heads // 2
    rows = slice(0, num_heads * sizes.d_kv)
    _begin_matching(model.encoder, rows)
    first = model.encoder.block[0].layer[0].SelfAttention
    first.o.weight[:, rows] = -_take_tokens(first, rows)
    biases = first.relative_attention_bias.weight
    biases[0, :num_heads] = OWN_POSITION_BIAS
    for head in range(num_heads, sizes.num_heads):
        _look((head - num_heads) % 3, biases[:, head])


@torch.no_grad()
def add_matching_heads(model: Any, num_heads: int, seed: int) -> Any:
    """Copy a T5 with more heads, which begin by matching equal tokens in the encoder and change no answer.

    They take what they find in the first block, and random projections of it in later ones; their outputs begin as 0.
    """
    config = copy.deepcopy(model.config)
    config.num_heads += num_heads
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        grown = type(model)(config)
    weights = model.state_dict()
    for name, weight in grown.state_dict().items():
        old = weights[name]
        if name.endswith("Attention.o.weight"):
            weight.zero_()
        weight[tuple(slice(0, size) for size in old.shape)] = old
    added = slice(model.config.num_heads * config.d_kv, None)
    _begin_matching(grown.encoder, added)
    first = grown.encoder.block[0].layer[0].SelfAttention
    _take_tokens(first, added)
    first.relative_attention_bias.weight[:, model.config.num_heads :] = 0
    first.relative_attention_bias.weight[0, model.config.num_heads :] = OWN_POSITION_BIAS
    return grown


def _begin_matching(encoder: Any, rows: slice) -> None:
    """Begin the keys of some heads as their queries, in the keys' scale."""
    for block in encoder.block:
        attention = block.layer[0].SelfAttention
        queries = attention.q.weight[rows]
        attention.k.weight[rows] = queries * (attention.k.weight[rows].std() / queries.std())


def _take_tokens(attention: Any, rows: slice) -> Tensor:
    """Let the values of some heads be orthonormal projections of the tokens; return the matrix that undoes them."""
    orthonormal: Tensor = torch.linalg.qr(attention.v.weight[rows].T).Q
    attention.v.weight[rows] = orthonormal.T
    return orthonormal


def _look(way: int, bias: Tensor) -> None:
    """Let a head look before a token, near it, or after it: way 0, 1 or 2. `bias` (buckets,) is changed."""
    if way == 0:
        bias[0], bias[_AFTER:] = ELSEWHERE_BIAS, ELSEWHERE_BIAS
    elif way == 1:
        bias[_NEAR:_AFTER], bias[_AFTER + _NEAR :] = ELSEWHERE_BIAS, ELSEWHERE_BIAS
    else:
        bias[:_AFTER] = ELSEWHERE_BIAS
