"""The calibrated and measured requests of a running batch, through vLLM's interface for logits processors.

Both model runners tell their logits processors of every request that joins, leaves or moves before the forward pass;
so this one, which leaves logits as they are, knows whose rows the attention backend is about to compute.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.logits_processor import LogitsProcessor as LogitsProcessorV1
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

from fovea_vllm import loaded
from fovea_vllm.request import BadRequest, DocumentRequest
from fovea_vllm.step import Measurements, Row, Step, rows_of

if TYPE_CHECKING:
    from fovea_vllm.tables import StepTables


class Batch:
    """The requests of one engine's batch that name documents, and what has been measured.

    Runner V1 keeps `requests` by row of the batch, V2 by the slot that a request keeps.
    """

    def __init__(self, num_layers: int) -> None:
        self.requests: dict[int, DocumentRequest] = {}
        self.measurements = Measurements(num_layers)
        # weak, because vLLM builds its attention once more for real after it has tried how much memory graphs take
        self.tables: WeakSet[StepTables] = WeakSet()

    def step(self, common: CommonAttentionMetadata) -> Step | None:
        """Find the rows of a forward pass on a CPU; None if there are none."""
        rows = self.rows(common)
        return Step(tuple(rows), common.block_table_tensor) if rows else None

    def fits_graphs(self, slots: Sequence[int]) -> bool:
        """Whether a step of one token of each of these requests can replay a captured graph."""
        requests = [self.requests[slot] for slot in slots if slot in self.requests]
        return not requests or all(tables.fits(requests) for tables in self.tables)

    def rows(self, common: CommonAttentionMetadata) -> list[Row]:
        """Find the rows of a forward pass that are calibrated or measured."""
        if not self.requests:
            return []
        lengths = common.seq_lens if common.seq_lens.device.type == "cpu" else common.seq_lens_cpu_upper_bound
        slots = range(common.num_reqs) if common.req_idx is None else common.req_idx[: common.num_reqs].tolist()
        if lengths is None:
            raise RuntimeError("vLLM's model runner did not give the lengths of sequences on the CPU")
        return rows_of(self.requests, slots, common.query_start_loc_cpu.tolist(), lengths.tolist())


_batches: dict[int, Batch] = {}


def batch_of(vllm_config: VllmConfig) -> Batch:
    """Return the batch of an engine in this process, by the table of its layers, which copies of its config share."""
    key = id(vllm_config.compilation_config.static_forward_context)
    if key not in _batches:
        _batches[key] = Batch(vllm_config.model_config.hf_text_config.num_hidden_layers)
    return _batches[key]


class CalibratedRequests(LogitsProcessorV1, LogitsProcessorV2):
    """Keeps `Batch.requests`, and refuses bad fields when a request arrives. It changes no logits."""

    def __init__(self, vllm_config: VllmConfig, *args: Any) -> None:
        """`args` are a device and whether its memory is pinned (V1), or the states of requests (V2)."""
        self._batch = batch_of(vllm_config)
        self._batch.requests.clear()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises VLLMValidationError, which is HTTP's 400, for fields of the plug-in that are not valid."""
        try:
            request = DocumentRequest.of(sampling_params.extra_args)
        except BadRequest as error:
            raise VLLMValidationError(str(error)) from error
        if request is not None and not loaded.is_complete:
            raise VLLMValidationError(
                "vLLM runs without the plug-in that calibrates: VLLM_PLUGINS is set and does not name fovea"
            )

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch of runner V1."""
        process_dict_updates(self._batch.requests, batch_update, _request_of)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Follow the slots of runner V2; returns False, because no logits change."""
        request = DocumentRequest.of(sampling_params.extra_args)
        if request is None:
            self._batch.requests.pop(req_idx, None)
        else:
            self._batch.requests[req_idx] = request
        return False

    def is_argmax_invariant(self) -> bool:
        """True: no logits change."""
        return True

    def apply(self, logits: torch.Tensor, *context: Any) -> torch.Tensor:
        """Return the logits themselves."""
        return logits


def _request_of(params: SamplingParams, *tokens: Any) -> DocumentRequest | None:
    return DocumentRequest.of(params.extra_args)
