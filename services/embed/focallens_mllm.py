"""FocalLens-MLLM: the embedding of an image under an instruction, by a multimodal language model (FocalLens, section
"FocalLens with MLLMs"). The model is a LLaVA.

    V       = P(f(image))                                   (P, D): f is the image tower's patches after its last block
                                                            but one, P the projector's two linear layers
    x       = E("USER: "), V, E("\\n" instruction " ASSISTANT:"), E(</s>)
    h       = LM(x)                                         (T, D): causal, after the last layer and its norm
    output  = h_T / |h_T|                                   at </s>, the paper's indicator token

E embeds tokens. The paper appends `<eos_token>` to the model's input and names no prompt: this is the one that the
published LLaVA-1.5 was tuned with. Neither does it say how h_T reaches the width of CLIP's texts in training; without
that training, texts have no embedding in this space.

Attention is causal, so what stands before the instruction does not depend on it: an image passes tower and language
model once, its keys and values are kept during the call, and each further instruction costs only its own tokens. Rows
of instructions are padded behind their </s>, where nothing that is read out sees it.

Shapes: B images, P patches, D width, C instructions, W tokens after the image, T all tokens, R readouts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.nn.loading import transformers

# Images, or readouts, of one pass: of LLaVA-1.5 7B, keys and values of an image take 0.3 GB in half precision.
AT_ONCE = 8


class FocalLensMllm(nn.Module):
    """transformers' `LlavaModel`, read out at the end of each prompt, for inference.

    `opening` are the token ids before the image, `end` is the id of </s>.
    """

    opening: Tensor

    def __init__(self, llava: Any, opening: Sequence[int], end: int) -> None:
        super().__init__()
        self.llava = llava
        self.end = end
        self.register_buffer("opening", torch.tensor(opening), persistent=False)

    @property
    def width(self) -> int:
        """Return D."""
        return int(self.llava.config.text_config.hidden_size)

    def embed(self, pixels: Tensor, input_ids: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
        """Embed normalised images (B, 3, height, width) under instructions → (R, D) float32, L2-normalised.

        `input_ids` (C, W) are the tokens after the image with one </s> or, as padding, several; `pairs` are the places
        of each readout's image and instruction.
        """
        rows_of: dict[int, list[int]] = {}
        for row, (image, _) in enumerate(pairs):
            rows_of.setdefault(image, []).append(row)
        found = torch.empty(len(pairs), self.width, device=pixels.device)
        for images in _slices(list(rows_of)):
            kept = self._pass_images(pixels[images])
            readouts = [(place, row) for place, image in enumerate(images) for row in rows_of[image]]
            for some in _slices(readouts):
                places, rows = ([one[side] for one in some] for side in (0, 1))
                found[rows] = self._read(kept, places, input_ids[[pairs[row][1] for row in rows]])
        return found

    def image_features(self, pixels: Tensor) -> Tensor:
        """Return V of each image: (B, 3, height, width) → (B, P, D)."""
        return torch.stack(list(self.llava.get_image_features(pixels, return_dict=True).pooler_output))

    def _pass_images(self, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Run the beginning of the prompt up to the image's end; return each layer's keys and values (B, …)."""
        features = self.image_features(pixels)
        opening = self._embed_tokens(self.opening).expand(len(features), -1, -1)
        x = torch.cat([opening, features.to(opening.dtype)], dim=1)
        cache = self.llava.language_model(inputs_embeds=x, use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _read(self, kept: Sequence[tuple[Tensor, Tensor]], places: list[int], input_ids: Tensor) -> Tensor:
        """Run instructions (R, W) behind the images at `places` and read out at the first </s>: (R, D)."""
        ends = (input_ids == self.end).int().argmax(dim=1)
        x = self._embed_tokens(input_ids[:, : int(ends.max()) + 1])
        cache = transformers().DynamicCache([(keys[places], values[places]) for keys, values in kept])
        hidden = self.llava.language_model(inputs_embeds=x, past_key_values=cache, use_cache=True).last_hidden_state
        return F.normalize(hidden[torch.arange(len(ends), device=ends.device), ends].float(), dim=-1)

    def _embed_tokens(self, input_ids: Tensor) -> Tensor:
        embedded: Tensor = self.llava.get_input_embeddings()(input_ids)
        return embedded


def _slices(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]
