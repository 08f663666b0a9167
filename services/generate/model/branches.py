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
from services.generate.model.kv_cache import KeyValues
from services.generate.model.packed_branches import LayerCall, PackedBranches, can_pack
from services.generate.model.segments import Branch, Range, Segment


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

    def numbers(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the segment's keys and values of a layer (Hkv, R, hd), new or known."""
        if self.rows is not None:
            return key[0, :, self.rows], value[0, :, self.rows]
        known = self.segment.key_values
        assert known is not None
        return known.keys[layer], known.values[layer]

    def keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keep the segment's keys and values of a layer if that is wanted."""
        if self.segment.is_kept:
            keys, values = self.numbers(layer, key, value)
            self.keys.append(keys.clone())
            self.values.append(values.clone())

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

    def __init__(
        self, branches: Sequence[Branch], num_layers: int, device: torch.device, dtype: torch.dtype, *, is_packed: bool
    ) -> None:
        """With `is_packed`, the branches of a prompt attend together where they can: see `PackedBranches`."""
        self._branches = branches
        self._num_layers = num_layers
        self._masks = LowerRightMasks(max(branch.segments[-1].stop for branch in branches), device, dtype)
        self._measured: list[list[Tensor]] = [[] for _ in branches]
        self._plans: list[list[SegmentPlan]] = []
        first = 0
        for branch in branches:
            self._plans.append([])
            for segment in branch.segments:
                rows = None if segment.key_values is not None else slice(first, first + len(segment.input_ids))
                self._plans[-1].append(SegmentPlan(segment, rows, _seen(branch, segment)))
                first = first if rows is None else rows.stop
        self._groups: list[tuple[range, PackedBranches | None]] = []
        self._documents: dict[int, Documents] = {}  # of branches that attend one by one
        for group in _by_prompt(branches):
            some = branches[group.start : group.stop]
            packed = None
            if is_packed and can_pack(some):
                packed = PackedBranches(some, self._rows(group), device, dtype)
            else:
                self._documents |= {place: Documents.of([branches[place].spans], device) for place in group}
            self._groups.append((group, packed))

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
        for group, packed in self._groups:
            slot = self._branches[group.start].slot
            own_keys, own_values = (
                layers[layer][slot.index, :, : slot.length] for layers in (slot.cache.keys, slot.cache.values)
            )
            call = LayerCall(
                layer, query, key, value, own_keys, own_values, scaling, sliding_window, layer + 1 < self._num_layers
            )
            if packed is None:
                self._attend_one_by_one(group, call, attended)
                continue
            output, measured = packed.attend(call)
            for place, one in zip(group, measured, strict=True):
                self._measured[place].append(one)
            if output is not None:
                attended[0, packed.rows] = output
        for segment in itertools.chain.from_iterable(self._plans):
            segment.keep(layer, key, value)
        return attended

    def _attend_one_by_one(self, group: range, call: LayerCall, attended: Tensor) -> None:
        """Attend the branches of a prompt in a copy of its keys and values, into which each is written in turn."""
        keys, values = call.prompt_keys.clone(), call.prompt_values.clone()
        for place in group:
            plan = self._plans[place]
            for segment in plan:
                numbers = segment.numbers(call.layer, call.key, call.value)
                keys[:, segment.places], values[:, segment.places] = numbers
            for segment in plan:
                if segment.rows is not None and call.needs_output:
                    rows = call.query[:, :, segment.rows]
                    attended[0, segment.rows] = segment.attend(
                        rows, keys[None], values[None], call.scaling, call.window, self._masks
                    )
            self._measured[place].append(self._measure(place, call.query, keys, call.scaling, call.window))
            for segment in plan:
                keys[:, segment.places] = call.prompt_keys[:, segment.places]
                values[:, segment.places] = call.prompt_values[:, segment.places]

    def _rows(self, group: range) -> slice:
        """Return the packed rows of a prompt's branches."""
        rows = [segment.rows for place in group for segment in self._plans[place] if segment.rows is not None]
        return slice(rows[0].start, rows[-1].stop)

    def _measure(self, place: int, query: Tensor, keys: Tensor, scaling: float, window: int | None) -> Tensor:
        """Measure a branch's last row: (H, K)."""
        last = self._plans[place][-1]
        assert last.rows is not None
        row = query[:, :, last.rows.stop - 1 : last.rows.stop]
        visible = last.visible_from_last(window, self._masks)
        return measure_rows(row, keys[None, :, : last.segment.stop], scaling, visible, self._documents[place])[0, :, 0]


def _by_prompt(branches: Sequence[Branch]) -> list[range]:
    """List the places of each prompt's branches, which are adjacent."""
    groups = [list(some) for _, some in itertools.groupby(range(len(branches)), lambda place: branches[place].slot)]
    return [range(group[0], group[-1] + 1) for group in groups]


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
