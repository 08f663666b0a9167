"""InstructBLIP: its folders, and the engine that runs the image side of one.

A folder holds `config.json`, safetensors, the settings of images, and `qformer_tokenizer/`. Of the whole model's
weights, only those of the image tower, the queries and the Q-Former are read. The tokenizer is transformers' own folder
of it, or what an import makes of it.

An image's state is what the image tower makes of it, in half precision: reading an image again under another condition
costs only the Q-Former.

Shapes: B images, P tokens of an image, D width of the tower, R readouts, W text tokens.
"""

import json
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.embed.instructblip import InstructBlip
from services.embed.model.image_engine import Checkpoint
from services.embed.model.items import ImageItem, Item
from services.embed.model.stacking_engine import Costs, FeatureEngine, half_precision
from services.nn.clip_texts import InputIds, Text
from services.nn.device_copies import to_device
from services.nn.image_transform import ImageTransform, published_settings
from services.nn.loading import MODEL_CONFIG, quiet_loading, transformers
from services.nn.model_configs import StoredWeights, check_loaded, model_config
from services.nn.packed_linear import can_pack, pack_linear_layers
from services.nn.plain_texts import PlainTexts
from services.nn.weight_files import readable_weights

# the kind of such a directory in manifests of the model store
INSTRUCTBLIP_KIND = "instructblip"
TOKENIZER_FOLDER = "qformer_tokenizer"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PARTS = ("vision_model.", "qformer.", "query_tokens")
# Each readout needs its image's tokens once more.
MAX_READOUTS_AT_ONCE = 64


class InstructionTokenizer:
    """The Q-Former's tokenizer, BERT's."""

    def __init__(self, tokenizer: Any, max_positions: int) -> None:
        self._tokenizer = tokenizer
        self.plain = PlainTexts.of(tokenizer)
        self._one_at_a_time = threading.Lock()  # its settings of truncation are those of all threads
        self.context_length = max_positions
        self.padding: int = tokenizer.pad_token_id

    def num_tokens(self, text: str) -> int:
        """Count the tokens of a text with its start and end, before any truncation."""
        with self._one_at_a_time:
            return len(self._tokenizer(text)["input_ids"])

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Tokenise texts → (N, W) int64, cut at the Q-Former's number of positions and padded."""
        with self._one_at_a_time:
            rows = self._tokenizer(list(texts), truncation=True, max_length=self.context_length)["input_ids"]
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=self.padding)


InstructBlipCheckpoint = Checkpoint[InstructBlip, InstructionTokenizer, ImageTransform]


def instructblip_config(raw: Mapping[str, Any], stored: StoredWeights) -> Any:
    """Return transformers' configuration of a `config.json`. Raises ValueError for another kind of model."""
    parts = (raw.get("vision_config"), raw.get("qformer_config"))
    if raw.get("model_type") != INSTRUCTBLIP_KIND or not all(isinstance(part, Mapping) for part in parts):
        raise ValueError(f"{MODEL_CONFIG} is not of an InstructBLIP (such as Salesforce/instructblip-vicuna-7b)")
    return model_config(raw, stored)


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Read the image side's tensors by their names in the whole model, from one file or several with an index.

    Raises OSError for a file that is missing, ValueError for weights without queries.
    """
    index = directory / INDEX
    if index.is_file():
        files = {file for name, file in json.loads(index.read_text())["weight_map"].items() if name.startswith(PARTS)}
    else:
        files = {WEIGHTS}
    weights = {}
    for file in sorted(files):
        with safe_open(directory / file, framework="pt") as tensors:
            names = tensors.keys()
            weights.update({name: tensors.get_tensor(name) for name in names if name.startswith(PARTS)})
    if "query_tokens" not in weights:
        raise ValueError(f"{directory} has no query tokens: it is not an InstructBLIP model")
    return weights


def image_transform(directory: Path) -> ImageTransform:
    """Read how an image is prepared: squashed to the tower's size."""
    settings = published_settings(directory)
    return ImageTransform(
        size=(settings["size"]["height"], settings["size"]["width"]),
        mean=tuple(settings["image_mean"]),
        std=tuple(settings["image_std"]),
        interpolation=Image.Resampling(settings["resample"]).name.lower(),
        resize_mode="squash",
    )


