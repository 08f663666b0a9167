"""Requests are refused when they arrive: an error in the engine would end it for all of them."""

import functools
from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.engine.input_processor import InputProcessor

from fovea_vllm.request import NUM_PROMPT_TOKENS, BadRequest, DocumentRequest

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


def install() -> None:
    """Check requests after vLLM's own processing of them; a second call changes nothing."""
    if not hasattr(InputProcessor.process_inputs, "is_checked_by_fovea"):
        InputProcessor.process_inputs = _checked(InputProcessor.process_inputs)


def _checked(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(process_inputs)
    def process_and_check(self: InputProcessor, *args: Any, **kwargs: Any) -> Any:
        request = process_inputs(self, *args, **kwargs)
        if isinstance(request.sampling_params, SamplingParams):
            try:
                _admit(self.vllm_config, request)
            except BadRequest as error:
                raise VLLMValidationError(str(error)) from error
        return request

    process_and_check.is_checked_by_fovea = True  # type: ignore[attr-defined]
    return process_and_check


def _admit(config: VllmConfig, request: Any) -> None:
    """Check a request's documents, and tell the engine the length of its prompt. Raises BadRequest."""
    params = request.sampling_params
    if params.prompt_logprobs is not None and config.lora_config is not None and current_platform.is_cpu():
        # vLLM's LoRA for processors expects one row of logits per request, and a prompt's rows end the engine
        raise BadRequest("prompts cannot be scored (prompt_logprobs, echo) by a vLLM on processors with --enable-lora")
    asked = DocumentRequest.of(params.extra_args)
    if asked is None:
        return
    if reason := why_not(config, is_measured=asked.measure_key is not None):
        raise BadRequest(reason)
    if request.prompt_token_ids is None or request.prompt_embeds is not None or request.mm_features:
        raise BadRequest("documents are found by tokens: a prompt of embeddings or images cannot be calibrated")
    if request.resumable:
        raise BadRequest("a prompt that arrives in parts cannot be calibrated")
    asked.check_prompt(len(request.prompt_token_ids))
    model = config.model_config.hf_text_config
    asked.check_model(model.num_hidden_layers, model.num_attention_heads)
    params.extra_args = {**params.extra_args, NUM_PROMPT_TOKENS: len(request.prompt_token_ids)}


def why_not(config: VllmConfig, *, is_measured: bool = False) -> str | None:
    """Say why an engine cannot calibrate, or if `is_measured` cannot measure; None if it can."""
    return unsupported(config, is_measured=is_measured) or _other_backend(config)


def unsupported(config: VllmConfig, *, is_measured: bool = False) -> str | None:
    """Say which property of a model or an engine, other than its attention backend, forbids it; None if none does."""
    parallel, model_type = config.parallel_config, config.model_config.hf_text_config.model_type
    refused = (
        (
            model_type not in ARCHITECTURES,
            f"models of the type {model_type!r} cannot be calibrated; these can: {', '.join(ARCHITECTURES)}",
        ),
        (config.model_config.use_mla, "multi-head latent attention (MLA) cannot be calibrated"),
        (config.speculative_config is not None, "calibration does not work with speculative decoding"),
        (config.kv_transfer_config is not None, "calibration does not work with a KV transfer (kv_transfer_config)"),
        (
            is_measured and parallel.data_parallel_size > 1,
            "attention for a calibration cannot be measured with data parallelism: only one engine of several has it",
        ),
        (parallel.pipeline_parallel_size > 1, "calibration does not work with pipeline parallelism"),
        (
            parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
            "calibration does not work with context parallelism",
        ),
        (
            config.cache_config.cache_dtype not in ("auto", str(config.model_config.dtype).removeprefix("torch.")),
            f"calibration does not work with a KV cache of another type ({config.cache_config.cache_dtype})",
        ),
    )
    return next((sentence for is_refused, sentence in refused if is_refused), None)


def _other_backend(config: VllmConfig) -> str | None:
    """Say that the engine computes attention with a backend that the plug-in does not extend; None if it extends it."""
    if current_platform.is_cpu():
        return None
    backend = _backend_of(config)
    if getattr(backend.get_impl_cls(), "is_calibrated_by_fovea", False):
        return None
    return (
        f"vLLM computes attention with {backend.get_name()} here; to calibrate, start it with --attention-backend "
        "FLASH_ATTN or TRITON_ATTN"
    )


_backends: dict[int, Any] = {}


def _backend_of(config: VllmConfig) -> Any:
    """The attention backend that vLLM chooses for an engine, asked once."""
    key = id(config.compilation_config.static_forward_context)
    if key not in _backends:
        model = config.model_config
        with set_current_vllm_config(config):
            _backends[key] = get_attn_backend(
                model.get_head_size(),
                model.dtype,
                config.cache_config.cache_dtype,
                has_sliding_window=model.get_sliding_window() is not None,
            )
    return _backends[key]
