"""Vision-language models that embed: their checkpoint directories, and the engine that runs one.

A directory holds what its publisher's does (`config.json`, the weights, the tokenizer, the settings of images, the chat
template) and `vlm_embedding.json`; without that file, one of the published prompts is meant.

The processor makes the inputs of a batch off the compute thread. An image under several conditions costs one pass up to
the condition where the prompt begins with the image and the model shares beginnings, and else one pass for each.
Nothing of an image is kept between batches.
"""

import functools
import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.core.errors import InvalidRequest, TooLarge
from services.embed.last_token import AT_ONCE, LastTokenEmbedder
from services.embed.model.image_engine import Checkpoint, ImageEngine, to_rows
from services.embed.model.items import Embeddings, ImageItem, Item, Pixels, Reading
from services.embed.model.vlm_prompts import VlmPrompt, WrittenPrompt, read_vlm_prompt
from services.nn.clip_texts import Text, tokenise
from services.nn.device_copies import to_device
from services.nn.devices import check_room
from services.nn.image_fit import ImageFit, image_factor
from services.nn.loading import MODEL_CONFIG, quiet_loading, transformers
from services.nn.model_configs import StoredWeights, check_tokens, load_model, model_config
from services.nn.plain_texts import PlainTexts

# the kind of such a directory in manifests of the model store
VLM_KIND = "vlm-embedding"
HEAD = "lm_head.weight"
# Models of which a prompt's beginning was seen to give the same whatever follows it, and can be run on its own.
SHARES_BEGINNING = ("llava", "qwen2_5_vl", "qwen3_vl")


