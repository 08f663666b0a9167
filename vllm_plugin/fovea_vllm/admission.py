"""Requests are refused when they arrive: an error in the engine would end it for all of them."""

import functools
from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.backends.registry import AttentionBackendEnum
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
        (
            not current_platform.is_cpu() and config.attention_config.backend is not AttentionBackendEnum.CUSTOM,
            "vLLM must be started with --attention-backend CUSTOM to calibrate",
        ),
    )
    return next((sentence for is_refused, sentence in refused if is_refused), None)
