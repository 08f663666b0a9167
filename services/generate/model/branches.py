"""Branches: the attention of a prompt's last token if some of its tokens were replaced.

A branch replaces tokens of a cached prompt by segments at the same positions, without changing the cache: in each
layer, the segments are written into a copy of the prompt's keys and values, and each segment attends to given ranges
of it. Since each position has only one token, causality and windows are those of the prompt itself, and most segments
see one contiguous view.

Shapes: L' layers that run, H heads, Hkv key/value heads, R rows of a segment, S keys from the first to the last that
it sees, K documents, hd width of a head.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generate.calibration import Documents, measure_rows
from services.generate.model.causal_attention import LowerRightMasks, attend_last, attend_masked
from services.generate.model.kv_cache import KeyValues, Slot

Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Segment:
    """Tokens from `position` on that replace the prompt's own.

    Each sees the tokens of `sees`, half-open ranges of positions, and the branch's own tokens up to itself. With
    `key_values` (of L' layers or more), they are already known and not run.
    """

    input_ids: tuple[int, ...]
    position: int
    sees: tuple[Range, ...]
    key_values: KeyValues | None = None
    is_kept: bool = False

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.position + len(self.input_ids)


@dataclass(frozen=True, eq=False)
class Branch:
    """Segments in order of position; the last row of the last one is measured on `spans` (positions)."""

    slot: Slot
    segments: tuple[Segment, ...]
    spans: tuple[Range, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens to run."""
        return sum(len(segment.input_ids) for segment in self.segments if segment.key_values is None)


@dataclass(frozen=True, eq=False)
class Branched:
    """`attention` (L', H, K), Attn(k) of the branch's last row, float32; `kept` for each segment, None if not kept."""

    attention: Tensor
    kept: tuple[KeyValues | None, ...]


class SegmentPlan:
    """A segment's rows in the packed row, and the keys that they read.

    `rows` is None for a segment that is already known. `ranges` are the positions that it sees, its own last.
    """

    def __init__(self, segment: Segment, rows: slice | None, ranges: list[Range]) -> None:
        self.segment = segment
        self.rows = rows
        self.keys: list[Tensor] = []  # kept, layer by layer
        self.values: list[Tensor] = []
        self._ranges = ranges
        self._start = ranges[0][0]
        num_seen = sum(stop - start for start, stop in ranges)
        # a few of many keys are copied together; if most are seen, the others are masked
        self._is_sparse = 2 * num_seen < segment.stop - self._start
        self._masks: dict[int | None, Tensor] = {}

    @property
    def places(self) -> slice:
        """The segment's positions in the prompt."""
        return slice(self.segment.position, self.segment.stop)

    def attend(
        self, rows: Tensor, keys: Tensor, values: Tensor, scaling: float, window: int | None, masks: LowerRightMasks
    ) -> Tensor:
        """Attend (1, H, R, hd) over the prompt's keys with the branch in them, (1, Hkv, T, hd) → (R, H, hd)."""
        if len(self._ranges) == 1:
            keys, values = (numbers[:, :, self._start : self.segment.stop] for numbers in (keys, values))
            return attend_last(rows, keys, values, scaling, window, masks)
        if window not in self._masks:
            seen = self._read(self._visible(rows.shape[2], window, masks), axis=1)
            self._masks[window] = torch.zeros_like(seen, dtype=rows.dtype).masked_fill_(~seen, -torch.inf)
        keys, values = self._read(keys, axis=2), self._read(values, axis=2)
        return attend_masked(rows, keys, values, scaling, self._masks[window])

    def visible_from_last(self, window: int | None, masks: LowerRightMasks) -> Tensor | None:
        """Make a mask (1, 1, S) bool over all positions up to the last; None if the last row sees all."""
        if self._ranges == [(0, self.segment.stop)] and (window is None or self.segment.stop <= window):
            return None
        return self._visible(1, window, masks)[None]

    def _visible(self, num_rows: int, window: int | None, masks: LowerRightMasks) -> Tensor:
        """Make a mask (R, S) bool for the last R tokens over all positions up to the last."""
        visible = masks.visible(num_rows, self.segment.stop, window)
        hidden = itertools.pairwise([(0, 0), *self._ranges])
        for (_, start), (stop, _) in hidden:
            visible[:, start:stop] = False
        return visible

    def _read(self, numbers: Tensor, axis: int) -> Tensor:
        """Select the values at the positions that are read."""
        if not self._is_sparse:
            return numbers.narrow(axis, self._start, self.segment.stop - self._start)
        return torch.cat([numbers.narrow(axis, start, stop - start) for start, stop in self._ranges], axis)


class BranchPass:
    """Branches of any prompts in one packed row; those of one prompt are adjacent.

    Its last layer computes only weights, and returns zeros as output.
    """

    def __init__(self, branches: Sequence[Branch], num_layers: int, device: torch.device, dtype: torch.dtype) -> None:
        self._branches = branches
        self._num_layers = num_layers
        self._masks = LowerRightMasks(max(branch.segments[-1].stop for branch in branches), device, dtype)
        self._documents = [Documents.of([branch.spans], device) for branch in branches]
        self._measured: list[list[Tensor]] = [[] for _ in branches]
        self._plans: list[list[SegmentPlan]] = []
        first = 0
        for branch in branches:
            self._plans.append([])
            for segment in branch.segments:
                rows = None if segment.key_values is not None else slice(first, first + len(segment.input_ids))
                self._plans[-1].append(SegmentPlan(segment, rows, _seen(branch, segment)))
                first = first if rows is None else rows.stop

    def results(self) -> list[Branched]:
        """Return the results once all layers have run."""
        return [
            Branched(
                torch.stack(measured),
                tuple(
                    KeyValues(torch.stack(segment.keys), torch.stack(segment.values)) if segment.keys else None
                    for segment in plan
                ),
            )
            for measured, plan in zip(self._measured, self._plans, strict=True)
        ]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend as `ForwardPass.attend`, with a batch of one packed row."""
        attended = query.new_zeros(1, query.shape[2], query.shape[1], query.shape[3])
        for slot, places in itertools.groupby(range(len(self._branches)), lambda place: self._branches[place].slot):
            own_keys, own_values = (
                layers[layer][slot.index, :, : slot.length] for layers in (slot.cache.keys, slot.cache.values)
            )
            keys, values = own_keys.clone(), own_values.clone()
            for place in places:
                plan = self._plans[place]
                for segment in plan:
                    _write(segment, layer, (key, value), (keys, values))
                if layer + 1 < self._num_layers:
                    for segment in plan:
                        if segment.rows is not None:
                            attended[0, segment.rows] = segment.attend(
                                query[:, :, segment.rows],
                                keys[None],
                                values[None],
                                scaling,
                                sliding_window,
                                self._masks,
                            )
                self._measured[place].append(self._measure(place, query, keys, scaling, sliding_window))
                for segment in plan:
                    keys[:, segment.places] = own_keys[:, segment.places]
                    values[:, segment.places] = own_values[:, segment.places]
        return attended

    def _measure(self, place: int, query: Tensor, keys: Tensor, scaling: float, window: int | None) -> Tensor:
        """Measure a branch's last row: (H, K)."""
        last = self._plans[place][-1]
        assert last.rows is not None
        row = query[:, :, last.rows.stop - 1 : last.rows.stop]
        visible = last.visible_from_last(window, self._masks)
        return measure_rows(row, keys[None, :, : last.segment.stop], scaling, visible, self._documents[place])[0, :, 0]


def _write(segment: SegmentPlan, layer: int, new: tuple[Tensor, Tensor], prompt: tuple[Tensor, Tensor]) -> None:
    """Write a segment's keys and values of a layer, new or known, to their places."""
    known = segment.segment.key_values
    if segment.rows is None:
        assert known is not None
        rows = known.keys[layer], known.values[layer]
    else:
        rows = new[0][0, :, segment.rows], new[1][0, :, segment.rows]
    for numbers, own in zip(prompt, rows, strict=True):
        numbers[:, segment.places] = own
    if segment.segment.is_kept:
        segment.keys.append(rows[0].clone())
        segment.values.append(rows[1].clone())


def _seen(branch: Branch, segment: Segment) -> list[Range]:
    """List the ranges that a segment sees, including its own tokens: sorted, not adjacent, the last up to its end.

    Raises ValueError for a prompt's token that is after it or not cached.
    """
    if segment.stop > branch.slot.length or any(stop > segment.position for _, stop in segment.sees):
        raise ValueError("a segment must replace cached tokens and may only see tokens before it")
    own = [(each.position, each.stop) for each in branch.segments if each.stop <= segment.stop]
    merged: list[Range] = []
    for start, stop in sorted((start, stop) for start, stop in (*segment.sees, *own) if start < stop):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
