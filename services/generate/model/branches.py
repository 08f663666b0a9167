"""Branches: the attention of a prompt's last token if some of its tokens were replaced.

A branch replaces tokens of a cached prompt by segments at the same positions, without changing the cache: in each
layer, the segments are written into a copy of the prompt's keys and values, and each segment attends to given ranges
of it. Since each position has only one token, causality and windows are those of the prompt itself, and most segments
see one contiguous view. On devices on which to start an operation costs more than to run it, `PackedBranches` attends
all branches of a prompt in one masked product: the branches' keys stand behind the prompt's, and a mask tells which of
them a row sees.

Shapes: L' layers that run, H heads, Hkv key/value heads, R rows of a segment, S keys from the first to the last that
it sees, K documents, hd width of a head; of packed branches T rows, C columns (the prompt's tokens, then the T
rows) and B branches.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.generate.calibration import Documents, measure_rows, measure_scores, row_scores
from services.generate.model.attention import LowerRightMasks, attend_last, attend_masked
from services.generate.model.kv_cache import Slot
from services.nn.device_copies import integers

Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Segment:
    """Tokens from `position` on that replace the prompt's own.

    Each sees the tokens of `sees`, half-open ranges of positions, and the branch's own tokens up to itself.
    """

    input_ids: tuple[int, ...]
    position: int
    sees: tuple[Range, ...]

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
        return sum(len(segment.input_ids) for segment in self.segments)

    @property
    def sees_all(self) -> bool:
        """Whether each token sees all tokens before it, as in a prompt."""
        return all(_seen(self, segment) == [(0, segment.stop)] for segment in self.segments)


# Numbers of a mask, so that it and the products stay small beside the model; more are attended branch by branch.
MAX_CELLS = 2**26


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A layer's queries (1, H, N, hd), keys and values (1, Hkv, N, hd) of a packed row, beside a prompt's own keys and
    values (Hkv, P, hd). `window` is the number of keys that a token sees, None for all."""

    query: Tensor
    key: Tensor
    value: Tensor
    prompt_keys: Tensor
    prompt_values: Tensor
    scaling: float
    window: int | None
    needs_output: bool


