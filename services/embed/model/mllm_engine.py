"""A FocalLens-MLLM on a device: an image passes once through the image tower and the language model for all its
instructions.

Nothing of an image is kept between batches: the projected patches are what no instruction affects, and to read an image
from them would save only the image tower, a small part of the model.

Shapes: B images, E embedding width, R readouts, W tokens after the image.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.embed.model.image_engine import to_rows
from services.embed.model.items import Embeddings, ImageItem, Item
from services.embed.model.mllm_checkpoint import MllmCheckpoint, load_mllm
from services.embed.model.stacking_engine import Costs, Pair, StackingEngine, with_last
from services.nn.clip_texts import InputIds, tokenise
from services.nn.packed_linear import can_pack, pack_linear_layers


class MllmEngine(StackingEngine[MllmCheckpoint]):
    """Runs one FocalLens-MLLM checkpoint."""

    image_only = "a FocalLens-MLLM"
    reference_numbers = 1024  # of 4,096 for LLaVA-1.5 7B

    def __init__(self, checkpoint: MllmCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        tokenizer = checkpoint.tokenizer
        # an image's patches pass the image tower, and then, behind the prompt's opening, the language model
        costs = Costs(2 * tokenizer.num_image_tokens + len(tokenizer.opening))
        super().__init__(checkpoint, device, dtype, costs)
        self._model = checkpoint.model
        if can_pack(device, dtype):
            pack_linear_layers(self._model)
        self._no_instruction = tokenise(tokenizer, checkpoint.no_instruction)

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> MllmCheckpoint:
        return load_mllm(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: MllmCheckpoint) -> int:
        return checkpoint.model.width

    def cost(self, item: Item) -> int:
        """Count the tokens that the models process: an image's once, and those of each instruction."""
        if not isinstance(item, ImageItem):
            return super().cost(item)
        return self._costs.num_patches + sum((one or self._no_instruction).num_tokens for one in item.conditions)

    @property
    def embedding_width(self) -> int:
        return self._model.width

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        asked = [torch.from_numpy(ids) for ids in (*conditions.values(), self._no_instruction.input_ids)]
        input_ids = pad_sequence(asked, batch_first=True, padding_value=self._model.end).to(self._device)
        return to_rows(self._model.embed(self._normalised(pixels), input_ids, with_last(pairs, len(conditions))))
