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

from services.embed.model.conditional_engine import ConditionalEngine, Costs
from services.embed.model.encoder import Bytes, Rows, to_rows
from services.embed.model.items import ImageItem, Item
from services.embed.model.mllm_checkpoint import MllmCheckpoint, load_mllm
from services.embed.model.readout_plan import UNCONDITIONAL, Pair
from services.nn.clip_texts import InputIds, tokenise
from services.nn.devices import DeviceOptions
from services.nn.packed_linear import can_pack, pack_linear_layers
from services.nn.reference_outputs import OutputRow

# Numbers of a reference output: enough to tell models apart, where an embedding has thousands.
REFERENCE_NUMBERS = 1024


class MllmEncoder:
    """Runs under torch.inference_mode, on one thread at a time. It owns the model, and repacks it on CPUs."""

    visibility = "readout"
    state_dtype = torch.float32
    state_bytes = None

    def __init__(self, checkpoint: MllmCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._model = checkpoint.model
        self._transform = checkpoint.transform
        self._device = device
        self._dtype = dtype
        if can_pack(device, dtype):
            pack_linear_layers(self._model)
        self._no_instruction: InputIds = checkpoint.tokenizer([checkpoint.no_instruction])[0].numpy()

    @property
    def embedding_width(self) -> int:
        """Return E."""
        return self._model.width

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Encode images (B, height, width, 3) uint8."""
        asked = [torch.from_numpy(ids) for ids in (*conditions.values(), self._no_instruction)]
        input_ids = pad_sequence(asked, batch_first=True, padding_value=self._model.end).to(self._device)
        normalised = self._transform.normalise(pixels.to(self._device, non_blocking=True)).to(self._dtype)
        known = [(image, len(conditions) if place == UNCONDITIONAL else place) for image, place in pairs]
        return to_rows(self._model.embed(normalised, input_ids, known))

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Rows, list[Bytes | None]]:
        """Raises NotImplementedError: there are no states."""
        raise NotImplementedError("nothing of an image is kept")

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Raises NotImplementedError: there are no states."""
        raise NotImplementedError("nothing of an image is kept")

    def embed_texts(self, texts: Sequence[InputIds]) -> Rows:
        """Raises NotImplementedError: the engine refuses texts before."""
        raise NotImplementedError("texts by themselves have no embeddings")


class MllmEngine(ConditionalEngine):
    """Runs one FocalLens-MLLM checkpoint."""

    image_only = "FocalLens-MLLM"

    def __init__(self, checkpoint: MllmCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        tokenizer = checkpoint.tokenizer
        # an image's patches pass the image tower, and then, behind the prompt's opening, the language model
        costs = Costs(2 * tokenizer.num_image_tokens + len(tokenizer.opening), share_of_blocks=1, state=0)
        encoder = MllmEncoder(checkpoint, device, dtype)
        super().__init__(encoder, tokenizer, checkpoint.transform, device, dtype, costs)
        self._no_instruction = tokenise(tokenizer, checkpoint.no_instruction)

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions) -> "MllmEngine":
        """Read a checkpoint directory onto the device.

        Raises what `load_mllm` raises, and ValueError for a device that this machine lacks.
        """
        device = options.choose_device()
        dtype = options.choose_dtype(device)
        checkpoint = load_mllm(directory, device=device, dtype=dtype)
        torch.set_num_threads(options.choose_num_threads(checkpoint.model.width))
        engine = cls(checkpoint, device, dtype)
        engine._directory = directory
        return engine

    def cost(self, item: Item) -> int:
        """Count the tokens that the models process: an image's once, and those of each instruction."""
        if not isinstance(item, ImageItem):
            return super().cost(item)
        return self._costs.num_patches + sum((one or self._no_instruction).num_tokens for one in item.conditions)

    def reference_outputs(self, inputs: Sequence[object]) -> list[OutputRow]:
        """Compute the first numbers of the embedding of each input."""
        return [row[:REFERENCE_NUMBERS] for row in super().reference_outputs(inputs)]
