"""The table of the cache that published language models have room for, by the arithmetic of `fovea capacity`."""

import json
from typing import Any

from services.core.byte_sizes import binary_size
from services.generate.capacity import DEFAULT_SHARE, DTYPE_BYTES, CacheSize, Capacity
from tests.documentation.blocks import ROOT, table

GIBIBYTE = 1024**3
MEMORIES_GIB = (16, 24, 80)
CONTEXT = 4096
DTYPE = "bfloat16"


def published_models() -> dict[str, Any]:
    """The parameters of each model, and of its config what its size follows from."""
    models: dict[str, Any] = json.loads((ROOT / "tests" / "documentation" / "published_models.json").read_text())
    return models


def capacity_of(model: dict[str, Any], memory_gib: int) -> Capacity:
    """The streams that fit beside a published model."""
    size = CacheSize.of(model["config"])
    weight_bytes = model["num_parameters"] * DTYPE_BYTES[DTYPE]
    budget_bytes = int(memory_gib * GIBIBYTE * DEFAULT_SHARE)
    return Capacity(weight_bytes, size.token_bytes(DTYPE), budget_bytes, size.max_context)


def capacity_table() -> str:
    rows = []
    for name, model in published_models().items():
        for memory_gib in MEMORIES_GIB:
            found = capacity_of(model, memory_gib)
            figures = (found.cache_tokens, found.streams(CONTEXT), found.longest_context)
            cells = [f"{figure:,}" for figure in figures] if found.fits else ["does not fit", "", ""]
            sizes = (binary_size(found.weight_bytes), binary_size(found.token_bytes))
            rows.append((name, *sizes, f"{memory_gib} GiB", *cells))
    heads = ("weights", "a token", "memory", "tokens of cache", f"streams of {CONTEXT:,}", "longest context")
    return table(("model", *heads), rows)
