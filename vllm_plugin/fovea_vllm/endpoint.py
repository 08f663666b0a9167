"""The entry point `vllm.endpoint_plugins`, which VLLM_PLUGINS=fovea turns on in vLLM's HTTP server.

A request of any of vLLM's routes that names documents in `vllm_xargs` and brings no α is answered calibrated: its
prompt and the prompts with dummies are measured first, one token each, whose beginnings the prefix cache shares.
`POST /fovea/attention` returns the attention of a request that only measured, and `GET /fovea/model` describes the
model, so that a client knows whether it is the one that it expects.
"""

import asyncio
import uuid
from argparse import Namespace
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from hmac import compare_digest
from typing import Any, Literal

import torch
from fastapi import APIRouter, FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from torch import Tensor
from vllm import envs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from fovea_vllm.admission import why_not
from fovea_vllm.estimates import EstimateRequest
from fovea_vllm.request import DOCUMENTS, LAYERS, LOG_ALPHA, MAX_KEY_LENGTH, MEASURE, PREFIX, BadRequest

router = APIRouter(prefix="/fovea", tags=["fovea"])


class AttentionRequest(BaseModel):
    """The `fovea_measure` of a request that has been answered, and the form in which its attention is wanted."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(min_length=1, max_length=MAX_KEY_LENGTH)
    encoding_format: Literal["float", "base64"] = "float"


class MeasuredAttention(BaseModel):
    """Attn(k) of the prompt's last row, without calibration: L layers of H heads of K documents."""

    attention: list[list[list[float]]]


class EncodedAttention(BaseModel):
    """The same numbers in their order as float32, little-endian, in base64; `shape` is (L, H, K)."""

    attention: str
    shape: tuple[int, int, int]


class ServedModel(BaseModel):
    """The served model; `max_model_len` in tokens, `quantization` null for weights that are not.

    `refusal` says why requests cannot be measured or calibrated, null if they can.
    """

    num_layers: int
    num_heads: int
    vocab_size: int
    max_model_len: int
    dtype: str
    quantization: str | None
    refusal: str | None


@router.get("/model")
async def describe_model(request: Request) -> ServedModel:
    """Describe the model."""
    config = request.app.state.engine_client.vllm_config
    model, text = config.model_config, config.model_config.hf_text_config
    return ServedModel(
        num_layers=text.num_hidden_layers,
        num_heads=text.num_attention_heads,
        vocab_size=model.get_vocab_size(),
        max_model_len=model.max_model_len,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=None if model.quantization is None else str(model.quantization),
        refusal=why_not(config, is_measured=True),
    )


@router.post("/attention")
async def take_attention(body: AttentionRequest, request: Request) -> MeasuredAttention | EncodedAttention:
    """Return measured attention, once."""
    attention = await _taken(request.app.state.engine_client, body.key)
    if attention is None:
        raise HTTPException(404, f"nothing was measured with {MEASURE} {body.key!r}, or it has been taken already")
    if body.encoding_format == "base64":
        numbers = attention.numpy().astype("<f4").tobytes()
        return EncodedAttention(attention=b64encode(numbers).decode(), shape=attention.shape)
    return MeasuredAttention(attention=attention.tolist())


