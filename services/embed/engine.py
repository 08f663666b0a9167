"""A FocalLens checkpoint on a device: images under conditions and texts in, unit vectors out.

A batch mixes what different requests ask for. Each distinct image and each distinct condition of it is encoded
once, and every (image, condition) pair once, whoever asked for it.

Shapes: B images, R readouts (an image under a condition, or under none), C conditions, D width, E embedding width,
W text tokens.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from services.core.errors import InvalidRequest, TooLarge
from services.embed.checkpoint import FocalLensCheckpoint, load_focallens
from services.embed.focallens import Readouts

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
InputIds = np.ndarray[Any, np.dtype[np.int64]]
Embeddings = np.ndarray[Any, np.dtype[np.float32]]
DeviceName = Literal["auto", "cuda", "mps", "cpu"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]

# Conditions recur, so their tokens are kept; this many cost a few hundred kilobytes.
MAX_REMEMBERED_CONDITIONS = 256
# A readout copies its image's keys and values, so a batch of many is read out in slices.
MAX_READOUTS_AT_ONCE = 256
# No vocabulary packs more characters into a token on average; what is longer is refused before the tokenizer,
# whose time grows with the square of a word's length.
MAX_CHARACTERS_PER_TOKEN = 16
# Two orders of summation of one dot product differ; a wrong mask or a stale buffer differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class BrokenModel(RuntimeError):
    """The model answered with something that is no embedding: not finite, not of unit length, not reproducible."""


@dataclass(frozen=True)
class EngineOptions:
    """Where and how a checkpoint runs; `num_threads` 0 leaves torch's own choice."""

    device: DeviceName = "auto"
    dtype: DtypeName = "auto"
    num_threads: int = 0


@dataclass(frozen=True, eq=False)
class Text:
    """A tokenised text, as an input of its own or as a condition: `input_ids` is (W,) int64, padded.

    `digest` is equal for texts that the model cannot tell apart, whatever their spelling.
    """

    text: str
    input_ids: InputIds
    num_tokens: int
    digest: str


@dataclass(frozen=True, eq=False)
class ImageItem:
    """An image, transformed but still bytes (height, width, 3), to be read under each of `conditions`.

    `digest` names the image: items of equal digest share one pass. None is the unconditional embedding.
    """

    digest: str
    pixels: Pixels
    conditions: tuple[Text | None, ...]


Item = ImageItem | Text


@dataclass(frozen=True)
class CollatedBatch:
    """A batch whose distinct images stand in host memory, ready for the device: (B, height, width, 3) uint8.

    `image_of` maps an image's digest to its place; `pixels` is None in a batch of texts alone.
    """

    items: Sequence[Item]
    image_of: dict[str, int]
    pixels: Tensor | None


