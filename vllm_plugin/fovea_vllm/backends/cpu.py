"""The attention backend of CPUs, in place of vLLM's `CPU_ATTN`, which its CPU platform always chooses."""

from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from fovea_vllm.batch import batch_of
from fovea_vllm.step import Step


class FoveaCPUMetadataBuilder(CPUAttentionMetadataBuilder):
    """Builds the metadata of `CPU_ATTN`, with the step's rows as `fovea_step`.

    Raises RuntimeError if the plug-in cannot read how keys are stored.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not _is_readable(self.isa, self.block_size, self.head_dim, self.dtype):
            raise RuntimeError(
                f"vLLM's CPU attention stores keys of {self.dtype} for {self.isa} in a layout that fovea-vllm cannot "
                "read; --dtype float32 has one that it can"
            )

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, *args: Any, **kwargs: Any
    ) -> Any:
        """Build the parent's metadata, of which the later arguments are."""
        metadata = super().build(common_prefix_len, common_attn_metadata, *args, **kwargs)
        metadata.fovea_step = batch_of(self.vllm_config).step(common_attn_metadata)
        return metadata


class FoveaCPUImpl(CPUAttentionBackendImpl):
    """Lets `CPU_ATTN` compute all rows, then overwrites calibrated ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch = batch_of(get_current_vllm_config())
        self._first_head: int | None = None

    def forward(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Attend as the parent does, then overwrite the calibrated rows."""
        output: Tensor = super().forward(layer, query, key, value, *args, **kwargs)
        kv_cache, metadata = args[:2] if len(args) > 1 else (kwargs["kv_cache"], kwargs["attn_metadata"])
        step: Step | None = getattr(metadata, "fovea_step", None)
        if step is None:
            return output
        if self._first_head is None:
            self._first_head = get_tensor_model_parallel_rank() * self.num_heads
        step.attend(
            extract_layer_index(layer.layer_name),
            query.view(-1, self.num_heads, self.head_size),
            *split_cache(kv_cache),
            output.view(-1, self.num_heads, self.head_size),
            self._batch.measurements,
            scale=self.scale,
            window=self.sliding_window if self.sliding_window > 0 else None,
            first_head=self._first_head,
        )
        return output


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
