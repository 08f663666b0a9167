"""The memory that a causal language model takes: its weights, and the keys and values of each cached token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Share of a device's memory for weights and cache. The rest is for the numbers of a pass and for the libraries.
DEFAULT_SHARE = 0.9


@dataclass(frozen=True)
class CacheSize:
    """The numbers of a config that the size of the cache follows from; `max_context` in tokens."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_context: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "CacheSize":
        """Read them from a Hugging Face `config.json`. Raises ValueError for a model of another layout."""
        names = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")
        for name in names:
            if not isinstance(config.get(name), int):
                kind = config.get("model_type", "unknown")
                raise ValueError(f"config.json has no {name}: not a causal language model in Llama's layout ({kind})")
        num_heads: int = config["num_attention_heads"]
        return cls(
            num_layers=config["num_hidden_layers"],
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
            max_context=context_length(config),
        )

    def token_bytes(self, dtype: str) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return self.token_numbers * DTYPE_BYTES[dtype]

    @property
    def token_numbers(self) -> int:
        """Count the numbers of one token's keys and values in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class Capacity:
    """A model on a device of which `budget_bytes` may be used; `max_context` is the model's own limit in tokens."""

    weight_bytes: int
    token_bytes: int
    budget_bytes: int
    max_context: int

    @property
    def fits(self) -> bool:
        """Whether there is room for the weights and at least one token."""
        return self.cache_tokens > 0

    @property
    def cache_bytes(self) -> int:
        """Room for the cache beside the weights."""
        return max(0, self.budget_bytes - self.weight_bytes)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache has room for."""
        return self.cache_bytes // self.token_bytes

    @property
    def longest_context(self) -> int:
        """Tokens of a single sequence, prompt and answer together."""
        return min(self.cache_tokens, self.max_context)

    def streams(self, context: int) -> int:
        """Return how many sequences of this many tokens fit at once."""
        return self.cache_tokens // context


def weights_as_served(stored_bytes: int, stored_dtype: str, dtype: str) -> int:
    """Return the bytes of weights that are stored in one dtype and loaded in another."""
    return stored_bytes * DTYPE_BYTES[dtype] // DTYPE_BYTES[stored_dtype]


def context_length(config: Mapping[str, Any]) -> int:
    """Return the tokens of prompt and answer together that a `config.json` allows.

    Scaled position embeddings reach further than `max_position_embeddings`: `linear` ones as far as
    `max_sequence_length` says, or by their factor; `yarn` by their factor from the length that they were trained with.
    `llama3` counts its factor in already. `dynamic` ones are not scaled, and so the same as in transformers, up to
    `max_position_embeddings`; beyond, they would change with every token, and with them the cached keys.
    """
    stated: int = config["max_position_embeddings"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    factor = rope.get("factor") or 1.0
    match rope.get("rope_type") or rope.get("type"):
        case "linear":
            return int(config.get("max_sequence_length") or stated * factor)
        case "yarn":
            return int((rope.get("original_max_position_embeddings") or stated) * factor)
        case _:
            return stated
