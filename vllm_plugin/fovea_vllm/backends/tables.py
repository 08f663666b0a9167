"""Parts of the backends of GPUs: a step's rows are written as tables, which captured graphs read as well."""

import copy
import functools
from typing import Any

from torch import Tensor
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata

from fovea_vllm.admission import unsupported
from fovea_vllm.batch import batch_of
from fovea_vllm.tables import StepTables, TableStep


class WritesTables:
    """A metadata builder, before its parent in the order of bases: the metadata get the step's rows as `fovea_step`.

    A model that cannot be calibrated is served as by the parent alone.
    """

    vllm_config: Any
    num_heads_q: int
    num_heads_kv: int
    headdim: int

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        parent: Any = super()
        parent.__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._is_capturing = False
        self._tables: StepTables | None = None
        if unsupported(vllm_config) is not None:
            return
        layers = vllm_config.compilation_config.static_forward_context
        self._batch = batch_of(vllm_config)
        self._tables = StepTables(
            num_layers=vllm_config.model_config.hf_text_config.num_hidden_layers,
            heads=(self.num_heads_q, self.num_heads_kv, self.headdim),
            first_head=get_tensor_model_parallel_rank() * self.num_heads_q,
            windows=sorted({layers[name].impl.window for name in layer_names}, key=str),
            max_rows=vllm_config.scheduler_config.max_num_seqs,
            max_tokens=vllm_config.model_config.max_model_len,
            device=device,
        )
        self._batch.tables.add(self._tables)
        if vllm_config.use_v2_model_runner:
            replay_only_what_fits()

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """Allow the parent's graphs of decoding; those of prompts too, where the model cannot be calibrated.

        Runner V1 chooses a graph before it tells which requests a step has.
        """
        parent: Any = super()
        support: AttentionCGSupport = parent.get_cudagraph_support(vllm_config, kv_cache_spec)
        if unsupported(vllm_config) is not None:
            return support
        if not vllm_config.use_v2_model_runner:
            return AttentionCGSupport.NEVER
        return min(support, AttentionCGSupport.UNIFORM_BATCH, key=lambda level: level.value)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, *args: Any, **kwargs: Any
    ) -> Any:
        """Build the parent's metadata, of which the later arguments are."""
        parent: Any = super()
        metadata = parent.build(common_prefix_len, common_attn_metadata, *args, **kwargs)
        if self._tables is not None:
            seq_lens = common_attn_metadata.seq_lens
            if self._is_capturing:
                metadata.fovea_step = self._tables.captured(seq_lens)
            else:
                rows = self._batch.rows(common_attn_metadata)
                metadata.fovea_step = self._tables.step(rows, seq_lens, self._batch.measurements)
        return metadata

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> Any:
        """Build the metadata of a graph that is replayed for any rows."""
        parent: Any = super()
        self._is_capturing = True
        try:
            return parent.build_for_cudagraph_capture(common_attn_metadata)
        finally:
            self._is_capturing = False


class AttendsTables:
    """An attention implementation, before its parent in the order of bases."""

    head_size: int
    num_heads: int
    scale: float
    sliding_window: tuple[int, int]
    is_calibrated_by_fovea = True
    _index: int | None = None

    @property
    def window(self) -> int | None:
        """The number of tokens up to itself that a row sees, None for all."""
        return None if self.sliding_window[0] < 0 else self.sliding_window[0] + 1

    def forward(  # noqa: PLR0913 (vLLM's signature)
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Attend as the parent does, but for the calibrated rows."""
        parent: Any = super()
        step: TableStep | None = getattr(attn_metadata, "fovea_step", None)
        if step is None:
            plain: Tensor = parent.forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
            return plain
        if self._index is None:
            self._index = extract_layer_index(layer.layer_name)
        if step.seq_lens is not None:
            attn_metadata = copy.copy(attn_metadata)
            attn_metadata.seq_lens = step.seq_lens[self._index]
        attended: Tensor = parent.forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        by_token = kv_cache.transpose(1, 2)
        step.attend(
            self._index,
            query.view(-1, self.num_heads, self.head_size),
            by_token[..., : self.head_size],
            by_token[..., self.head_size :],
            attn_metadata.block_table,
            attended.view(-1, self.num_heads, self.head_size),
            scale=self.scale,
            window=self.window,
        )
        return attended


def replay_only_what_fits() -> None:
    """Keep runner V2 from replaying a graph for rows that do not fit its tables; a second call changes nothing."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    gather = GPUModelRunner.gather_batch_req_state
    if hasattr(gather, "is_checked_by_fovea"):
        return

    @functools.wraps(gather)
    def gather_and_check(self: Any, *args: Any, **kwargs: Any) -> Any:
        state, num_uniform_tokens = gather(self, *args, **kwargs)
        if state is None or batch_of(self.vllm_config).fits_graphs(state.idx_mapping_np.tolist()):
            return state, num_uniform_tokens
        return state, None

    gather_and_check.is_checked_by_fovea = True  # type: ignore[attr-defined]
    GPUModelRunner.gather_batch_req_state = gather_and_check
