"""Calibrated attention by Eq. 3.5 as it is printed, token by token in float64, and random paged rows to try it on."""

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shape:
    """Sizes of one trial; `lengths` and `spans` are those of each row."""

    num_heads: int
    num_groups: int
    width: int
    block_size: int
    window: int | None
    lengths: tuple[int, ...]
    spans: tuple[Spans, ...]

    @property
    def num_documents(self) -> int:
        return max(map(len, self.spans), default=0)


@dataclass(frozen=True)
class Trial:
    """Rows in a paged cache, and the same keys and values without pages.

    `query` (R, H, D), `keys` and `values` of each row (T, H', D), `caches` (blocks, B, H', D), `log_alpha` (R, K).
    """

    shape: Shape
    query: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    log_alpha: Tensor


def random_shape(random_numbers: random.Random, max_rows: int = 4, max_heads: int = 28) -> Shape:
    """Draw sizes, with empty documents, documents that start inside a block, and rows without documents."""
    heads = [(groups, each) for groups in (1, 2, 4) for each in (1, 2, 3, 7) if groups * each <= max_heads]
    num_groups, heads_per_group = random_numbers.choice(heads)
    lengths = tuple(random_numbers.randint(1, 150) for _ in range(random_numbers.randint(1, max_rows)))
    return Shape(
        num_groups * heads_per_group,
        num_groups,
        random_numbers.choice((32, 64, 80, 96, 128)),
        random_numbers.choice((16, 32)),
        random_numbers.choice((None, None, random_numbers.randint(1, 160))),
        lengths,
        tuple(random_spans(length, random_numbers) for length in lengths),
    )


def random_spans(length: int, random_numbers: random.Random) -> Spans:
    """Draw 0 to 12 documents in any order, some empty, some adjacent."""
    places = sorted(random_numbers.randint(0, length) for _ in range(2 * random_numbers.randint(0, 12)))
    spans = list(zip(places[::2], places[1::2], strict=True))
    random_numbers.shuffle(spans)
    return tuple(spans)


def random_trial(shape: Shape, seed: int, dtype: torch.dtype = torch.float64) -> Trial:
    """Draw tensors; the blocks of a row lie anywhere in the cache, and what no row sees there is NaN.

    The cache has one of three layouts, by the seed.
    """
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_blocks = len(shape.lengths), [-(-length // shape.block_size) for length in shape.lengths]
    places = torch.randperm(sum(num_blocks) + 2, generator=generator)
    block_table = torch.zeros(num_rows, max(num_blocks) + 1, dtype=torch.int32)
    caches = empty_caches(shape, len(places), dtype, seed // 3 % 3)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    used = 0
    for row, (length, count) in enumerate(zip(shape.lengths, num_blocks, strict=True)):
        blocks = places[used : used + count]
        used += count
        block_table[row, :count] = blocks
        for cache, kept in zip(caches, (keys, values), strict=True):
            tokens = torch.randn(length, shape.num_groups, shape.width, generator=generator).to(dtype)
            kept.append(tokens.double())
            padded = torch.full((count * shape.block_size, *tokens.shape[1:]), torch.nan, dtype=dtype)
            padded[:length] = tokens
            cache[blocks] = padded.view(count, shape.block_size, *tokens.shape[1:])
    query = torch.randn(num_rows, shape.num_heads, shape.width, generator=generator)
    log_alpha = torch.randn(num_rows, shape.num_documents, generator=generator, dtype=torch.float64).log_softmax(-1)
    return Trial(shape, query.to(dtype), keys, values, *caches, block_table, log_alpha)


def empty_caches(shape: Shape, num_blocks: int, dtype: torch.dtype, layout: int) -> tuple[Tensor, Tensor]:
    """Create caches of NaN, as (blocks, B, H', D) views of one tensor.

    A token's key and value of a head lie beside each other, in a block by head (0) or by token (1), or apart (2).
    """
    size, groups, width = shape.block_size, shape.num_groups, shape.width
    if layout == 2:
        key_cache, value_cache = torch.full((2, num_blocks, size, groups, width), torch.nan, dtype=dtype)
        return key_cache, value_cache
    order = (groups, size) if layout == 0 else (size, groups)
    whole = torch.full((num_blocks, *order, 2 * width), torch.nan, dtype=dtype)
    by_token = whole.transpose(1, 2) if layout == 0 else whole
    return by_token[..., :width], by_token[..., width:]


def attend(trial: Trial, log_alpha: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute (R, H, D) and Attn(k), (R, K, H), from the definitions; `log_alpha` (R, K), or (R, K, H), or None."""
    shape = trial.shape
    out = torch.zeros(trial.query.shape, dtype=torch.float64)
    attention = torch.zeros(len(shape.lengths), shape.num_documents, shape.num_heads, dtype=torch.float64)
    for row, (length, spans) in enumerate(zip(shape.lengths, shape.spans, strict=True)):
        first = 0 if shape.window is None else max(0, length - shape.window)
        for head in range(shape.num_heads):
            group = head // (shape.num_heads // shape.num_groups)
            logits = trial.keys[row][:, group] @ trial.query[row, head].double() / math.sqrt(shape.width)
            logits[:first] = -torch.inf
            weights = logits.softmax(dim=0)
            means = [float(weights[start:end].mean()) if end > start else 0.0 for start, end in spans]
            attention[row, : len(spans), head] = torch.tensor(means, dtype=torch.float64)
            if log_alpha is not None:
                own = log_alpha[row] if log_alpha.dim() == 2 else log_alpha[row, :, head]
                weights = calibrate(weights, spans, means, own.exp().tolist())
            out[row, head] = weights @ trial.values[row][:, group]
    return out, attention


def calibrate(weights: Tensor, spans: Spans, means: list[float], alpha: list[float]) -> Tensor:
    """Multiply document k's weights by α_k C / Attn(k), C of the documents with weight."""
    documents = [(span, mean, a) for span, mean, a in zip(spans, means, alpha, strict=False) if mean > 0]
    desired = sum((end - start) * a for (start, end), _, a in documents)
    if desired == 0:
        return weights
    kept = sum((end - start) * mean for (start, end), mean, _ in documents) / desired
    weights = weights.clone()
    for (start, end), mean, a in documents:
        weights[start:end] *= a * kept / mean
    return weights
