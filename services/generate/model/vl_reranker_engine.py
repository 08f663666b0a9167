"""Qwen3-VL-Reranker: the score of a query and a document, each a text, an image or both.

Prompt, sizes of images and limit of tokens are those of its publisher's own script. A pair that is too long loses the
last tokens of its texts, and none of its images.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image
from torch import Tensor

from services.generate.model.language_model import read_onto_device
from services.generate.model.reranker_engine import (
    BEFORE,
    LEAST_TOKENS,
    QUERY,
    SAMPLE_DOCUMENTS,
    Content,
    Pair,
    Picture,
    Qwen3RerankerEngine,
)
from services.nn.devices import DeviceOptions
from services.nn.image_fit import SAMPLE_SIDE, ImageFit, image_factor
from services.nn.loading import quiet_loading, transformers

# The kind of such checkpoints in manifests of the model store, and their architecture.
QWEN3_VL_RERANKER_KIND, ARCHITECTURE = "qwen3-vl-reranker", "qwen3_vl"
INSTRUCT = "Given a search query, retrieve relevant candidates that answer the query."
VISION_START, IMAGE_PAD, VISION_END = VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
# Of an image; each has the pixels of two patches by two.
LEAST_IMAGE_TOKENS, MOST_IMAGE_TOKENS = 4, 1800
# The published limit and the prompt's end, which it does not count.
MOST_TOKENS = 10240 + 5


class Qwen3VlRerankerEngine(Qwen3RerankerEngine):
    """Runs Qwen3-VL-Reranker: its score is Qwen3-Reranker's, after a prompt with the images in it."""

    kind = QWEN3_VL_RERANKER_KIND
    model_class = "AutoModelForImageTextToText"
    after = ("<|im_end|>\n<|im_start|>assistant\n",)

    def __init__(self, model: Any, tokenizer: Any, images: Any) -> None:
        """`images` is transformers' image processor. Raises ValueError for parts that are not of one such model."""
        super().__init__(model, tokenizer)
        own = {
            token: tokenizer.backend_tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>", *VISION)
        }
        if missing := [token for token, number in own.items() if number is None]:
            raise ValueError(
                f"the tokenizer has no token {missing[0]}, of which the prompt of a Qwen3-VL-Reranker is made"
            )
        if "image_grid_thw" not in images.model_input_names:
            raise ValueError(f"preprocessor_config.json: {type(images).__name__} does not prepare images for Qwen3-VL")
        self._own, self._image = set(own.values()), own[IMAGE_PAD]
        self._images, self._factor = images, image_factor(images)
        side = self._factor**2
        self._fit = ImageFit(self._factor, LEAST_IMAGE_TOKENS * side, MOST_IMAGE_TOKENS * side)
        if (room := len(self._before) + len(self._after) + 2 * MOST_IMAGE_TOKENS + LEAST_TOKENS) > self.context_length:
            raise ValueError(f"{self.context_length} positions leave no room for two images, which takes {room}")

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions) -> Self:
        model, tokenizer = read_onto_device(directory, options, cls.model_class, cls.check_config)
        with quiet_loading():
            images = transformers().AutoImageProcessor.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        engine = cls(model, tokenizer, images)
        engine._directory = directory
        return engine

    @staticmethod
    def check_config(config: Any) -> None:
        check_qwen3_vl(config)

    def picture(self, image: Image.Image, digest: str) -> Picture:
        """Resize an RGB image, on any thread. Raises InvalidRequest for one much longer than wide."""
        pixels = self._fit(image)
        height, width = pixels.shape[:2]
        return Picture(digest, height * width // self._factor**2, pixels)

    def _sample(self, query: str = "When was it built?") -> list[Pair]:
        noise = np.random.default_rng(0).integers(0, 256, (2, SAMPLE_SIDE, SAMPLE_SIDE, 3), dtype=np.uint8)
        first, second = (self.picture(Image.fromarray(one), f"sample-{place}") for place, one in enumerate(noise))
        return self.prepare(query, SAMPLE_DOCUMENTS, pictures={QUERY: first, 0: second})

    def _most_tokens(self) -> int:
        return qwen3_vl_tokens(self._model.config)

    def _pairs(self, query: Content, documents: Sequence[Content], instruct: str | None) -> list[Pair]:
        asked = f"{BEFORE}<Instruct>: {instruct or INSTRUCT}<Query>:{_written(query)}\n<Document>:"
        texts = [asked + _written(document) for document in documents]
        encoded = self.tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            self._pair(one.ids, [content.picture for content in (query, document) if content.picture is not None])
            for one, document in zip(encoded, documents, strict=True)
        ]

    def _pair(self, input_ids: Sequence[int], pictures: Sequence[Picture]) -> Pair:
        """Put the images' tokens into a prompt, and cut its texts."""
        own = sum(one in self._own for one in input_ids) + sum(one.num_tokens - 1 for one in pictures)
        room = self.context_length - len(self._after) - own
        shown = iter(pictures)

        def kept() -> Iterator[int]:
            left = room
            for one in input_ids:
                if one in self._own:
                    yield from [one] * (next(shown).num_tokens if one == self._image else 1)
                elif left > 0:
                    left -= 1
                    yield one

        is_cut = len(input_ids) - sum(one in self._own for one in input_ids) > room
        return Pair((*kept(), *self._after), is_cut=is_cut, pictures=tuple(pictures))

    def _inputs(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        inputs = super()._inputs(pairs)
        if pictures := [Image.fromarray(picture.pixels) for pair in pairs for picture in pair.pictures]:
            made = self._images(pictures, do_resize=False, return_tensors="pt")
            device, dtype = self._model.device, self._model.dtype
            inputs["pixel_values"] = made["pixel_values"].to(device, dtype)
            inputs["image_grid_thw"] = made["image_grid_thw"].to(device)
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == self._image).int()
        return inputs


def _written(content: Content) -> str:
    return ("".join(VISION) if content.picture is not None else "") + content.text


def check_qwen3_vl(config: Any) -> None:
    """Raises ValueError for a configuration of transformers that is not of a Qwen3-VL, or of a quantised one."""
    if config.model_type != ARCHITECTURE:
        raise ValueError(f"the architecture {config.model_type!r} is not {ARCHITECTURE!r}, Qwen3-VL-Reranker's")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError("quantised weights are not supported")


def qwen3_vl_tokens(config: Any) -> int:
    """Return the most tokens of a prompt."""
    return min(MOST_TOKENS, int(config.get_text_config().max_position_embeddings))
