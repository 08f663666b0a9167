"""A FocalLens model on its device: from pixels, states and token ids in host memory to unit vectors and states.

An image's state is the part of its computation that no condition affects: with it, the image is read under another
condition without being encoded again. States are packed in half precision, so a row read from one differs in its last
digits from the row computed from pixels.

Shapes: B images, S numbers in a state, R readouts (an image under a condition, or under none), C conditions,
E embedding width, W text tokens, N texts.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.embed.focallens import Readouts
from services.embed.model.checkpoint import FocalLensCheckpoint
from services.embed.model.readout_plan import Pair
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import InputIds
from services.nn.packed_linear import can_pack
from services.nn.vision_transformer import pack_tower

# This many condition tokens take a few hundred kilobytes.
MAX_REMEMBERED_CONDITIONS = 256


class ConditionTokens:
    """Caches the outputs of `encode`, the condition tower: token ids (W,) each → (C, D)."""

    def __init__(self, encode: Callable[[Sequence[InputIds]], Tensor]) -> None:
        self._encode = encode
        self._remembered: OrderedDict[str, Tensor] = OrderedDict()

    def of(self, conditions: Mapping[str, InputIds]) -> Tensor:
        """Return the tokens (C, D) of one or more conditions by digest; only those not cached pass through the
        tower."""
        remembered = self._remembered
        new = [digest for digest in conditions if digest not in remembered]
        if new:
            tokens = self._encode([conditions[digest] for digest in new])
            for digest, token in zip(new, tokens, strict=True):
                remembered[digest] = token.clone()  # a view would keep its whole batch in memory
        for digest in conditions:
            remembered.move_to_end(digest)
        chosen = torch.stack([remembered[digest] for digest in conditions])
        while len(remembered) > MAX_REMEMBERED_CONDITIONS:
            remembered.popitem(last=False)
        return chosen


Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Rows = np.ndarray[Any, np.dtype[np.float32]]

# A readout copies its image's keys and values, so a batch of many is read in slices.
MAX_READOUTS_AT_ONCE = 256


class Encoder:
    """Runs under torch.inference_mode, on one thread at a time. It owns the checkpoint's model and repacks it on CPUs.

    `conditions` are token ids (W,) by their digest; `pairs` point into images and conditions, in order. Rows are
    (R, E) float32, L2-normalised; BrokenModel is raised if one of their numbers is not finite.
    """

    def __init__(self, checkpoint: FocalLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._model = checkpoint.model
        if can_pack(device, dtype):
            pack_tower(checkpoint.model.clip.visual)
        self._transform = checkpoint.transform
        self._device = device
        self._dtype = dtype
        self._tokens = ConditionTokens(lambda texts: self._model.encode_conditions(self._stacked(texts)))
        self.state_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float16

    @property
    def embedding_width(self) -> int:
        """Return E."""
        return int(self._model.clip.visual.proj.shape[1])

    @property
    def visibility(self) -> str:
        """`full` or `readout`: which tokens attend to a condition."""
        return self._model.visibility

    @property
    def state_bytes(self) -> int | None:
        """Bytes of a packed state; None if nothing of an image is the same under all conditions."""
        size = self._model.state_size
        return None if size is None else size * self.state_dtype.itemsize

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Encode images (B, height, width, 3) uint8."""
        slices = self._slices(pairs)
        if len(slices) > 1:
            return self._encode_in_slices(pixels, conditions, slices, self._dtype)[0]
        readouts = self._readouts(pairs, len(pixels))
        return to_rows(self._model.encode_images(self._normalised(pixels), self._tokens_of(conditions), readouts))

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Rows, list[Bytes | None]]:
        """Encode like `encode`, and also return the packed state (state_bytes,) of each image from the same pass.

        A state is None if half precision can't represent one of its numbers. Raises ValueError if `state_bytes` is
        None.
        """
        slices = self._slices(pairs)
        dtype = self.state_dtype if len(slices) == 1 else self._dtype  # rows are never read from rounded numbers
        rows, states = self._encode_in_slices(pixels, conditions, slices, dtype)
        packed = states.to(self.state_dtype)
        is_whole = packed.sum(dim=1, dtype=torch.float32).isfinite().tolist()
        return rows, [data if is_whole[i] else None for i, data in enumerate(packed.view(torch.uint8).cpu().numpy())]

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Read images from packed states (B, state_bytes) uint8, made by an encoder of the same model and dtype."""
        unpacked = states.to(self._device, non_blocking=True).view(self.state_dtype)
        tokens = self._tokens_of(conditions)
        slices = [pairs[start : start + MAX_READOUTS_AT_ONCE] for start in range(0, len(pairs), MAX_READOUTS_AT_ONCE)]
        return to_rows(torch.cat([self._read_slice(unpacked, tokens, some) for some in slices]))

    def embed_texts(self, texts: Sequence[InputIds]) -> Rows:
        """Embed texts: token ids (W,) each → (N, E)."""
        return to_rows(self._model.encode_texts(self._stacked(texts)))

    def _stacked(self, texts: Sequence[InputIds]) -> Tensor:
        return torch.from_numpy(np.stack(texts)).to(self._device)

    def _encode_in_slices(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], slices: Sequence[Sequence[Pair]], dtype: torch.dtype
    ) -> tuple[Rows, Tensor]:
        """Compute the first readouts together with the images' states (B, S) of `dtype`; read the others from these."""
        tokens, readouts = self._tokens_of(conditions), self._readouts(slices[0], len(pixels))
        first, states = self._model.encode_images_and_states(self._normalised(pixels), tokens, readouts, dtype=dtype)
        return to_rows(torch.cat([first, *(self._read_slice(states, tokens, some) for some in slices[1:])])), states

    def _read_slice(self, states: Tensor, tokens: Tensor | None, pairs: Sequence[Pair]) -> Tensor:
        return self._model.read_states(states, tokens, self._readouts(pairs, len(states)))

    def _slices(self, pairs: Sequence[Pair]) -> Sequence[Sequence[Pair]]:
        """Cut pairs into slices; only one in `full`, where each readout is a pass and slices would save nothing."""
        size = MAX_READOUTS_AT_ONCE if self._model.visibility == "readout" else len(pairs)
        return [pairs[start : start + size] for start in range(0, len(pairs), size)]

    def _normalised(self, pixels: Tensor) -> Tensor:
        return self._transform.normalise(pixels.to(self._device, non_blocking=True)).to(self._dtype)

    def _tokens_of(self, conditions: Mapping[str, InputIds]) -> Tensor | None:
        return self._tokens.of(conditions) if conditions else None

    def _readouts(self, pairs: Sequence[Pair], num_images: int) -> Readouts:
        images, conditions = zip(*pairs, strict=True)
        is_one_each = images == tuple(range(num_images))
        index = None if is_one_each else torch.tensor(images, device=self._device)
        return Readouts(index, torch.tensor(conditions, device=self._device))


def to_rows(features: Tensor) -> Rows:
    """Convert (R, E) of any dtype to float32 unit vectors on the host; a half-precision norm is not exactly 1."""
    rows: Rows = torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy()
    if not np.isfinite(rows).all():
        raise BrokenModel("an embedding contains a number that is not finite")
    return rows
