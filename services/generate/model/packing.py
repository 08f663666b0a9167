"""Sequences of unequal lengths packed in one row of tokens, without padding and without a T × T mask.

Everything except attention works token by token, so it runs once over the packed row. Attention runs for each stretch:
a sequence's new tokens are written into its slot of the cache and attend to that slot up to themselves.

Shapes: T tokens of the packed row, R rows of one stretch, S keys that it may see, H heads, Hkv key/value heads,
hd width of a head, L layers, K documents.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from services.generate.calibration import Calibration, Documents, attend_calibrated, measure_rows
from services.generate.model.attention import LowerRightMasks, attend_last
from services.generate.model.kv_cache import Slot
from services.nn.device_copies import to_device


@dataclass(frozen=True)
class Stretch:
    """Tokens `first` to `first + num_rows` of the packed row: a slot's tokens from `position` on."""

    slot: Slot
    first: int
    num_rows: int
    position: int

    @property
    def rows(self) -> slice:
        """Rows in the packed row."""
        return slice(self.first, self.first + self.num_rows)

    @property
    def stop(self) -> int:
        """The slot's length with these tokens."""
        return self.position + self.num_rows

    @classmethod
    def side_by_side(cls, places: Sequence[tuple[Slot, int, int]]) -> list["Stretch"]:
        """Make a stretch of each (slot, number of rows, position), in order."""
        stretches, first = [], 0
        for slot, num_rows, position in places:
            stretches.append(cls(slot, first, num_rows, position))
            first += num_rows
        return stretches


