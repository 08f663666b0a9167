"""A vision-language model on a device: its processor makes the inputs of a batch off the compute thread.

An image under several conditions costs one pass up to the condition where the prompt begins with the image and the
model shares beginnings, and else one pass for each. Nothing of an image is kept between batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.core.errors import InvalidRequest, TooLarge
from services.embed.last_token import AT_ONCE
from services.embed.model.image_engine import ImageEngine, to_rows
from services.embed.model.items import Embeddings, ImageItem, Item, Pixels, Reading
from services.embed.model.vlm_checkpoint import VlmCheckpoint, load_vlm
from services.nn.clip_texts import Text, tokenise


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt to be run; `key` tells its image and condition, or its text."""

    key: tuple[str, str]
    written: str
    pixels: Pixels | None


@dataclass(frozen=True, eq=False)
class Pass:
    """The inputs of prompts of these keys; with `endings`, (R, W) and their `lengths`, of prompts that begin alike, by
    the first of which the inputs are, up to `num_shared` tokens."""

    keys: Sequence[tuple[str, str]]
    inputs: dict[str, Tensor]
    num_shared: int = 0
    endings: Tensor | None = None
    lengths: Tensor | None = None


@dataclass(frozen=True)
class CollatedBatch:
    """A batch together with the passes that compute it."""

    items: Sequence[Item]
    passes: Sequence[Pass]