class PackedBranches:
    """The mask of the branches of one prompt, whose new rows are adjacent, and the columns of their documents."""

    def __init__(self, branches: Sequence[Branch], rows: slice, device: torch.device, dtype: torch.dtype) -> None:
        """`branches` are such that `can_pack` allows, with these rows of the packed row."""
        self.rows = rows
        self._dtype = dtype
        num_prompt = branches[0].slot.length
        segments = [(owner, segment) for owner, branch in enumerate(branches) for segment in branch.segments]
        lengths = [len(segment.input_ids) for _, segment in segments]
        # a segment sees some ranges of the prompt, without those that its branch replaces
        seen = _padded([segment.sees for _, segment in segments])
        replaced = _padded([[(own.position, own.stop) for own in branches[owner].segments] for owner, _ in segments])
        owners, numbers, places, last_rows, bounds = integers(
            np.repeat([owner for owner, _ in segments], lengths),
            np.repeat(range(len(segments)), lengths),
            [place for _, segment in segments for place in range(segment.position, segment.stop)],
            np.cumsum([branch.num_tokens for branch in branches]) - 1,
            np.concatenate([seen, replaced], axis=1).ravel(),
            device=device,
        )
        prompt = torch.arange(num_prompt, device=device)
        starts, stops = bounds.view(len(segments), -1, 2, 1).unbind(2)
        is_within = (prompt >= starts) & (prompt < stops)
        is_seen = is_within[:, : seen.shape[1]].any(dim=1) & ~is_within[:, seen.shape[1] :].any(dim=1)
        own = (owners[:, None] == owners) & (places[:, None] >= places)
        self._visible = torch.cat([is_seen[numbers], own], dim=1)
        self._row_positions, self._positions = places, torch.cat([prompt, places])
        self._last_rows = last_rows
        self.num_documents = [len(branch.spans) for branch in branches]
        self._documents = Documents.of(_columns(branches, num_prompt), device)
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {}

    def attend(self, call: LayerCall) -> tuple[Tensor | None, Tensor]:
        """Attend the branches' rows of a layer over the prompt's keys and their own.

        Returns the outputs (T, H, hd), None unless they are needed, and the measured Attn (B, H, K), in which each
        branch's own `num_documents` come first.
        """
        mask, last_mask = self._mask(call.window)
        query = call.query[:, :, self.rows]
        keys = torch.cat([call.prompt_keys, call.key[0, :, self.rows]], dim=1)
        attended = None
        if call.needs_output:
            values = torch.cat([call.prompt_values, call.value[0, :, self.rows]], dim=1)
            attended = attend_masked(query, keys[None], values[None], call.scaling, mask)
        scores = row_scores(query[:, :, self._last_rows], keys[None], call.scaling, last_mask)
        return attended, measure_scores(scores[0].transpose(0, 1)[:, :, None], self._documents)[:, :, 0]

    def _mask(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return what is added to scores (T, C), and what the branches' last rows see (1, B, C)."""
        if window not in self._masks:
            visible = self._visible
            if window is not None:
                visible = visible & (self._row_positions[:, None] - self._positions < window)
            added = torch.zeros_like(visible, dtype=self._dtype).masked_fill_(~visible, -torch.inf)
            self._masks[window] = added, visible[self._last_rows][None]
        return self._masks[window]


def can_pack(branches: Sequence[Branch]) -> bool:
    """Return whether the mask of a prompt's branches is of bearable size, and no document crosses a segment's end."""
    num_rows = sum(branch.num_tokens for branch in branches)
    if num_rows * (branches[0].slot.length + num_rows) > MAX_CELLS:
        return False
    spans = [(branch, span) for branch in branches for span in branch.spans]
    return all(_own(branch, span) is not None or not _touches(branch, span) for branch, span in spans)


def _padded(ranges: Sequence[Sequence[Range]]) -> np.ndarray[Any, Any]:
    """Pad lists of ranges with empty ones: (S, R, 2) int64."""
    most = max(map(len, ranges))
    padded = [[*some, *[(0, 0)] * (most - len(some))] for some in ranges]
    return np.array(padded, dtype=np.int64).reshape(len(ranges), most, 2)


def _columns(branches: Sequence[Branch], num_prompt: int) -> list[list[Range]]:
    """Find the columns of each branch's documents: of its own segment that contains one, else of the prompt."""
    found: list[list[Range]] = []
    column = num_prompt
    for branch in branches:
        first: list[int] = []  # column of each segment's first token
        for segment in branch.segments:
            first.append(column)
            column += len(segment.input_ids)
        found.append([])
        for span in branch.spans:
            place_of = _own(branch, span)
            shift = 0 if place_of is None else first[place_of] - branch.segments[place_of].position
            found[-1].append((span[0] + shift, span[1] + shift))
    return found


def _own(branch: Branch, span: Range) -> int | None:
    """Return the place of the branch's segment that contains a span."""
    for place, segment in enumerate(branch.segments):
        if segment.position <= span[0] and span[1] <= segment.stop:
            return place
    return None


def _touches(branch: Branch, span: Range) -> bool:
    return any(segment.position < span[1] and span[0] < segment.stop for segment in branch.segments)


class SegmentPlan:
    """A segment's rows in the packed row, and the keys that they read; `ranges` are the positions that it sees, its own
    last."""

    def __init__(self, segment: Segment, rows: slice, ranges: list[Range]) -> None:
        self.segment = segment
        self.rows = rows
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

    def __init__(
        self, branches: Sequence[Branch], num_layers: int, device: torch.device, dtype: torch.dtype, *, is_packed: bool
    ) -> None:
        """With `is_packed`, the branches of a prompt attend together where they can: see `PackedBranches`."""
        self._branches = branches
        self._num_layers = num_layers
        self._masks = LowerRightMasks(max(branch.segments[-1].stop for branch in branches), device, dtype)
        # of each layer; those of a packed group at the place of its first branch
        self._measured: list[list[Tensor]] = [[] for _ in branches]
        self._plans: list[list[SegmentPlan]] = []
        first = 0
        for branch in branches:
            self._plans.append([])
            for segment in branch.segments:
                rows = slice(first, first + len(segment.input_ids))
                self._plans[-1].append(SegmentPlan(segment, rows, _seen(branch, segment)))
                first = rows.stop
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

    def results(self) -> list[Tensor]:
        """Return Attn(k) of each branch's last row, (L', H, K) float32, once all layers have run."""
        found: list[Tensor] = []
        for group, packed in self._groups:
            if packed is None:
                found += [torch.stack(self._measured[place]) for place in group]
            else:
                of_group = torch.stack(self._measured[group.start], dim=1)
                found += [one[..., :number] for one, number in zip(of_group, packed.num_documents, strict=True)]
        return found

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
                query, key, value, own_keys, own_values, scaling, sliding_window, layer + 1 < self._num_layers
            )
            if packed is None:
                self._attend_one_by_one(group, call, attended)
                continue
            output, measured = packed.attend(call)
            self._measured[group.start].append(measured)
            if output is not None:
                attended[0, packed.rows] = output
        return attended

    def _attend_one_by_one(self, group: range, call: LayerCall, attended: Tensor) -> None:
        """Attend the branches of a prompt in a copy of its keys and values, into which each is written in turn."""
        keys, values = call.prompt_keys.clone(), call.prompt_values.clone()
        for place in group:
            plan = self._plans[place]
            for segment in plan:
                keys[:, segment.places] = call.key[0, :, segment.rows]
                values[:, segment.places] = call.value[0, :, segment.rows]
            for segment in plan:
                if call.needs_output:
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
        return slice(self._plans[group.start][0].rows.start, self._plans[group.stop - 1][-1].rows.stop)

    def _measure(self, place: int, query: Tensor, keys: Tensor, scaling: float, window: int | None) -> Tensor:
        """Measure a branch's last row: (H, K)."""
        last = self._plans[place][-1]
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