class KeyForEveryRoute:
    """Asks for vLLM's key on all paths but those of probes and Prometheus; vLLM itself asks on `/v1` and a few others.

    Without it whoever reaches the port would generate by `/invocations` and read `/fovea/attention`.
    """

    OPEN = ("/health", "/metrics", "/metrics/")

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._accepted = [f"Bearer {key}".encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 without a key."""
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        is_known = any(compare_digest(given, accepted) for accepted in self._accepted)
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and path not in self.OPEN and not is_known:
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class CalibrationEndpoint:
    """The plug-in as vLLM's server loads it."""

    name = "fovea"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes, and have every route ask for the key where there is one."""
        app.include_router(router)
        if keys := [key for key in (app.state.args.api_key or [envs.VLLM_API_KEY]) if key]:
            app.add_middleware(KeyForEveryRoute, keys=keys)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Let every route's requests pass through `Calibrator.generate`."""
        if engine_client is not None:
            engine_client.generate = Calibrator(engine_client).generate


class Calibrator:
    """Answers requests of an engine that name documents, but bring no α."""

    def __init__(self, engine_client: Any) -> None:
        self._client = engine_client
        self._generate: Callable[..., AsyncIterator[Any]] = engine_client.generate

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield vLLM's outputs; of a request with documents after its α has been estimated.

        Raises VLLMValidationError for bad fields.
        """
        try:
            asked = EstimateRequest.of(getattr(sampling_params, "extra_args", None))
            if asked is not None:
                log_alpha = await self._estimate(asked, prompt, request_id, kwargs)
                sampling_params = self._calibrated(sampling_params, asked, log_alpha)
        except BadRequest as error:
            raise VLLMValidationError(str(error)) from error
        async for output in self._generate(prompt, sampling_params, request_id, **kwargs):
            yield output

    async def _estimate(
        self, asked: EstimateRequest, prompt: Any, request_id: str, kwargs: dict[str, Any]
    ) -> list[float]:
        input_ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
        if not input_ids:
            raise BadRequest("documents are found by tokens: only a prompt of tokens can be calibrated")
        if reason := why_not(self._client.vllm_config, is_measured=True):
            raise BadRequest(reason)
        model = self._client.model_config.hf_text_config
        asked.check_prompt(len(input_ids), model.num_hidden_layers, model.num_attention_heads)
        if len(asked.spans) == 1:
            return [0.0]  # it keeps the documents' attention, whatever α is
        tokenizer = self._client.get_tokenizer()
        filler_ids = tokenizer.encode(asked.filler, add_special_tokens=False)
        dummies = asked.dummy_prompts(input_ids, filler_ids, lambda token: tokenizer.decode([token]).endswith("\n"))
        measure = self._measurer(asked, prompt, request_id, kwargs)
        attention = await measure(input_ids)  # before the others, which find its beginning in the prefix cache
        if asked.bias == "table":
            return asked.log_alpha(attention, None)
        bias = torch.zeros_like(attention)
        found = await asyncio.gather(*(measure(dummy_ids) for dummy_ids, _ in dummies))
        for (_, documents), measured in zip(dummies, found, strict=True):
            bias[..., list(documents)] = measured[..., list(documents)]
        return asked.log_alpha(attention, bias)

    def _measurer(self, asked: EstimateRequest, prompt: Any, request_id: str, kwargs: dict[str, Any]) -> Any:
        places = [place for span in asked.spans for place in span]

        async def measure(input_ids: Sequence[int]) -> Tensor:
            key = uuid.uuid4().hex
            params = SamplingParams(
                temperature=0.0,
                max_tokens=1,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                extra_args={DOCUMENTS: places, MEASURE: key},
            )
            own = {**prompt, "prompt_token_ids": list(input_ids)}
            async for _ in self._generate(own, params, f"{request_id}-{key}", **kwargs):
                pass
            attention = await _taken(self._client, key)
            if attention is None:
                raise RuntimeError("vLLM ended a measured prompt without running all of its layers")
            return attention

        return measure

    def _calibrated(self, params: SamplingParams, asked: EstimateRequest, log_alpha: Sequence[float]) -> SamplingParams:
        num_layers = self._client.model_config.hf_text_config.num_hidden_layers
        others = {name: value for name, value in params.extra_args.items() if not name.startswith(PREFIX)}
        params = params.clone()
        params.extra_args = {
            LAYERS: list(range(num_layers // 2, num_layers)),  # the paper's, where the request names none
            **others,
            **asked.kept,
            DOCUMENTS: [place for span in asked.spans for place in span],
            LOG_ALPHA: list(log_alpha),
        }
        return params


async def _taken(engine_client: Any, key: str) -> Tensor | None:
    """Take measured attention from all workers, (L, H, K): each has some of the heads, in order."""
    found = await engine_client.collective_rpc("take_fovea_attention", args=(key,))
    if any(of_worker is None for of_worker in found):
        return None
    return torch.cat([torch.tensor(of_worker) for of_worker in found], dim=1)