class VlmTokenizer:
    """The model's own processor: written prompts and resized images to what the model is fed, counted before."""

    def __init__(self, processor: Any, prompt: VlmPrompt, max_positions: int) -> None:
        """Raises ValueError if image and prompt leave no room for a condition."""
        self._processor = processor
        self._tokenizer = processor.tokenizer
        self._tokenizer.padding_side = "right"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token or self._tokenizer.unk_token
        self._one_at_a_time = threading.Lock()  # its settings of padding are those of all threads
        self._own = set(self._tokenizer.added_tokens_decoder) - {self._tokenizer.unk_token_id}
        self.plain = PlainTexts.of(self._tokenizer)
        self.prompt = prompt
        self.written = WrittenPrompt.of(prompt, processor)
        # the template may write the token that the tokenizer would put in front
        opening = self._tokenizer.bos_token
        self._adds_special = not (opening and self.written.bare.startswith(opening))
        self._images = {"do_resize": False} if prompt.max_side is None else {}
        self.num_image_tokens = functools.lru_cache(maxsize=4096)(self._count_image_tokens)
        self.max_tokens = min(prompt.max_tokens, max_positions)
        self.frame_tokens = max(len(self.input_ids(one)) for one in self._frames())
        self.max_image_tokens = max(self.num_image_tokens(*one) for one in self._largest_images())
        self.context_length = self.max_tokens - self.frame_tokens - self.max_image_tokens
        if self.context_length < 1:
            raise ValueError(
                f"an image takes up to {self.max_image_tokens} tokens and the prompt {self.frame_tokens}: of "
                f"{self.max_tokens} none are left for a condition"
            )

    def num_tokens(self, text: str) -> int:
        """Count a text's own tokens. Raises InvalidRequest for one with a token of the prompt's or the image's."""
        return len(self._own_tokens(text))

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Tokenise texts by themselves → (N, W) int64, cut at the context length and padded."""
        rows = [torch.tensor(self._own_tokens(text)[: self.context_length]) for text in texts]
        return pad_sequence(rows, batch_first=True, padding_value=self._tokenizer.pad_token_id)

    def decode(self, input_ids: Sequence[int]) -> str:
        """Return the text of some tokens."""
        text: str = self._tokenizer.decode(input_ids)
        return text

    def input_ids(self, written: str) -> list[int]:
        """Tokenise a written prompt, its image still one token."""
        with self._one_at_a_time:
            ids: list[int] = self._tokenizer(written, add_special_tokens=self._adds_special)["input_ids"]
        return ids

    def inputs(self, written: Sequence[str], images: Sequence[Pixels] = ()) -> dict[str, Tensor]:
        """Make the model's inputs of written prompts, each with its image, if any, padded on the right."""
        shown = {"images": [[Image.fromarray(image)] for image in images], **self._images} if images else {}
        with self._one_at_a_time:
            made = self._processor(
                text=list(written), padding=True, add_special_tokens=self._adds_special, return_tensors="pt", **shown
            )
        return dict(made)

    def _count_image_tokens(self, height: int, width: int) -> int:
        """Count what an image of this size adds to a prompt."""
        written = self.written.bare
        made = self.inputs([written], [np.zeros((height, width, 3), np.uint8)])
        return int(made["input_ids"].shape[1]) - len(self.input_ids(written))

    def _frames(self) -> list[str]:
        around = (self.written.condition, self.written.text, self.written.beside)
        return [self.written.bare, *(frame.around("x") for frame in around if frame is not None)]

    def _largest_images(self) -> list[tuple[int, int]]:
        if (side := self.prompt.max_side) is not None:
            return [(side, side), (side, side // 2), (side // 2, side)]
        width, height = image_fit(self.prompt, self._processor).fitted(1 << 14, 1 << 14)
        return [(height, width)]

    def _own_tokens(self, text: str) -> list[int]:
        with self._one_at_a_time:
            ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if found := self._own.intersection(ids):
            token = self._tokenizer.convert_ids_to_tokens(found.pop())
            raise InvalidRequest(f"the text contains {token}, which this model reads as a token of its own")
        return ids


def image_fit(prompt: VlmPrompt, processor: Any) -> ImageFit:
    """Return how a prompt's images are resized. Raises ValueError for a model that can't be asked by it."""
    factor = 1 if prompt.max_side is not None else image_factor(processor.image_processor)
    return ImageFit(factor, prompt.min_pixels, prompt.max_pixels, prompt.max_side)


VlmCheckpoint = Checkpoint[LastTokenEmbedder, VlmTokenizer, ImageFit]


def vlm_types() -> Collection[str]:
    """Name the architectures that transformers has for images and texts."""
    names: Mapping[str, str] = transformers().models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return names.keys()


def vlm_config(raw: Mapping[str, Any], stored: StoredWeights) -> Any:
    """Return transformers' configuration of a `config.json`. Raises ValueError for a model without images and texts."""
    if (kind := raw.get("model_type")) not in vlm_types():
        raise ValueError(f"{MODEL_CONFIG} is of a {kind!r}, which is no vision-language model that transformers knows")
    return model_config(raw, stored)


class Beside(Text):
    """A text behind an image, in the user's message and not as the condition; so it has a digest of its own."""


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
        is_known = checkpoint.model.model.config.model_type in SHARES_BEGINNING
        self._shares = self._vlm.prompt.is_image_first and is_known
        if self._vlm.written.text is None:
            self.image_only = "a vision-language model"

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> VlmCheckpoint:
        """Read a directory. Raises as `ImageEngine.read`, and ValueError if its weights do not fit into memory."""
        prompt = read_vlm_prompt(directory)
        stored = StoredWeights.in_folder(directory)
        config = vlm_config(json.loads((directory / MODEL_CONFIG).read_text()), stored)
        text = config.get_text_config()
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with quiet_loading():
            processor = transformers().AutoProcessor.from_pretrained(directory, **options)
        check_tokens(processor.tokenizer, text.vocab_size)
        tokenizer = VlmTokenizer(processor, prompt, int(text.max_position_embeddings))
        transform = image_fit(prompt, processor)
        check_room(directory, device, dtype)
        whole = load_model("AutoModelForImageTextToText", directory, config, stored, dtype=dtype, unneeded={HEAD})
        if not hasattr(whole, "model"):
            raise ValueError(f"the last hidden states of a {config.model_type!r} can't be read")
        model = LastTokenEmbedder(whole.model, int(text.hidden_size))
        model.eval().requires_grad_(False).to(device)
        return Checkpoint(model, tokenizer, transform)

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

    def prepare_beside(self, text: str, *, truncate: bool = False) -> Text:
        """Tokenise a text that the user says behind the image, where a condition is the system's."""
        made = self._tokenised(text, truncate=truncate)
        if self._vlm.written.beside is None:
            return made
        return Beside(made.text, made.input_ids, made.num_tokens, f"beside {made.digest}")

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
        moved = to_device(tensor, self._device)
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
            if isinstance(one, Beside):
                assert written.beside is not None, "there is none otherwise"
                text = written.beside.around(one.text)
            else:
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
