"""InstructBLIP as an embedder: the mean of its Q-Former's outputs for an image under an instruction.

It is read from a Hugging Face folder of the whole model (`config.json`, safetensors, `preprocessor_config.json`,
`qformer_tokenizer/`); only the weights of the image tower, the query tokens and the Q-Former are loaded, not the
language model.

Shapes: N images, B images of a batch, C instructions, Q query tokens, E width of the Q-Former.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from torch import Tensor

from services.embed.evaluation.embedders import Array32, NoTextSide, batches, preprocess
from services.nn.clip_model import open_clip
from services.nn.image_transform import ImageTransform

PARTS = ("vision_model.", "qformer.", "query_tokens")


class InstructBlipEmbedder:
    """InstructBLIP's image side, on one device. Its embedding space has no texts."""

    def __init__(self, directory: Path, *, name: str, device: str = "cpu", batch_size: int = 16) -> None:
        """Raises OSError or ValueError if the folder does not contain such a model."""
        open_clip()  # transformers imports torchvision, which open_clip() makes importable
        from transformers import AutoConfig, AutoTokenizer, InstructBlipQFormerModel, InstructBlipVisionModel

        config = AutoConfig.from_pretrained(directory)
        weights = read_weights(directory)
        self._vision = _build(InstructBlipVisionModel, config.vision_config, weights, "vision_model.", device)
        self._qformer = _build(InstructBlipQFormerModel, config.qformer_config, weights, "qformer.", device)
        self._query_tokens = weights["query_tokens"].float().to(device)
        self._tokenizer = AutoTokenizer.from_pretrained(directory / "qformer_tokenizer")
        self._transform = _transform(directory)
        self._batch_size = batch_size
        self.name = name
        self.image_size = self._transform.size[0]

    @torch.inference_mode()
    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> Array32:
        """Embed images → (C, N, E), L2-normalised; None is the empty instruction. Raises ValueError without images."""
        asked = [self._tokens(instruction or "") for instruction in instructions]
        parts = []
        for batch in batches(images, self._batch_size):
            patches = self._vision(pixel_values=preprocess(batch, self._transform, self._query_tokens))[0]
            read = torch.stack([self._read_out(patches, input_ids) for input_ids in asked])
            parts.append(F.normalize(read, dim=-1).cpu().numpy())
        if not parts:
            raise ValueError("there are no inputs to embed")
        return np.concatenate(parts, axis=1)

    def embed_texts(self, texts: Sequence[str]) -> Array32:
        raise NoTextSide(f"{self.name} embeds images only: InstructBLIP's Q-Former has no space shared with texts")

    def _read_out(self, patches: Tensor, input_ids: Tensor) -> Tensor:
        """Average the Q-Former's output at the query tokens: (B, P, D) and (1, W) → (B, E)."""
        num_images, num_queries = patches.shape[0], self._query_tokens.shape[1]
        output = self._qformer(
            input_ids=input_ids.expand(num_images, -1),
            attention_mask=patches.new_ones(num_images, num_queries + input_ids.shape[1], dtype=torch.long),
            query_embeds=self._query_tokens.expand(num_images, -1, -1),
            encoder_hidden_states=patches,
            encoder_attention_mask=patches.new_ones(patches.shape[:2], dtype=torch.long),
        )
        tokens: Tensor = output[0][:, :num_queries]
        return tokens.mean(dim=1)

    def _tokens(self, instruction: str) -> Tensor:
        """Tokenise → (1, W) int64, cut at the Q-Former's number of positions."""
        longest = self._qformer.config.max_position_embeddings
        encoded = self._tokenizer(instruction, truncation=True, max_length=longest, return_tensors="pt")
        input_ids: Tensor = encoded["input_ids"].to(self._query_tokens.device)
        return input_ids


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Read the image side's tensors by their names in the whole model, from one file or several with an index."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        files = {file for name, file in json.loads(index.read_text())["weight_map"].items() if name.startswith(PARTS)}
    else:
        files = {"model.safetensors"}
    weights = {}
    for file in sorted(files):
        with safe_open(directory / file, framework="pt") as tensors:
            names = tensors.keys()
            weights.update({name: tensors.get_tensor(name) for name in names if name.startswith(PARTS)})
    if "query_tokens" not in weights:
        raise ValueError(f"{directory} has no query tokens: it is not an InstructBLIP model")
    return weights


def _build(kind: Any, config: Any, weights: dict[str, Tensor], prefix: str, device: str) -> Any:
    """Build a part of the model with its weights, ready to run. Raises ValueError if some are missing."""
    state = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    model, info = kind.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True
    )
    if info["missing_keys"]:
        raise ValueError(f"weights are missing: {prefix}{sorted(info['missing_keys'])[0]}")
    return model.eval().requires_grad_(False).to(device)


def _transform(directory: Path) -> ImageTransform:
    path = directory / "preprocessor_config.json"
    # if transformers 5 saved a whole processor, the image part is in the processor's file
    settings = (
        json.loads(path.read_text())
        if path.is_file()
        else json.loads((directory / "processor_config.json").read_text())["image_processor"]
    )
    return ImageTransform(
        size=(settings["size"]["height"], settings["size"]["width"]),
        mean=tuple(settings["image_mean"]),
        std=tuple(settings["image_std"]),
        interpolation=Image.Resampling(settings["resample"]).name.lower(),
        resize_mode="squash",
    )
