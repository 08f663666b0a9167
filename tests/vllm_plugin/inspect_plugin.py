"""Checks of the plug-in's classes among vLLM's, without an engine; run by the Python of an environment with vLLM.

The last line of standard output is a JSON object of what was found.
"""

import inspect
import json
from types import SimpleNamespace
from typing import Any

FIELDS = {"fovea_documents": [0, 2, 2, 4], "fovea_log_alpha": [0.0, 0.0], "fovea_layers": [0]}
REFUSED: dict[str, dict[str, Any]] = {
    "model": {"model_config": {"hf_text_config": {"model_type": "gpt2"}}},
    "mla": {"model_config": {"use_mla": True}},
    "speculative": {"speculative_config": {"method": "ngram"}},
    "transfer": {"kv_transfer_config": {"kv_connector": "a"}},
    "pipeline": {"parallel_config": {"pipeline_parallel_size": 2}},
    "data": {"parallel_config": {"data_parallel_size": 2}},
    "context": {"parallel_config": {"decode_context_parallel_size": 2}},
    "quantised": {"cache_config": {"cache_dtype": "fp8"}},
}
SUPPORTED = {
    "model_config": {"hf_text_config": {"model_type": "llama"}, "use_mla": False, "dtype": "torch.float32"},
    "speculative_config": None,
    "kv_transfer_config": None,
    "parallel_config": {
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
    },
    "cache_config": {"cache_dtype": "auto"},
}


def main() -> None:
    from vllm.sampling_params import SamplingParams

    from fovea_vllm.batch import CalibratedRequests

    params = SamplingParams(extra_args=FIELDS)
    before = _refusal(CalibratedRequests.validate_params, params)
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    after = _refusal(CalibratedRequests.validate_params, params)
    if after is not None:
        print(json.dumps({"before": before, "after": after}))
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors_params_validator

    from fovea_vllm.admission import why_not

    names = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")
    backends = [AttentionBackendEnum[name].get_class() for name in names]
    classes = [part for one in backends for part in (one, one.get_impl_cls(), one.get_builder_cls())]
    found = {
        "before": before,
        "after": after,
        "v2": _refusal(build_custom_logits_processors_params_validator(None), params),
        "classes": [one.__name__ for one in classes],
        "abstract": [one.__name__ for one in (*classes, CalibratedRequests) if inspect.isabstract(one)],
        "supported": why_not(_config(SUPPORTED), is_measured=True),
        "replayed": _replayed(),
        "unmeasured": why_not(_config(_merged(SUPPORTED, REFUSED["data"]))),
        "refused": {
            name: why_not(_config(_merged(SUPPORTED, changes)), is_measured=True) for name, changes in REFUSED.items()
        },
    }
    print(json.dumps(found))


def _replayed() -> list[int | None]:
    """Runner V2's uniform number of tokens, without which it replays no graph of decoding, by what a request asks."""
    import numpy as np
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from fovea_vllm.backends.tables import replay_only_what_fits
    from fovea_vllm.batch import batch_of
    from fovea_vllm.request import DocumentRequest

    config = _config(
        {
            "compilation_config": {"static_forward_context": {}},
            "model_config": {"hf_text_config": {"num_hidden_layers": 2}},
        }
    )
    batch: Any = batch_of(config)
    tables = TablesWithoutMeasured()
    batch.tables.add(tables)
    state = SimpleNamespace(idx_mapping_np=np.array([0]))
    GPUModelRunner.gather_batch_req_state = lambda self, *arguments: (state, 1)
    for _ in range(2):
        replay_only_what_fits()
    found: list[int | None] = []
    measuring = {"fovea_documents": FIELDS["fovea_documents"], "fovea_measure": "a"}
    for requests in ({}, {0: DocumentRequest.of(FIELDS)}, {0: DocumentRequest.of(measuring)}):
        batch.requests = requests
        runner = SimpleNamespace(vllm_config=config)
        found.append(GPUModelRunner.gather_batch_req_state(runner, None, False)[1])
    del tables
    found.append(GPUModelRunner.gather_batch_req_state(runner, None, False)[1])
    return found


class TablesWithoutMeasured:
    """Tables that hold any rows but measured ones."""

    def fits(self, requests: list[Any]) -> bool:
        return all(one.measure_key is None for one in requests)


def _refusal(check: Any, params: Any) -> str | None:
    from vllm.exceptions import VLLMValidationError

    try:
        check(params)
    except VLLMValidationError as error:
        return str(error)
    return None


def _config(fields: dict[str, Any]) -> Any:
    """As vLLM's configuration, of which the engine that it describes could not run here."""
    return json.loads(json.dumps(fields), object_hook=lambda found: SimpleNamespace(**found))


def _merged(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, change in changes.items():
        own = merged.get(name)
        merged[name] = _merged(own, change) if isinstance(own, dict) else change
    return merged


if __name__ == "__main__":
    main()
