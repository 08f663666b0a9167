"""vLLM's `TRITON_ATTN` with calibrated rows."""

from typing import Any

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from fovea_vllm.backends.tables import AttendsTables, WritesTables


class FoveaTritonMetadataBuilder(WritesTables, TritonAttentionMetadataBuilder):
    """Builds the metadata of `TRITON_ATTN`."""


class FoveaTritonImpl(AttendsTables, TritonAttentionImpl):
    """Lets `TRITON_ATTN` compute all rows but the calibrated ones."""

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """False: calibrated rows are written as they are."""
        return False


class FoveaTritonBackend(TritonAttentionBackend):
    """`TRITON_ATTN` with calibrated rows; its name stays, because vLLM looks it up by name."""

    @staticmethod
    def get_impl_cls() -> type[FoveaTritonImpl]:
        return FoveaTritonImpl

    @staticmethod
    def get_builder_cls() -> type[FoveaTritonMetadataBuilder]:
        return FoveaTritonMetadataBuilder
