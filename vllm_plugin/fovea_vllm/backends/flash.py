"""vLLM's `FLASH_ATTN` with calibrated rows."""

from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from fovea_vllm.backends.tables import AttendsTables, WritesTables


class FoveaFlashMetadataBuilder(WritesTables, FlashAttentionMetadataBuilder):
    """Builds the metadata of `FLASH_ATTN`."""


class FoveaFlashImpl(AttendsTables, FlashAttentionImpl):
    """Lets `FLASH_ATTN` compute all rows but the calibrated ones."""


class FoveaFlashBackend(FlashAttentionBackend):
    """`FLASH_ATTN` with calibrated rows; its name stays, because vLLM looks it up by name."""

    @staticmethod
    def get_impl_cls() -> type[FoveaFlashImpl]:
        return FoveaFlashImpl

    @staticmethod
    def get_builder_cls() -> type[FoveaFlashMetadataBuilder]:
        return FoveaFlashMetadataBuilder