class PackedPass:
    """Base of packed passes: writes new tokens to their slots; all layers of a pass share its masks."""

    def __init__(self, stretches: Sequence[Stretch], device: torch.device, dtype: torch.dtype) -> None:
        self.stretches = stretches
        self.device = device
        self.masks = LowerRightMasks(max(stretch.stop for stretch in stretches), device, dtype)

    def cached(self, layer: int, stretch: Stretch, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write a stretch's keys and values; returns the slot's with them, (1, Hkv, S, hd) each."""
        cache, index = stretch.slot.cache, stretch.slot.index
        places = slice(stretch.position, stretch.stop)
        cache.keys[layer][index, :, places] = key[0, :, stretch.rows]
        cache.values[layer][index, :, places] = value[0, :, stretch.rows]
        keys, values = cache.keys[layer], cache.values[layer]
        return keys[index : index + 1, :, : stretch.stop], values[index : index + 1, :, : stretch.stop]


class PrefillPass(PackedPass):
    """A pass over tokens that are not cached yet, with the plain model's attention.

    `spans` contains, for each stretch, the documents that its last row is measured on, if any. With `last_rows_from` =
    l, layers from l on attend only for each stretch's last row; the other rows are zeros.
    """

    def __init__(
        self,
        stretches: Sequence[Stretch],
        spans: Sequence[Sequence[tuple[int, int]]],
        *,
        last_rows_from: int | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(stretches, device, dtype)
        self._last_rows_from = last_rows_from
        self._documents = [Documents.of([own], device) if own else None for own in spans]
        self._measured: list[list[Tensor]] = [[] for _ in stretches]

    def measured(self, place: int) -> Tensor | None:
        """Attn(k) of a stretch's last row in the layers that have run, (L, H, K) float32."""
        return torch.stack(self._measured[place]) if self._measured[place] else None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend as `ForwardPass.attend`, with a batch of one packed row."""
        is_last_only = self._last_rows_from is not None and layer >= self._last_rows_from
        attended = query.new_zeros(1, query.shape[2], query.shape[1], query.shape[3])
        for place, stretch in enumerate(self.stretches):
            keys, values = self.cached(layer, stretch, key, value)
            rows = slice(stretch.rows.stop - 1, stretch.rows.stop) if is_last_only else stretch.rows
            attended[0, rows] = attend_last(query[:, :, rows], keys, values, scaling, sliding_window, self.masks)
            if (documents := self._documents[place]) is not None:
                last = query[:, :, stretch.rows.stop - 1 : stretch.rows.stop]
                mask = self._visible_from_last(keys.shape[2], sliding_window)
                self._measured[place].append(measure_rows(last, keys, scaling, mask, documents)[0, :, 0])
        return attended

    def _visible_from_last(self, num_keys: int, window: int | None) -> Tensor | None:
        """(1, 1, S)."""
        if window is None or num_keys <= window:
            return None
        return self.masks.visible(1, num_keys, window)[None]


class Interventions:
    """The calibrations of a batch's rows as tensors on the device, copied once for all layers of the same rows."""

    def __init__(self, calibrations: Sequence[Calibration | None], device: torch.device) -> None:
        self.calibrations = tuple(calibrations)
        self._device = device
        self._at: dict[int, tuple[Documents, Tensor] | None] = {}
        self._of_rows: dict[tuple[bool, ...], tuple[Documents, Tensor]] = {}

    def is_of(self, calibrations: Sequence[Calibration | None]) -> bool:
        """Whether these are the same calibration objects, in order."""
        return len(calibrations) == len(self.calibrations) and all(map(operator.is_, calibrations, self.calibrations))

    def at(self, layer: int) -> tuple[Documents, Tensor] | None:
        """Documents and log α, (B, K) or (B, H, K), of a layer; None if it calibrates no row."""
        if layer not in self._at:
            chosen = [c if c is not None and layer in c.layers and c.spans else None for c in self.calibrations]
            self._at[layer] = self._laid_out(layer, chosen) if any(c is not None for c in chosen) else None
        return self._at[layer]

    def _laid_out(self, layer: int, chosen: Sequence[Calibration | None]) -> tuple[Documents, Tensor]:
        rows = tuple(c is not None for c in chosen)
        if rows not in self._of_rows:
            documents = Documents.of([c.spans if c else () for c in chosen], self._device)
            alphas = _stacked([None if c is None else c.log_alpha for c in chosen], documents.index.shape[1])
            self._of_rows[rows] = documents, to_device(alphas, self._device)
        documents, log_alpha = self._of_rows[rows]
        return documents, log_alpha if log_alpha.dim() == 2 else log_alpha[layer]


def _stacked(alphas: Sequence[Tensor | None], num_documents: int) -> Tensor:
    """Stack each row's log α, (K,) or (L, H, K): (B, K), or (L, B, H, K) if any has one per layer and head; −∞ for rows
    that have none, and after a row's last document."""
    shape = next((alpha.shape[:2] for alpha in alphas if alpha is not None and alpha.dim() == 3), ())
    stacked = torch.full((len(alphas), *shape, num_documents), -torch.inf)
    for row, alpha in enumerate(alphas):
        if alpha is not None:
            stacked[row, ..., : alpha.shape[-1]] = alpha
    return stacked.transpose(0, 1).contiguous() if shape else stacked


class RerunPass(PackedPass):
    """A pass that runs cached tokens again under calibration; their keys and values are replaced.

    With `spans`, every row of the only stretch is measured on them, before it is calibrated.
    """

    def __init__(
        self,
        stretches: Sequence[Stretch],
        calibrations: Sequence[Calibration | None],
        device: torch.device,
        dtype: torch.dtype,
        spans: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__(stretches, device, dtype)
        self._interventions = [Interventions([calibration], device) for calibration in calibrations]
        self._documents = Documents.of([spans], device) if spans else None
        self._measured: list[Tensor] = []

    @property
    def measured(self) -> Tensor:
        """Attn(k) of each row in the layers that have run, (L, H, R, K) float32."""
        return torch.stack(self._measured)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend as `ForwardPass.attend`, with a batch of one packed row."""
        parts = []
        for stretch, interventions in zip(self.stretches, self._interventions, strict=True):
            keys, values = self.cached(layer, stretch, key, value)
            rows = query[:, :, stretch.rows]
            if self._documents is not None:
                mask = self._visible(stretch, sliding_window)
                self._measured.append(measure_rows(rows, keys, scaling, mask, self._documents)[0])
            if (intervention := interventions.at(layer)) is None:
                parts.append(attend_last(rows, keys, values, scaling, sliding_window, self.masks))
            else:
                mask = self._visible(stretch, sliding_window)
                parts.append(attend_calibrated(rows, keys, values, scaling, mask, *intervention)[0].transpose(0, 1))
        return torch.cat(parts)[None]

    def _visible(self, stretch: Stretch, window: int | None) -> Tensor | None:
        """(1, R, S)."""
        if stretch.num_rows == 1 and (window is None or stretch.stop <= window):
            return None
        return self.masks.visible(stretch.num_rows, stretch.stop, window)[None]


class DecodePass:
    """A pass over one new token of each of B sequences, which share one cache; `slots` are in order of index.

    Keys are read through a view if the slots are adjacent, as they are when every open slot decodes. Sequences shorter
    than the longest are masked.
    """

    def __init__(self, slots: Sequence[Slot], index: Tensor, positions: Tensor, interventions: Interventions) -> None:
        """`index` (B,) and `positions` (B,) are those of the slots and of their new tokens, on the device."""
        self._cache = slots[0].cache
        self._interventions = interventions
        self._index = index
        first, last = slots[0].index, slots[-1].index
        self._side_by_side = slice(first, last + 1) if last - first + 1 == len(slots) else None
        lengths = [slot.length for slot in slots]
        self._positions = positions
        self._num_keys = max(lengths) + 1
        self._is_even = min(lengths) == max(lengths)
        self._masks: dict[int | None, Tensor | None] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend as `ForwardPass.attend`, with T = 1."""
        self._cache.keys[layer][self._index, :, self._positions] = key[:, :, 0]
        self._cache.values[layer][self._index, :, self._positions] = value[:, :, 0]
        keys, values = self._read(self._cache.keys[layer]), self._read(self._cache.values[layer])
        mask = self._visible(sliding_window)
        if (intervention := self._interventions.at(layer)) is not None:
            return attend_calibrated(query, keys, values, scaling, mask, *intervention).transpose(1, 2)
        grouped = query[:, :, 0].view(query.shape[0], keys.shape[1], -1, query.shape[3])
        attended = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=None if mask is None else mask[:, None], scale=scaling
        )
        return attended.flatten(1, 2)[:, None]

    def _read(self, numbers: Tensor) -> Tensor:
        if self._side_by_side is not None:
            return numbers[self._side_by_side, :, : self._num_keys]
        return numbers[self._index, :, : self._num_keys]

    def _visible(self, window: int | None) -> Tensor | None:
        """(B, 1, S) bool."""
        if window is not None and self._num_keys <= window:
            window = None
        if window not in self._masks:
            distance = self._positions[:, None] - torch.arange(self._num_keys, device=self._positions.device)
            seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self._masks[window] = None if window is None and self._is_even else seen[:, None]
        return self._masks[window]
