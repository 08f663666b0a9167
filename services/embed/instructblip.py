"""InstructBLIP's image side: the mean of what its Q-Former reads of an image under an instruction (Dai et al., 2023).

    V    = f(image)                                         (P, D): all tokens of the image tower, after its last norm
    X    = (q_1 … q_Q, E(instruction))                      learnt queries, and the instruction's word pieces
    X    ← BERT(X), in every other layer of which the queries alone attend to V
    φ    = mean_i X_i / |mean_i X_i|                        over the Q queries

FocalLens compares with this embedding: "we average over all image tokens" (appendix D.2), which are those that the
Q-Former hands to the language model; the language model has no part in it.

Shapes: B images, P tokens of an image, D width of the tower, R readouts, W tokens of an instruction, Q queries, E width
of the Q-Former.
"""

from typing import Any

import torch
from torch import Tensor, nn


class InstructBlip(nn.Module):
    """transformers' image tower and Q-Former, and the queries (1, Q, E)."""

    query_tokens: Tensor

    def __init__(self, vision: Any, qformer: Any, query_tokens: Tensor) -> None:
        super().__init__()
        self.vision = vision
        self.qformer = qformer
        self.register_buffer("query_tokens", query_tokens)

    @property
    def width(self) -> int:
        """Return E."""
        return int(self.query_tokens.shape[2])

    def image_features(self, pixels: Tensor) -> Tensor:
        """Encode normalised pixels (B, 3, height, width) → V (B, P, D)."""
        features: Tensor = self.vision(pixel_values=pixels).last_hidden_state
        return features

    def forward(self, features: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Read V (R, P, D), each under its instruction (R, W), padded as the mask tells → (R, E), not normalised."""
        num_rows, num_queries = len(features), self.query_tokens.shape[1]
        seen = torch.cat([attention_mask.new_ones(num_rows, num_queries), attention_mask], dim=1)
        output = self.qformer(
            input_ids=input_ids,
            attention_mask=seen,
            query_embeds=self.query_tokens.expand(num_rows, -1, -1),
            encoder_hidden_states=features,
            encoder_attention_mask=attention_mask.new_ones(features.shape[:2]),
        )
        queries: Tensor = output.last_hidden_state[:, :num_queries]
        return queries.mean(dim=1)
