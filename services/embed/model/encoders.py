"""Encoders of images under conditions, on a device: from pixels, states and token ids in host memory to unit vectors.

An image's state is the part of its computation that no condition affects: with it, the image is read under another
condition without being encoded again.

Shapes: B images, R readouts (an image under a condition, or under none), C conditions, E embedding width, W text
tokens, N texts.
"""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from services.embed.model.items import UNCONDITIONAL, Bytes, Embeddings, Pair
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import InputIds

# This many condition tokens take a few hundred kilobytes.
MAX_REMEMBERED_CONDITIONS = 256
# The instruction of an image without one.
NO_INSTRUCTION = ""


class ImageEncoder(ABC):
    """Runs under torch.inference_mode, on one thread at a time. It owns the checkpoint's model and repacks it on CPUs.

    `conditions` are token ids (W,) by their digest; `pairs` point into images and conditions, in order. Rows are
    (R, E) float32, L2-normalised; BrokenModel is raised if one of their numbers is not finite.
    """

    @property
    @abstractmethod
    def embedding_width(self) -> int:
        """Return E."""

    @property
    def visibility(self) -> str:
        """`readout` if an image is encoded once for all conditions, and `full` if for each anew."""
        return "readout"

    @property
    def state_bytes(self) -> int | None:
        """Bytes of an image's state; None if nothing of an image is kept."""
        return None

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of the numbers in a state."""
        return torch.float32

    @abstractmethod
    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        """Encode images (B, height, width, 3) uint8."""

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]:
        """Encode like `encode`, and also return the state (state_bytes,) of each image from the same pass.

        A state is None if `state_dtype` can't represent one of its numbers.
        """
        raise NotImplementedError

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        """Read images from states (B, state_bytes) uint8, made by an encoder of the same model and dtype."""
        raise NotImplementedError

    def embed_texts(self, texts: Sequence[InputIds]) -> Embeddings:
        """Embed texts by themselves, into the space of the images: token ids (W,) each → (N, E)."""
        raise NotImplementedError


class FeatureEncoder(ImageEncoder):
    """An encoder that computes an image's features whatever the condition; these are the image's state.

    `features_shape` is the shape of one image's. An image without a condition is read under `no_instruction`.
    """

    def __init__(self, device: torch.device, features_shape: tuple[int, ...], no_instruction: InputIds) -> None:
        self._device = device
        self._features_shape = features_shape
        self._no_instruction = no_instruction

    @property
    def state_bytes(self) -> int:
        return math.prod(self._features_shape) * self.state_dtype.itemsize

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        return self._read(self._image_features(pixels), conditions, pairs)

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]:
        features = self._image_features(pixels)
        return self._read(features, conditions, pairs), packed(features.flatten(1), self.state_dtype)

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        features = states.to(self._device, non_blocking=True).view(self.state_dtype)
        return self._read(features.view(-1, *self._features_shape), conditions, pairs)

    def _read(self, features: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        """Read the features (B, …) of images under conditions → (R, E)."""
        images, texts = zip(*with_last(pairs, len(conditions)), strict=True)
        asked = {**conditions, NO_INSTRUCTION: self._no_instruction}
        return to_rows(self._fuse(features, asked, list(images), list(texts)))

    @abstractmethod
    def _image_features(self, pixels: Tensor) -> Tensor:
        """Compute the features (B, …) of images (B, height, width, 3) uint8."""

    @abstractmethod
    def _fuse(
        self, features: Tensor, conditions: Mapping[str, InputIds], images: list[int], texts: list[int]
    ) -> Tensor:
        """Read the features at `images` under the conditions at `texts` → (R, E)."""


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


def half_precision(dtype: torch.dtype) -> torch.dtype:
    """Choose the dtype of half precision that goes with a model's."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float16


def with_last(pairs: Sequence[Pair], last: int) -> list[Pair]:
    """Let images without a condition be read under the one at the place `last`."""
    return [(image, last if place == UNCONDITIONAL else place) for image, place in pairs]


def packed(states: Tensor, dtype: torch.dtype) -> list[Bytes | None]:
    """Convert the numbers (B, S) of states to bytes of `dtype`; None for a state with a number too large for it."""
    narrow = states.to(dtype).contiguous()
    is_whole = narrow.sum(dim=1, dtype=torch.float32).isfinite().tolist()
    return [data if is_whole[i] else None for i, data in enumerate(narrow.view(torch.uint8).cpu().numpy())]


def to_rows(features: Tensor) -> Embeddings:
    """Convert (R, E) of any dtype to float32 unit vectors on the host; a half-precision norm is not exactly 1."""
    rows: Embeddings = torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy()
    if not np.isfinite(rows).all():
        raise BrokenModel("an embedding contains a number that is not finite")
    return rows
