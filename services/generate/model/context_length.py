"""The longest sequence that a language model's position embeddings reach, from its configuration."""

from typing import Any


def context_length(config: Any) -> int:
    """Return the tokens of prompt and answer together that a configuration of transformers allows.

    Scaled embeddings reach further than `max_position_embeddings`: `linear` ones as far as `max_sequence_length` says,
    or by their factor; `yarn` by their factor from the length that they were trained with. `llama3` counts its factor
    in already. `dynamic` ones are not scaled, and so the same as in transformers, up to `max_position_embeddings`;
    beyond, they would change with every token, and with them the cached keys.
    """
    longest: int = config.max_position_embeddings
    rope = getattr(config, "rope_parameters", None) or {}
    match rope.get("rope_type", "default"):
        case "linear":
            return int(getattr(config, "max_sequence_length", None) or longest * rope["factor"])
        case "yarn":
            return int(rope.get("original_max_position_embeddings", longest) * rope["factor"])
        case _:
            return longest
