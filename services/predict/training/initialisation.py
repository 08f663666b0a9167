"""T5s from scratch in named shapes.

The first weights are transformers', as T5's own were. AdamW learns from them where its learning rate is large, 1e-3 to
3e-3 for "tiny", a few warm-up steps ahead of it; that of finetuning, 5e-5, hardly moves embeddings of length √d_model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from services.nn.torchvision_operators import declare_torchvision_operators


@dataclass(frozen=True)
class Shape:
    """Sizes of a T5 with as many encoder as decoder layers.

    `is_gated` tells the feed-forward layers and the head of v1.1 and flan from those of the first T5: a gated GELU and
    a head of its own, or ReLU and the embeddings as head. `dropout` is that of training.
    """

    d_model: int
    num_layers: int
    num_heads: int
    d_ff: int
    d_kv: int = 64
    is_gated: bool = False
    dropout: float = 0.1


SHAPES: Mapping[str, Shape] = {
    # Students of minutes: with dropout they had twice the losses after as many steps, each of which took longer.
    "tiny": Shape(64, 2, 4, 256, d_kv=16, dropout=0.0),
    "mini": Shape(128, 3, 4, 384, d_kv=32, dropout=0.0),
    "small": Shape(512, 6, 8, 2048),
    "base": Shape(768, 12, 12, 3072),
    "small-v1.1": Shape(512, 8, 6, 1024, is_gated=True),
    "base-v1.1": Shape(768, 12, 12, 2048, is_gated=True),
}


def create_t5(shape: str, vocab_size: int, seed: int) -> Any:
    """A T5ForConditionalGeneration, float32, on the CPU, ready for training.

    Its control tokens are those of `tokenizer_build`. Raises KeyError for an unknown shape. The random numbers of the
    process stay as they were.
    """
    declare_torchvision_operators()
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = SHAPES[shape]
    settings: dict[str, Any] = {"tie_word_embeddings": not sizes.is_gated, "decoder_start_token_id": 0}
    config = T5Config(
        vocab_size=vocab_size,
        d_model=sizes.d_model,
        d_kv=sizes.d_kv,
        d_ff=sizes.d_ff,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        dropout_rate=sizes.dropout,
        feed_forward_proj="gated-gelu" if sizes.is_gated else "relu",
        pad_token_id=0,
        eos_token_id=1,
        **settings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = T5ForConditionalGeneration(config)
    return model
