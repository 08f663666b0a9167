"""All branches of a prompt in one masked product, for devices on which to start an operation costs more than to run it.

The branches' keys stand behind the prompt's, and a mask tells which of them a row sees: its own branch's up to itself,
and those of the prompt that its segment sees.

Shapes: T rows of the branches, C columns (the prompt's tokens, the T rows, tokens of known segments), B branches,
H heads, Hkv key/value heads, K documents, hd width of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generate.calibration import Documents, measure_scores, row_scores
from services.generate.model.causal_attention import attend_masked
from services.generate.model.segments import Branch, Range, Segment

# Numbers of a mask, so that it and the products stay small beside the model; more are attended branch by branch.
MAX_CELLS = 2**26


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A layer's queries (1, H, N, hd), keys and values (1, Hkv, N, hd) of a packed row, beside a prompt's own keys and
    values (Hkv, P, hd). `window` is the number of keys that a token sees, None for all."""

    layer: int
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
        new = [one for one in segments if one[1].key_values is None]
        known = [one for one in segments if one[1].key_values is not None]
        self._known = [segment.key_values for _, segment in known if segment.key_values is not None]

        def each_token(some: Sequence[tuple[int, Segment]], numbers: Sequence[int]) -> Tensor:
            lengths = torch.tensor([len(segment.input_ids) for _, segment in some], dtype=torch.int64)
            return torch.tensor(numbers, dtype=torch.int64).repeat_interleave(lengths).to(device)

        places = [torch.arange(segment.position, segment.stop) for _, segment in (*new, *known)]
        self._positions = torch.cat([torch.arange(num_prompt), *places]).to(device)
        owners = each_token((*new, *known), [owner for owner, _ in (*new, *known)])
        num_rows = sum(len(segment.input_ids) for _, segment in new)
        self._row_positions = self._positions[num_prompt : num_prompt + num_rows]
        own = owners[:num_rows, None] == owners
        own &= self._row_positions[:, None] >= self._positions[num_prompt:]
        seen = torch.stack([_seen_of_prompt(branches[owner], segment, num_prompt) for owner, segment in new])
        self._visible = torch.cat([seen.to(device)[each_token(new, range(len(new)))], own], dim=1)
        self._last_rows = torch.tensor([branch.num_tokens for branch in branches], device=device).cumsum(0) - 1
        self._num_documents = [len(branch.spans) for branch in branches]
        self._documents = Documents.of(_columns(branches, num_prompt, num_rows), device)
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {}

    def attend(self, call: LayerCall) -> tuple[Tensor | None, list[Tensor]]:
        """Attend the branches' rows of a layer over the prompt's keys and their own.

        Returns the outputs (T, H, hd), None unless they are needed, and the measured Attn (H, K) of each branch.
        """
        mask, last_mask = self._mask(call.window)
        query = call.query[:, :, self.rows]
        keys = torch.cat(
            [call.prompt_keys, call.key[0, :, self.rows], *(one.keys[call.layer] for one in self._known)], dim=1
        )
        attended = None
        if call.needs_output:
            new = call.value[0, :, self.rows]
            values = torch.cat([call.prompt_values, new, *(one.values[call.layer] for one in self._known)], dim=1)
            attended = attend_masked(query, keys[None], values[None], call.scaling, mask)
        scores = row_scores(query[:, :, self._last_rows], keys[None], call.scaling, last_mask)
        found = measure_scores(scores[0].transpose(0, 1)[:, :, None], self._documents)[:, :, 0]
        return attended, [one[:, :number] for one, number in zip(found, self._num_documents, strict=True)]

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
    num_own = sum(len(segment.input_ids) for branch in branches for segment in branch.segments)
    if num_rows * (branches[0].slot.length + num_own) > MAX_CELLS:
        return False
    spans = [(branch, span) for branch in branches for span in branch.spans]
    return all(_own(branch, span) is not None or not _touches(branch, span) for branch, span in spans)


def _seen_of_prompt(branch: Branch, segment: Segment, num_prompt: int) -> Tensor:
    """Make a mask (P,) of the prompt's tokens that a segment sees, without those that its branch replaces."""
    is_seen = torch.zeros(num_prompt, dtype=torch.bool)
    for start, stop in segment.sees:
        is_seen[start:stop] = True
    for own in branch.segments:
        is_seen[own.position : own.stop] = False
    return is_seen


def _columns(branches: Sequence[Branch], num_prompt: int, num_rows: int) -> list[list[Range]]:
    """Find the columns of each branch's documents: of its own segment that contains one, else of the prompt."""
    found: list[list[Range]] = []
    new, known = num_prompt, num_prompt + num_rows
    for branch in branches:
        first: dict[int, int] = {}  # column of each segment's first token
        for place, segment in enumerate(branch.segments):
            if segment.key_values is None:
                first[place], new = new, new + len(segment.input_ids)
            else:
                first[place], known = known, known + len(segment.input_ids)
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
