"""Parts of both backends: rows are found when a step's metadata are built, and attended after the parent's pass."""

from typing import Any

from torch import Tensor
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import CommonAttentionMetadata

from fovea_vllm.batch import batch_of
from fovea_vllm.step import Step


class FindsRows:
    """A metadata builder, before its parent in the order of bases: the metadata get the step's rows as `fovea_step`."""

    vllm_config: VllmConfig

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, *args: Any, **kwargs: Any
    ) -> Any:
        """Build the parent's metadata, of which the later arguments are."""
        parent: Any = super()
        metadata = parent.build(common_prefix_len, common_attn_metadata, *args, **kwargs)
        metadata.fovea_step = batch_of(self.vllm_config).step(common_attn_metadata)
        return metadata


class AttendsRows:
    """An attention implementation, before its parent in the order of bases."""

    head_size: int
    num_heads: int
    scale: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch = batch_of(get_current_vllm_config())
        self._first_head: int | None = None

    def forward(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Attend as the parent does, then overwrite the calibrated rows."""
        parent: Any = super()
        output: Tensor = parent.forward(layer, query, key, value, *args, **kwargs)
        kv_cache, metadata = args[:2] if len(args) > 1 else (kwargs["kv_cache"], kwargs["attn_metadata"])
        if metadata is not None:
            self._attend_rows(layer, query, kv_cache, metadata, output)
        return output

    def caches(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """View the layer's keys and values as (blocks, block size, key heads, D)."""
        raise NotImplementedError

    @property
    def window(self) -> int | None:
        """The number of tokens up to itself that a row sees, None for all."""
        raise NotImplementedError

    def _attend_rows(self, layer: Any, query: Tensor, kv_cache: Tensor, metadata: Any, output: Tensor) -> None:
        step: Step | None = getattr(metadata, "fovea_step", None)
        if step is None:
            return
        if self._first_head is None:
            self._first_head = get_tensor_model_parallel_rank() * self.num_heads
        step.attend(
            extract_layer_index(layer.layer_name),
            query.view(-1, self.num_heads, self.head_size),
            *self.caches(kv_cache),
            output.view(-1, self.num_heads, self.head_size),
            self._batch.measurements,
            scale=self.scale,
            window=self.window,
            first_head=self._first_head,
        )
