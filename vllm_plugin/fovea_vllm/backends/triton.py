"""The attention backend of CUDA and ROCm devices, chosen with `--attention-backend CUSTOM`.

vLLM has not run with it on a GPU; the kernels that it calls have.
"""

from typing import Any, ClassVar

from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from fovea_vllm.backends.calibrated import AttendsRows, FindsRows


class FoveaTritonMetadataBuilder(FindsRows, TritonAttentionMetadataBuilder):
    """Builds the metadata of `TRITON_ATTN`.

    Attention stays outside CUDA graphs: a graph would replay a step without looking at its rows.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER


class FoveaTritonImpl(AttendsRows, TritonAttentionImpl):
    """Lets `TRITON_ATTN` compute all rows, then overwrites calibrated ones."""

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """False: calibrated rows are written as they are."""
        return False

    def caches(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """View the layer's keys and values as (blocks, block size, key heads, D)."""
        by_token = kv_cache.transpose(1, 2)
        return by_token[..., : self.head_size], by_token[..., self.head_size :]

    @property
    def window(self) -> int | None:
        """The number of tokens up to itself that a row sees, None for all."""
        return None if self.sliding_window[0] < 0 else self.sliding_window[0] + 1


class FoveaTritonBackend(TritonAttentionBackend):
    """`TRITON_ATTN` with calibrated rows."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FoveaTritonImpl]:
        return FoveaTritonImpl

    @staticmethod
    def get_builder_cls() -> type[FoveaTritonMetadataBuilder]:
        return FoveaTritonMetadataBuilder