class VlmEngine(ImageEngine[VlmCheckpoint]):
    """Runs one checkpoint of a vision-language model."""

    reference_numbers = 1024  # of thousands

    def __init__(self, checkpoint: VlmCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(checkpoint, device, dtype)
        self._vlm = checkpoint.tokenizer
        self._model = checkpoint.model
        self._shares = checkpoint.shares_beginning
        if self._vlm.written.text is None:
            self.image_only = "a vision-language model"

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> VlmCheckpoint:
        return load_vlm(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: VlmCheckpoint) -> int:
        return checkpoint.model.width

    @property
    def embedding_width(self) -> int:
        return self._model.width

    @property
    def visibility(self) -> str:
        return "readout" if self._shares else "full"

    def prepare_text(self, text: str, *, truncate: bool = False) -> Text:
        return super().prepare_text(text) if self.image_only is not None else self._tokenised(text, truncate=truncate)

    def prepare_condition(self, text: str, *, truncate: bool = False) -> Text:
        return self._tokenised(text, truncate=truncate)

    def prepare_pixels(
        self, pixels: Pixels, digest: str, conditions: Sequence[Text | None], *, keeps_state: bool = False
    ) -> list[ImageItem]:
        """Make the items of a resized image. Raises TooLarge or InvalidRequest for what the model does not read."""
        try:
            num_image_tokens = self._vlm.num_image_tokens(*pixels.shape[:2])
        except ValueError as error:
            raise InvalidRequest(f"this model does not read an image of this shape: {error}") from error
        longest = max((one.num_tokens for one in conditions if one is not None), default=0)
        if (needed := num_image_tokens + self._vlm.frame_tokens + longest) > self._vlm.max_tokens:
            told = f"image, condition and prompt have {needed} tokens"
            raise TooLarge(f"{told}: this model accepts at most {self._vlm.max_tokens}")
        return super().prepare_pixels(pixels, digest, conditions)

    def cost(self, item: Item) -> int:
        """Count the tokens that image tower and language model process, an image's once for all its conditions."""
        if isinstance(item, Text):
            return self._vlm.frame_tokens + item.num_tokens
        size = item.pixels.shape[:2] if isinstance(item, ImageItem) else (0, 0)
        num_image_tokens = self._vlm.num_image_tokens(*size) if all(size) else self._vlm.max_image_tokens
        prompts = [self._vlm.frame_tokens + (one.num_tokens if one else 0) for one in item.conditions]
        num_passes = 1 if self._shares else len(prompts)
        return 2 * num_image_tokens * num_passes + sum(prompts)

    def collate(self, items: Sequence[Item]) -> CollatedBatch:
        """Write the distinct prompts of a batch and make the model's inputs; runs on any thread."""
        asked = {one.key: one for item in items for one in self._asked(item)}
        by_image: dict[str, list[Asked]] = {}
        for one in asked.values():
            by_image.setdefault(one.key[0] if one.pixels is not None else "", []).append(one)
        texts = by_image.pop("", [])
        shared = [some for some in by_image.values() if self._shares and len(some) > 1]
        alone = [one for some in by_image.values() if not (self._shares and len(some) > 1) for one in some]
        passes = [self._shared_pass(some) for some in shared]
        passes += [self._pass(some) for group in (alone, texts) for some in _slices(group)]
        return CollatedBatch(items, passes)

    def run_collated(self, batch: CollatedBatch) -> list[Reading]:
        """Run a collated batch with the same result as `run_batch`."""
        rows: dict[tuple[str, str], Embeddings] = {}
        with torch.inference_mode():
            for one in batch.passes:
                rows |= zip(one.keys, to_rows(self._run(one)), strict=True)
        return [Reading(np.stack([rows[key] for key in _keys(item)])) for item in batch.items]

    def _run(self, one: Pass) -> Tensor:
        inputs = {name: self._on_device(tensor) for name, tensor in one.inputs.items()}
        if one.endings is None or one.lengths is None:
            features: Tensor = self._model(inputs)
            return features
        endings, lengths = self._on_device(one.endings), self._on_device(one.lengths)
        return self._model.embed_shared(inputs, one.num_shared, endings, lengths)

    def _on_device(self, tensor: Tensor) -> Tensor:
        moved = tensor.to(self._device, non_blocking=True)
        return moved.to(self._dtype) if moved.is_floating_point() else moved

    def _asked(self, item: Item) -> Iterator[Asked]:
        """Write the prompts of an item."""
        written, prompt = self._vlm.written, self._vlm.prompt
        if isinstance(item, Text):
            assert written.text is not None, "texts that have no embeddings are refused before"
            yield Asked(_keys(item)[0], written.text.around(item.text), None)
            return
        assert isinstance(item, ImageItem), "no states are returned"
        for key, one in zip(_keys(item), item.conditions, strict=True):
            text = written.bare if one is None else written.condition.around(prompt.written(one.text))
            yield Asked(key, text, item.pixels)

    def _pass(self, asked: Sequence[Asked]) -> Pass:
        images = [one.pixels for one in asked if one.pixels is not None]
        return Pass([one.key for one in asked], self._pinned(self._vlm.inputs([one.written for one in asked], images)))

    def _shared_pass(self, asked: Sequence[Asked]) -> Pass:
        """Make the inputs of prompts about one image that differ only behind it."""
        one = self._pass(asked[:1])
        tokens = [self._vlm.input_ids(each.written) for each in asked]
        alike = sum(1 for _ in takewhile(lambda some: len(set(some)) == 1, zip(*tokens, strict=False)))
        alike = min(alike, *(len(row) - 1 for row in tokens))  # each has an end of its own
        rows = [torch.tensor(row[alike:]) for row in tokens]
        num_shared = one.inputs["input_ids"].shape[1] - len(rows[0])
        lengths = torch.tensor([len(row) for row in rows])
        return replace(
            one,
            keys=[each.key for each in asked],
            num_shared=num_shared,
            endings=pad_sequence(rows, batch_first=True),
            lengths=lengths,
        )

    def _pinned(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._device.type != "cuda":
            return inputs
        return {name: tensor.pin_memory() for name, tensor in inputs.items()}

    def _tokenised(self, text: str, *, truncate: bool) -> Text:
        made = tokenise(self._vlm, text, truncate=truncate, keeps_spaces=True)
        is_cut = truncate and self._vlm.num_tokens(made.text) > self._vlm.context_length
        return replace(made, text=self._vlm.decode(made.input_ids.tolist())) if is_cut else made


def _keys(item: Item) -> list[tuple[str, str]]:
    """Name the prompts of an item: an image with each condition, or a text."""
    if isinstance(item, Text):
        return [("", item.digest)]
    return [(item.digest, "" if one is None else one.digest) for one in item.conditions]


def _slices(asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    """Slice prompts of about the same length, whose padding costs little."""
    in_order = sorted(asked, key=lambda one: (0 if one.pixels is None else one.pixels.size, len(one.written)))
    for start in range(0, len(in_order), AT_ONCE):
        yield in_order[start : start + AT_ONCE]