def _build(kind: Any, config: Any, weights: Mapping[str, Tensor], prefix: str, dtype: torch.dtype) -> Any:
    """Build a part of the model with its weights, ready to run. Raises ValueError if some are missing."""
    state = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    with quiet_loading():
        model, info = kind.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    check_loaded(model, info, prefix)
    return model


class InstructBlipEngine(FeatureEngine[InstructBlipCheckpoint]):
    """Runs one InstructBLIP checkpoint."""

    image_only = "an InstructBLIP"

    def __init__(self, checkpoint: InstructBlipCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        vision, qformer = checkpoint.model.vision.config, checkpoint.model.qformer.config
        num_patches = (vision.image_size // vision.patch_size) ** 2 + 1
        # what a readout costs in tokens of the tower: its queries pass the Q-Former, and half its layers read the image
        read = checkpoint.model.query_tokens.shape[1] + num_patches / 6
        weights = [one.num_hidden_layers * one.hidden_size**2 for one in (qformer, vision)]
        self._read_cost = math.ceil(read * weights[0] / weights[1])
        super().__init__(
            checkpoint, device, dtype, Costs(num_patches), features_shape=(num_patches, int(vision.hidden_size))
        )
        self._model = checkpoint.model
        self._padding = checkpoint.tokenizer.padding
        if can_pack(device, dtype):
            pack_linear_layers(self._model)

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> InstructBlipCheckpoint:
        stored = StoredWeights.in_folder(directory)
        config = instructblip_config(json.loads((directory / MODEL_CONFIG).read_text()), stored)
        kinds, options = transformers(), {"local_files_only": True, "trust_remote_code": False}
        tokenizer = kinds.AutoTokenizer.from_pretrained(directory / TOKENIZER_FOLDER, **options)
        transform = image_transform(directory)
        with readable_weights(directory):
            weights = read_weights(directory)
        with stored.bound():
            vision = _build(kinds.InstructBlipVisionModel, config.vision_config, weights, "vision_model.", dtype)
            qformer = _build(kinds.InstructBlipQFormerModel, config.qformer_config, weights, "qformer.", dtype)
        model = InstructBlip(vision, qformer, weights["query_tokens"].to(dtype))
        model.eval().requires_grad_(False).to(device)
        positions = config.qformer_config.max_position_embeddings
        return Checkpoint(model, InstructionTokenizer(tokenizer, positions), transform)

    @classmethod
    def tower_width(cls, checkpoint: InstructBlipCheckpoint) -> int:
        return int(checkpoint.model.vision.config.hidden_size)

    def cost(self, item: Item) -> int:
        """Count the tokens that the image tower processes for an image, and their equivalents of each readout."""
        assert not isinstance(item, Text), "texts have no embeddings"
        readouts = self._read_cost * len(item.conditions)
        return int(readouts + (self._costs.num_patches if isinstance(item, ImageItem) else 0))

    @property
    def embedding_width(self) -> int:
        return self._model.width

    @property
    def state_dtype(self) -> torch.dtype:
        return half_precision(self._dtype)

    def _image_features(self, pixels: Tensor) -> Tensor:
        return self._model.image_features(self._normalised(pixels))

    def _fuse(
        self, features: Tensor, conditions: Mapping[str, InputIds], images: list[int], texts: list[int]
    ) -> Tensor:
        asked = [torch.from_numpy(ids) for ids in conditions.values()]
        padded = pad_sequence(asked, batch_first=True, padding_value=self._padding)
        mask = pad_sequence([torch.ones_like(ids) for ids in asked], batch_first=True)
        input_ids, mask = to_device(torch.stack([padded, mask]), self._device)
        features = features.to(self._dtype)
        parts = []
        for start in range(0, len(images), MAX_READOUTS_AT_ONCE):
            some = slice(start, start + MAX_READOUTS_AT_ONCE)
            parts.append(self._model(features[images[some]], input_ids[texts[some]], mask[texts[some]]))
        return torch.cat(parts)