class EmbedEngine:
    """Runs one checkpoint; what takes tensors runs on one thread at a time, `prepare_*` on any."""

    def __init__(self, checkpoint: FocalLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._model = checkpoint.model
        self._tokenizer = checkpoint.tokenizer
        self._transform = checkpoint.transform
        self._device = device
        self._dtype = dtype
        self._condition_tokens: OrderedDict[str, Tensor] = OrderedDict()
        self._num_patches = int(checkpoint.model.clip.visual.positional_embedding.shape[0]) - 1

    @classmethod
    def load(cls, directory: Path, options: EngineOptions) -> "EmbedEngine":
        """Read a checkpoint directory onto the device.

        Raises what `load_focallens` raises, and ValueError for a device that this machine lacks.
        """
        if options.num_threads:
            torch.set_num_threads(options.num_threads)
        device = _choose_device(options.device)
        dtype = _choose_dtype(options.dtype, device)
        return cls(load_focallens(directory, device=device, dtype=dtype), device, dtype)

    @property
    def context_length(self) -> int:
        """Most tokens of a text, its start and end included."""
        return self._tokenizer.context_length

    @property
    def embedding_width(self) -> int:
        """Numbers in one embedding."""
        return int(self._model.clip.visual.proj.shape[1])

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) that every image is brought to."""
        return self._transform.size

    @property
    def visibility(self) -> str:
        """`full` or `readout`: what may attend to a condition."""
        return self._model.visibility

    @property
    def dtype_name(self) -> str:
        """The dtype of the forward pass, e.g. `bfloat16`; embeddings are float32 always."""
        return str(self._dtype).removeprefix("torch.")

    def prepare_text(self, text: str, *, truncate: bool = False) -> Text:
        """Tokenise a text or a condition.

        Raises TooLarge for more tokens than the context takes, unless `truncate` cuts them off, and
        InvalidRequest for a text without any token.
        """
        text = " ".join(text.split())
        if not text:
            raise InvalidRequest("the text is empty: it needs at least one character that is no space")
        max_characters = MAX_CHARACTERS_PER_TOKEN * self.context_length
        if len(text) > max_characters:
            if not truncate:
                raise TooLarge(
                    f"the text has {len(text)} characters: this model takes at most {self.context_length} tokens,"
                    f" so at most {max_characters} characters are looked at"
                )
            text = text[:max_characters]
        num_tokens = self._tokenizer.num_tokens(text)
        if num_tokens > self.context_length and not truncate:
            raise TooLarge(f"the text has {num_tokens} tokens: this model takes at most {self.context_length}")
        input_ids = self._tokenizer([text])[0].numpy()
        digest = hashlib.sha256(input_ids.tobytes()).hexdigest()
        return Text(text, input_ids, min(num_tokens, self.context_length), digest)

    def prepare_image(self, image: Image.Image, digest: str, conditions: Sequence[Text | None]) -> list[ImageItem]:
        """Transform an RGB image; the items together read it under every condition, in order.

        One item where a single pass serves all conditions (`readout`), one a condition where each costs a pass.
        """
        pixels = self._transform(image)
        if self.visibility == "readout":
            return [ImageItem(digest, pixels, tuple(conditions))]
        return [ImageItem(digest, pixels, (condition,)) for condition in conditions]

    def cost(self, item: Item) -> int:
        """Tokens that a tower sees: a text's, or an image's patches with what each condition adds."""
        if isinstance(item, Text):
            return item.num_tokens
        num_conditions = len(item.conditions)
        if self.visibility == "readout":
            return self._num_patches + 2 * num_conditions
        return num_conditions * (self._num_patches + 2)

    def run_batch(self, items: Sequence[Item]) -> list[Embeddings]:
        """Each item's embeddings, (conditions, E) for an image and (1, E) for a text, L2-normalised float32.

        Raises BrokenModel where one of them is not finite.
        """
        return self.run_collated(self.collate(items))

    def collate(self, items: Sequence[Item]) -> CollatedBatch:
        """Put the images of a batch side by side, in page-locked memory where the device is CUDA; on any thread."""
        distinct = {item.digest: item.pixels for item in items if isinstance(item, ImageItem)}
        pixels = torch.from_numpy(np.stack(list(distinct.values()))) if distinct else None
        if pixels is not None and self._device.type == "cuda":
            pixels = pixels.pin_memory()
        return CollatedBatch(items, {digest: place for place, digest in enumerate(distinct)}, pixels)

    def run_collated(self, batch: CollatedBatch) -> list[Embeddings]:
        """What `run_batch` answers for the items that were collated."""
        texts = [item for item in batch.items if isinstance(item, Text)]
        with torch.inference_mode():
            image_rows = self._embed_images(batch) if batch.pixels is not None else []
            text_rows = self._embed_texts(texts) if texts else []
        image_iterator, text_iterator = iter(image_rows), iter(text_rows)
        return [next(image_iterator if isinstance(item, ImageItem) else text_iterator) for item in batch.items]

    def warm_up(self) -> None:
        """Run every kind of item once, alone and mixed, so that no request pays for first calls."""
        for items in ([self._sample_text()], [self._sample_image(0)], self._sample_batch()):
            self.run_batch(items)

    def self_check(self) -> None:
        """Raises BrokenModel unless embeddings are unit vectors that do not depend on what shares their batch."""
        batch = self._sample_batch()
        together = self.run_batch(batch)
        alone = [self.run_batch([item])[0] for item in batch]
        difference = max(float(np.abs(a - b).max()) for a, b in zip(together, alone, strict=True))
        if difference > SELF_CHECK_TOLERANCE[self._dtype]:
            raise BrokenModel(f"an embedding changes by {difference:.3g} with what shares its batch")
        norms = np.concatenate([np.linalg.norm(rows, axis=1) for rows in together])
        if np.abs(norms - 1).max() > SELF_CHECK_TOLERANCE[torch.float32]:
            raise BrokenModel(f"embeddings have norms from {norms.min():.3g} to {norms.max():.3g}, not 1")

    def _embed_images(self, batch: CollatedBatch) -> list[Embeddings]:
        assert batch.pixels is not None, "a batch of texts has no images to embed"
        items = [item for item in batch.items if isinstance(item, ImageItem)]
        conditions = {c.digest: c for item in items for c in item.conditions if c is not None}
        condition_of = {digest: index for index, digest in enumerate(conditions)}
        wanted = [
            [(batch.image_of[item.digest], -1 if c is None else condition_of[c.digest]) for c in item.conditions]
            for item in items
        ]
        row_of = {pair: row for row, pair in enumerate(dict.fromkeys(pair for pairs in wanted for pair in pairs))}
        rows = self._read_out(
            self._transform.normalise(batch.pixels.to(self._device, non_blocking=True)).to(self._dtype),
            self._encode_conditions(list(conditions.values())),
            torch.tensor(list(row_of), device=self._device),
        )
        return [rows[[row_of[pair] for pair in pairs]] for pairs in wanted]

    def _read_out(self, pixels: Tensor, conditions: Tensor | None, pairs: Tensor) -> Embeddings:
        """(B, 3, height, width), (C, D), (R, 2) of image and condition → (R, E)."""
        if conditions is None:
            conditions = pixels.new_zeros(1, self._model.condition_projection.out_features)
        if self.visibility == "full" or len(pairs) <= MAX_READOUTS_AT_ONCE:
            return _to_rows(self._model.encode_images(pixels, conditions, Readouts(pairs[:, 0], pairs[:, 1])))
        states = self._model.encode_patches(pixels)
        slices = torch.split(pairs, MAX_READOUTS_AT_ONCE)
        read = [self._model.read_out(states, conditions, Readouts(s[:, 0], s[:, 1])) for s in slices]
        return _to_rows(torch.cat(read))

    def _embed_texts(self, texts: Sequence[Text]) -> list[Embeddings]:
        unique = {text.digest: text for text in texts}
        row_of = {digest: row for row, digest in enumerate(unique)}
        rows = _to_rows(self._model.encode_texts(self._input_ids(unique.values())))
        return [rows[row_of[text.digest]][None] for text in texts]

    def _encode_conditions(self, conditions: Sequence[Text]) -> Tensor | None:
        """Tokens (C, D) of distinct conditions; only those not seen lately pass through the condition tower."""
        if not conditions:
            return None
        remembered = self._condition_tokens
        new = [condition for condition in conditions if condition.digest not in remembered]
        if new:
            for condition, token in zip(new, self._model.encode_conditions(self._input_ids(new)), strict=True):
                remembered[condition.digest] = token.clone()  # a view would keep its whole batch in memory
        for condition in conditions:
            remembered.move_to_end(condition.digest)
        tokens = torch.stack([remembered[condition.digest] for condition in conditions])
        while len(remembered) > MAX_REMEMBERED_CONDITIONS:
            remembered.popitem(last=False)
        return tokens

    def _input_ids(self, texts: Iterable[Text]) -> Tensor:
        return torch.from_numpy(np.stack([text.input_ids for text in texts])).to(self._device)

    def _sample_batch(self) -> list[Item]:
        condition = self.prepare_text("what color is it?")
        return [
            self._sample_image(0, None),
            self._sample_text(),
            self._sample_image(1, condition),
            self._sample_image(0, condition),
        ]

    def _sample_text(self) -> Text:
        return self.prepare_text("a red square")

    def _sample_image(self, seed: int, condition: Text | None = None) -> ImageItem:
        pixels = np.random.default_rng(seed).integers(0, 256, (*self.image_size, 3), dtype=np.uint8)
        return ImageItem(f"sample-{seed}", pixels, (condition,))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may succeed where this error was raised."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and ("can't allocate" in str(error) or "out of memory" in str(error))


def _to_rows(features: Tensor) -> Embeddings:
    """(N, E) of any dtype → unit vectors in float32 on the host; a half-precision norm is only nearly 1."""
    rows: Embeddings = torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy()
    if not np.isfinite(rows).all():
        raise BrokenModel("an embedding holds a number that is not finite")
    return rows


def _choose_device(name: DeviceName) -> torch.device:
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(device for device, is_available in available.items() if is_available))
    if not available[name]:
        raise ValueError(f"device is {name!r}: torch finds none on this machine")
    return torch.device(name)


def _choose_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype
