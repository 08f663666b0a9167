"""The attention of a sequence's last tokens, each of which sees the keys up to itself, or those in a window.

Shapes: H query heads, Hkv key/value heads, R rows, S keys, hd width of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows that are masked at once. Keys after the last of them are left out, so that short chunks also save work.
CHUNK_ROWS = 256


class LowerRightMasks:
    """Masks of the last R of S tokens, which see all tokens up to themselves, or those in a window.

    A row's place is counted from the end of the keys, so one mask serves any R and S by its lower right corner.
    """

    def __init__(self, num_keys: int, device: torch.device, dtype: torch.dtype) -> None:
        self._num_keys = num_keys
        self._device = device
        self._dtype = dtype
        self._widest: dict[int | None, Tensor] = {}

    def of(self, num_rows: int, num_keys: int, window: int | None) -> Tensor:
        """Return (R, S) to be added to scores: 0 where a row sees a key, −inf elsewhere. R is at most `CHUNK_ROWS`."""
        if window not in self._widest:
            mask = torch.zeros(CHUNK_ROWS, self._num_keys, device=self._device, dtype=self._dtype)
            self._widest[window] = mask.masked_fill_(~self.visible(CHUNK_ROWS, self._num_keys, window), -torch.inf)
        return self._widest[window][-num_rows:, -num_keys:]

    def visible(self, num_rows: int, num_keys: int, window: int | None) -> Tensor:
        """Return (R, S) bool, for any R."""
        rows = torch.arange(num_keys - num_rows, num_keys, device=self._device)[:, None]
        distance = rows - torch.arange(num_keys, device=self._device)
        return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def attend_masked(query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
    """Attend rows of one sequence: (1, H, R, hd) over (1, Hkv, S, hd), with SDPA's `mask` (R, S) → (R, H, hd).

    Key heads serve as the batch dimension, so that queries share them without repetition on every device.
    """
    num_groups = key.shape[1]
    grouped = query[0].view(num_groups, -1, *query.shape[2:])
    key, value = (numbers[0][:, None].expand(-1, grouped.shape[1], -1, -1) for numbers in (key, value))
    attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    return attended.flatten(0, 1).transpose(0, 1)


def attend_last(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, masks: LowerRightMasks
) -> Tensor:
    """Attend the last R of S tokens to the keys that they may see: (1, H, R, hd), (1, Hkv, S, hd) → (R, H, hd)."""
    num_rows, num_keys = query.shape[2], key.shape[2]
    if window is None or num_keys <= window:
        window = None
        if num_rows == num_keys:
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
            )
            return attended[0].transpose(0, 1)
    parts = []
    for begin in range(0, num_rows, CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, num_rows)
        stop = num_keys - num_rows + end
        start = 0 if window is None else max(0, stop - (end - begin) - window + 1)
        is_single = end - begin == 1  # then every key from `start` to `stop` is seen
        mask = None if is_single else masks.of(end - begin, stop - start, window)
        parts.append(
            attend_masked(query[:, :, begin:end], key[:, :, start:stop], value[:, :, start:stop], scaling, mask)
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts)
