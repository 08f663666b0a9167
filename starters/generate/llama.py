"""The Llama of a starter, whose weights its training sets."""

from dataclasses import dataclass
from typing import Any

from services.nn.loading import transformers

BOS_ID, EOS_ID = 0, 1
MAX_TOKENS, EPSILON = 8192, 1e-6


@dataclass(frozen=True)
class LlamaShape:
    """The size of a Llama: D `width`, M `mlp`, H `heads`, G `key_heads`, C `channels` of a head, V `vocabulary`."""

    vocabulary: int
    width: int
    mlp: int
    layers: int
    heads: int
    key_heads: int
    channels: int
    rope_theta: float


def new_llama(shape: LlamaShape) -> Any:
    """Create a LlamaForCausalLM, float32, on the CPU, whose logits share the embeddings' weights."""
    config = transformers().LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.channels,
        max_position_embeddings=MAX_TOKENS,
        rms_norm_eps=EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=EOS_ID,
    )
    return transformers().LlamaForCausalLM(config)
