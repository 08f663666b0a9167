"""The attention backend of CPUs, in place of vLLM's `CPU_ATTN`, which its CPU platform always chooses."""

from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from fovea_vllm.backends.calibrated import AttendsRows, FindsRows


class FoveaCPUMetadataBuilder(FindsRows, CPUAttentionMetadataBuilder):
    """Builds the metadata of `CPU_ATTN`. Raises RuntimeError if the plug-in cannot read how keys are stored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not _is_readable(self.isa, self.block_size, self.head_dim, self.dtype):
            raise RuntimeError(
                f"vLLM's CPU attention stores keys of {self.dtype} for {self.isa} in a layout that fovea-vllm cannot "
                "read; --dtype float32 has one that it can"
            )


class FoveaCPUImpl(AttendsRows, CPUAttentionBackendImpl):
    """Lets `CPU_ATTN` compute all rows, then overwrites calibrated ones."""

    def caches(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """View the layer's keys and values as (blocks, block size, key heads, D)."""
        return split_cache(kv_cache)

    @property
    def window(self) -> int | None:
        """The number of tokens up to itself that a row sees, None for all."""
        return self.sliding_window if self.sliding_window > 0 else None


class FoveaCPUBackend(CPUAttentionBackend):
    """`CPU_ATTN` with calibrated rows; its name stays, because vLLM looks it up by name."""

    @staticmethod
    def get_impl_cls() -> type[FoveaCPUImpl]:
        return FoveaCPUImpl

    @staticmethod
    def get_builder_cls() -> type[FoveaCPUMetadataBuilder]:
        return FoveaCPUMetadataBuilder


def split_cache(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """View keys and values of a cache (blocks, key heads, block size, 2 D) as (blocks, block size, key heads, D).

    Of each block and head, the kernel stores all keys, transposed to (D, block size), and then all values.
    """
    num_blocks, num_heads, block_size, double = kv_cache.shape
    halves = kv_cache.view(num_blocks, num_heads, 2, block_size * double // 2)
    keys = halves[:, :, 0].view(num_blocks, num_heads, double // 2, block_size)
    values = halves[:, :, 1].view(num_blocks, num_heads, block_size, double // 2)
    return keys.permute(0, 3, 1, 2), values.permute(0, 2, 1, 3)


def _is_readable(isa: str, block_size: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernel for this instruction set stores keys and values as `split_cache` reads them, by trying it."""
    kv_cache = torch.zeros(1, 1, block_size, 2 * head_dim, dtype=dtype)
    numbers = (torch.arange(block_size * head_dim) % 251).to(dtype).view(block_size, 1, head_dim)
    key_cache, value_cache = kv_cache.view(1, 1, 2 * block_size, head_dim).chunk(2, dim=2)
    slots = torch.arange(block_size)
    scales = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": "auto"}
    ops.cpu_attn_reshape_and_cache(numbers, -numbers, key_cache, value_cache, slots, isa, **scales)
    keys, values = split_cache(kv_cache)
    return torch.equal(keys[0], numbers) and torch.equal(values[0], -numbers)
