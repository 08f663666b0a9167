"""A plain CLIP on a device, of any towers: images and texts to unit vectors, without conditions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from services.core.errors import InvalidRequest
from services.embed.model.image_engine import finite
from services.embed.model.items import Embeddings, Item
from services.embed.model.stacking_engine import Costs, Pair, StackingEngine
from services.nn.clip_texts import InputIds, Text
from services.nn.plain_clip import (
    PlainClip,
    PlainEncoder,
    embedding_width,
    load_plain_clip,
    num_image_tokens,
    tower_name,
    tower_width,
)
from services.nn.vision_transformer import is_plain_vit


class PlainEngine(StackingEngine[PlainClip]):
    """Runs one `open-clip` folder."""

    sample_condition = None

    def __init__(self, checkpoint: PlainClip, device: torch.device, dtype: torch.dtype) -> None:
        self.visual = visual = checkpoint.clip.model.visual
        # what the tower of a model that reads conditions is tuned from, None if this one is
        self._other_tower = None if is_plain_vit(visual) else tower_name(visual)
        super().__init__(checkpoint, device, dtype, Costs(num_image_tokens(checkpoint.clip)))
        self._width = embedding_width(checkpoint.clip)
        self._encoder = PlainEncoder(checkpoint.clip, device, dtype)

    @property
    def embedding_width(self) -> int:
        return self._width

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> PlainClip:
        return load_plain_clip(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: PlainClip) -> int:
        return tower_width(checkpoint.clip.model.visual)

    def prepare_condition(self, text: str, *, truncate: bool = False) -> NoReturn:
        """Raises InvalidRequest, which names the way to a model that reads conditions."""
        base = "--base and its name" if self._other_tower is None else "--base and the name of a CLIP with a plain ViT"
        tower = "" if self._other_tower is None else f" (its image tower is a {self._other_tower})"
        raise InvalidRequest(
            f"This model is a plain CLIP{tower}, which embeds images without a condition. `fovea train focallens` with "
            f"{base} trains a model that reads conditions."
        )

    def cost(self, item: Item) -> int:
        """Count the tokens that a tower processes."""
        if not isinstance(item, Text):
            return self._costs.num_patches
        return self.context_length if self._encoder.reads_padding else item.num_tokens

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        return finite(self._encoder.encode_images(pixels))[[image for image, _ in pairs]]

    def embed_texts(self, texts: Sequence[InputIds]) -> Embeddings:
        return finite(self._encoder.encode_texts(texts))
