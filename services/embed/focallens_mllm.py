"""FocalLens-MLLM: the embedding of an image under an instruction, by a multimodal language model (FocalLens, section
"FocalLens with MLLMs"). The model is a LLaVA.

    V       = P(f(image))                                   (P, D): f is the image tower's patches after its last block
                                                            but one, P the projector's two linear layers
    x       = E("USER: "), V, E("\\n" instruction " ASSISTANT:"), E(</s>)
    h       = LM(x)                                         (T, D): causal, after the last layer and its norm
    φ       = W h_T / |W h_T|                               at </s>, the paper's indicator token; W (E, D) only if tuned
    S_ij    = τ φ_i · T(y_j)                                Eq. 5.1: T is CLIP's text tower, frozen, y an answer
    loss    = mean_i −log softmax(S_i)_i                    over the distinct answers of the batch

E embeds tokens, and τ is CLIP's scale. The paper appends `<eos_token>` to the model's input and names no prompt: this
is the one that the published LLaVA-1.5 was tuned with. Neither does it say how h_T reaches the width of CLIP's texts:
here by one linear map without bias. An untuned LLaVA has none, and φ is h_T itself.

Attention is causal, so what stands before the instruction does not depend on it: an image passes tower and language
model once, its keys and values are kept during the call, and each further instruction costs only its own tokens. Rows
of instructions are padded behind their </s>, where nothing that is read out sees it.

Shapes: B images, P patches, D width, E width of an embedding, C instructions, W tokens after the image, T all tokens, R
readouts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.nn.loading import transformers

# Images, or readouts, of one pass: of LLaVA-1.5 7B, keys and values of an image take 0.3 GB in half precision.
AT_ONCE = 8


class FocalLensMllm(nn.Module):
    """transformers' `LlavaModel`, read out at the end of each prompt.

    `opening` are the token ids before the image, `end` is the id of </s>; `width` is E.
    """

    opening: Tensor

    def __init__(self, llava: Any, opening: Sequence[int], end: int, projection: nn.Linear | None = None) -> None:
        super().__init__()
        self.llava = llava
        self.end = end
        self.projection = projection
        self.width = int(llava.config.text_config.hidden_size if projection is None else projection.out_features)
        self.register_buffer("opening", torch.tensor(opening), persistent=False)

    def forward(self, pixels: Tensor, input_ids: Tensor, image_index: Tensor) -> Tensor:
        """Embed as `embed` does, in one pass with gradient, for training → (R, E).

        `image_index` (R,) are the places of the images of the instructions (R, W). An image's instructions stand side
        by side behind it, each at the same positions and hidden from the others, so that an image passes once.
        """
        ends = self._ends(input_ids)
        before = self._before(self.image_features(pixels))
        texts = self._embed_tokens(input_ids[:, : int(ends.max()) + 1])
        place, num_places = _places(image_index)
        num_before, width = before.shape[1], texts.shape[1]
        side_by_side = before.new_zeros(len(before), num_places, *texts.shape[1:])
        side_by_side[image_index, place] = texts
        hidden = self.llava.language_model(
            inputs_embeds=torch.cat([before, side_by_side.flatten(1, 2)], dim=1),
            attention_mask=_hidden_from_others(num_before, num_places, width).to(before),
            position_ids=_positions(num_before, num_places, width).to(before.device),
            use_cache=False,
        ).last_hidden_state
        read_out = num_before + width * place + ends
        return self._read_out(hidden[image_index, read_out])

    def embed(self, pixels: Tensor, input_ids: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
        """Embed normalised images (B, 3, height, width) under instructions → (R, E) float32, L2-normalised.

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
        x = self._before(self.image_features(pixels))
        cache = self.llava.language_model(inputs_embeds=x, use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _read(self, kept: Sequence[tuple[Tensor, Tensor]], places: list[int], input_ids: Tensor) -> Tensor:
        """Run instructions (R, W) behind the images at `places` and read out at the first </s>: (R, E)."""
        ends = self._ends(input_ids)
        x = self._embed_tokens(input_ids[:, : int(ends.max()) + 1])
        cache = transformers().DynamicCache([(keys[places], values[places]) for keys, values in kept])
        hidden = self.llava.language_model(inputs_embeds=x, past_key_values=cache, use_cache=True).last_hidden_state
        return self._read_out(hidden[torch.arange(len(ends), device=ends.device), ends])

    def _before(self, features: Tensor) -> Tensor:
        """Return the inputs of the language model up to the image's end, (B, …, D)."""
        opening = self._embed_tokens(self.opening).expand(len(features), -1, -1)
        return torch.cat([opening, features.to(opening.dtype)], dim=1)

    def _ends(self, input_ids: Tensor) -> Tensor:
        return (input_ids == self.end).int().argmax(dim=1)

    def _read_out(self, at_end: Tensor) -> Tensor:
        at_end = at_end.float()
        projected = at_end if self.projection is None else self.projection(at_end)
        return F.normalize(projected.float(), dim=-1)

    def _embed_tokens(self, input_ids: Tensor) -> Tensor:
        embedded: Tensor = self.llava.get_input_embeddings()(input_ids)
        return embedded


def _places(image_index: Tensor) -> tuple[Tensor, int]:
    """Number the instructions of each image: (R,), and how many the image with the most has."""
    counts: Counter[int] = Counter()
    places = []
    for image in image_index.tolist():
        places.append(counts[image])
        counts[image] += 1
    return torch.tensor(places, device=image_index.device), max(counts.values())


def _positions(num_before: int, num_places: int, width: int) -> Tensor:
    """Positions of what stands before the instructions, and of each of them as if it alone followed: (1, T)."""
    after = torch.arange(num_before, num_before + width).repeat(num_places)
    return torch.cat([torch.arange(num_before), after])[None]


def _hidden_from_others(num_before: int, num_places: int, width: int) -> Tensor:
    """Return the term added to attention's logits: causal, and −∞ from an instruction to another: (1, 1, T, T)."""
    part = torch.cat(
        [torch.zeros(num_before, dtype=torch.int64), 1 + torch.arange(num_places).repeat_interleave(width)]
    )
    is_seen = (part[None, :] == part[:, None]) | (part[None, :] == 0)
    mask = torch.zeros(is_seen.shape).masked_fill(~is_seen.tril(), -torch.inf)
    return mask[None, None]


def _slices(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]
