"""The embedding of an image, a text or both by a vision-language model: what it holds of its prompt at the end.

    x   = the prompt's tokens up to where the model's answer would begin, the image's among them      (T tokens)
    h   = LM(x)                                         (T, D): causal, after the last layer and its norm
    φ   = h_T / |h_T|

Two published methods differ in the prompt alone. DIOR (Kawarada et al., WACV 2026, arXiv:2512.21860) asks any model, as
it was trained to answer, to describe the image in one word regarding the condition: what it is about to say is the
embedding. Qwen3-VL-Embedding (Li et al., arXiv:2601.04720) was tuned contrastively to answer with h_T, and reads the
condition as its system message, in front of the image.

Attention is causal. Where the condition stands behind the image, the beginning of the prompt is the same for all
conditions: it passes the model once, its keys and values are kept during the call, and each further condition costs
only its own tokens. Rows are padded behind their end, where nothing that is read out sees it.

Shapes: R readouts, T tokens of the longest prompt, L tokens of a shared beginning, D width.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = Mapping[str, Tensor]
# Prompts of one pass.
AT_ONCE = 8


class LastTokenEmbedder(nn.Module):
    """A vision-language model of transformers without its head; inputs are those that its processor makes."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.model = model
        self.width = width

    def forward(self, inputs: Inputs) -> Tensor:
        """Embed prompts, padded on the right as `attention_mask` (R, T) tells → (R, D) float32, L2-normalised."""
        hidden = self.model(**inputs, use_cache=False).last_hidden_state
        return _read_out(hidden, inputs["attention_mask"].sum(dim=1) - 1)

    def embed_shared(self, inputs: Inputs, num_shared: int, endings: Tensor, lengths: Tensor) -> Tensor:
        """Embed prompts that begin alike → (R, D), as `forward` does.

        `inputs` are those of one of them, of which the first `num_shared` tokens, L, are run, with the whole image
        among them; `endings` (R, T − L) are the tokens behind, and `lengths` (R,) their number without padding.
        """
        num_tokens = inputs["input_ids"].shape[1]
        begun = {name: _beginning(one, num_tokens, num_shared) for name, one in inputs.items()}
        kept = self.model(**begun, use_cache=True).past_key_values
        parts = []
        for some, ends in zip(endings.split(AT_ONCE), (lengths - 1).split(AT_ONCE), strict=True):  # type: ignore[no-untyped-call]
            cache = copy.deepcopy(kept)
            cache.batch_repeat_interleave(len(some))
            hidden = self.model(input_ids=some, past_key_values=cache, use_cache=True).last_hidden_state
            parts.append(_read_out(hidden, ends))
        return torch.cat(parts)


def _beginning(one: Tensor, num_tokens: int, num_shared: int) -> Tensor:
    """Cut what has a number for each token, (1, T) → (1, L); pixels and their places stay whole."""
    return one[:, :num_shared] if one.ndim == 2 and one.shape == (1, num_tokens) else one


def _read_out(hidden: Tensor, places: Tensor) -> Tensor:
    at_end = hidden[torch.arange(len(places), device=places.device), places]
    return F.normalize(at_end.float(), dim=-1)
