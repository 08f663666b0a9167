"""The calibrated and measured rows of one forward pass, and their attention in each layer.

Shapes: R rows of calibrated or measured requests, H query heads of this worker, K documents, D head width.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fovea_vllm.attention.attend import attend_documents
from fovea_vllm.attention.rows import DocumentRows
from fovea_vllm.request import DocumentRequest

# Requests whose attention nobody has taken; the oldest are dropped first.
MAX_KEPT = 1024


class Measurements:
    """Attn(k) of prompts' last rows, by the key that a request gave, layer by layer.

    H heads of this worker, K documents.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._kept: OrderedDict[str, dict[int, Tensor]] = OrderedDict()

    def put(self, key: str, layer: int, attention: Tensor) -> None:
        """Keep a layer's attention (K, H), replacing an earlier one of the same key."""
        self._kept.setdefault(key, {})[layer] = attention
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def take(self, key: str) -> list[list[list[float]]] | None:
        """Return and forget Attn(k), L × H × K numbers; None if the key is unknown or layers are missing."""
        layers = self._kept.get(key)
        if layers is None or len(layers) < self._num_layers:
            return None
        del self._kept[key]
        numbers: list[list[list[float]]] = torch.stack([layers[i].T for i in range(self._num_layers)]).tolist()
        return numbers


@dataclass(frozen=True)
class Row:
    """A token of the step: row `token` of the queries, with `num_seen` tokens of its request up to itself.

    `place` is the request's place in the batch, `is_measured` whether its attention is kept instead of changed, and
    `is_alone` whether the step has no other token of the request.
    """

    token: int
    place: int
    num_seen: int
    request: DocumentRequest
    is_measured: bool
    is_alone: bool = False

    def acts_in(self, layer: int) -> bool:
        """Whether the row is measured or calibrated in a layer."""
        return self.is_measured or layer in self.request.layers


def rows_of(
    requests: Mapping[int, DocumentRequest], slots: Sequence[int], query_starts: Sequence[int], lengths: Sequence[int]
) -> list[Row]:
    """Find the rows of a step's requests.

    `slots` are the keys in `requests` of the batch's places, `query_starts` where each place's queries begin, with
    their total last, and `lengths` the tokens of each with those of this step.
    """
    rows = []
    for place, slot in enumerate(slots):
        request = requests.get(slot)
        if request is None:
            continue
        first, num_new = query_starts[place], query_starts[place + 1] - query_starts[place]
        num_before = lengths[place] - num_new
        if request.measure_key is not None:
            wanted = range(request.last_prompt_row, request.last_prompt_row + 1)
        elif request.is_calibrated:
            wanted = range(request.first_calibrated, lengths[place])
        else:
            continue
        rows += [
            Row(
                first + position - num_before,
                place,
                position + 1,
                request,
                request.measure_key is not None,
                num_new == 1,
            )
            for position in range(max(num_before, wanted.start), min(lengths[place], wanted.stop))
        ]
    return rows


@dataclass(frozen=True, eq=False)
class LayerRows:
    """The rows of a step that act in a layer. `tokens` (R,) and `log_alpha` (R, K), or (R, K, H), are on the device;
    `changed` (R') are the places in `tokens` of the rows that are calibrated."""

    rows: tuple[Row, ...]
    tokens: Tensor
    documents: DocumentRows
    changed: Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """The rows of a forward pass; `block_table` (B, M) is the batch's. Layers with the same rows share their layout."""

    rows: tuple[Row, ...]
    block_table: Tensor
    _layouts: dict[tuple[bool, ...], LayerRows] = field(default_factory=dict, repr=False)
    _log_alpha: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def attend(  # noqa: PLR0913 (a layer's attention)
        self,
        layer: int,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        output: Tensor,
        measurements: Measurements,
        *,
        scale: float,
        window: int | None,
        first_head: int = 0,
    ) -> None:
        """Overwrite the output of the layer's calibrated rows, and keep the attention of the measured ones.

        `query` and `output` (T, H, D); the caches (blocks, block size, key heads, D) with the step's own tokens in
        them; `first_head` is the number of this worker's first head. Other rows of `output` are not touched.
        """
        if (chosen := self._layout(layer)) is None:
            return
        log_alpha = _log_alpha(chosen.rows, layer, first_head, query.shape[1]).to(query.device)
        attended, attention = attend_documents(
            query[chosen.tokens], key_cache, value_cache, chosen.documents, log_alpha, scale=scale, window=window
        )
        if len(chosen.changed):
            output[chosen.tokens[chosen.changed]] = attended[chosen.changed].to(output.dtype)
        for place, row in enumerate(chosen.rows):
            if row.is_measured and row.request.measure_key is not None:
                measurements.put(row.request.measure_key, layer, attention[place, : len(row.request.spans)])

    def _layout(self, layer: int) -> LayerRows | None:
        pattern = tuple(row.acts_in(layer) for row in self.rows)
        if not any(pattern):
            return None
        if pattern not in self._layouts:
            rows = tuple(row for row, acts in zip(self.rows, pattern, strict=True) if acts)
            device = self.block_table.device
            documents = DocumentRows.of(
                self.block_table[torch.tensor([row.place for row in rows], device=device)],
                [row.num_seen for row in rows],
                [row.request.spans for row in rows],
            )
            self._layouts[pattern] = LayerRows(
                rows,
                torch.tensor([row.token for row in rows], device=device),
                documents,
                torch.tensor([i for i, row in enumerate(rows) if not row.is_measured], dtype=torch.long, device=device),
            )
        return self._layouts[pattern]


def _log_alpha(rows: Sequence[Row], layer: int, first_head: int, num_heads: int) -> Tensor:
    """Lay out log α of rows in a layer: (R, K), or (R, K, H) if any has one per head; −inf for measured rows."""
    width = max(len(row.request.spans) for row in rows)
    found = [_row_log_alpha(row.request, layer) for row in rows]
    if all(alpha.dim() == 1 for alpha in found):
        log_alpha = torch.full((len(rows), width), -torch.inf)
        for place, alpha in enumerate(found):
            log_alpha[place, : len(alpha)] = alpha
        return log_alpha
    log_alpha = torch.full((len(rows), width, num_heads), -torch.inf)
    for place, alpha in enumerate(found):
        per_head = alpha[:, None] if alpha.dim() == 1 else alpha[first_head : first_head + num_heads].T
        log_alpha[place, : per_head.shape[0]] = per_head
    return log_alpha


def _row_log_alpha(request: DocumentRequest, layer: int) -> Tensor:
    """Return (K,), or (all heads, K)."""
    num_documents = len(request.spans)
    if not request.log_alpha:
        return torch.full((num_documents,), -torch.inf)
    log_alpha = torch.tensor(request.log_alpha, dtype=torch.float64).view(-1, num_documents)
    log_alpha = (log_alpha - log_alpha.amax(dim=-1, keepdim=True)).float()
    if len(log_alpha) == 1:
        return log_alpha[0]
    return log_alpha.view(len(request.layers), -1, num_documents)[request.layers.index(layer)]
