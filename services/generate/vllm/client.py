"""vLLM's HTTP server with Fovea's plug-in, as its client: completions of tokens, and the attention that it measured.

Every prompt is sent as tokens, so vLLM's own tokenizer and chat template matter only for conversations with tools.
"""

import base64
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

import aiohttp
import numpy as np
import orjson
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from services.core.errors import InternalError, InvalidRequest, Overloaded
from services.generate.generation.answer_text import FinishReason
from services.generate.generation.sampling import TokenChoice

RETRY_AFTER_S = 5.0
CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 256
KEEP_ALIVE_S = 2.0
# The longest line of a stream: its first one repeats the prompt's tokens.
MAX_LINE_BYTES = 16 * 2**20
TOKEN_PREFIX = "token_id:"
MAX_SHOWN_CHARACTERS = 300

PassingError = (aiohttp.ClientError, TimeoutError, OSError)


class Unavailable(Overloaded):
    """VLLM does not answer, or answers that it cannot now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="vllm_unavailable", retry_after_s=RETRY_AFTER_S)


class Gone(Unavailable):
    """VLLM cannot be reached, or breaks off."""


class ServedModel(BaseModel):
    """The model that vLLM serves, as the plug-in's `GET /fovea/model` describes it."""

    num_layers: int
    num_heads: int
    vocab_size: int
    max_model_len: int
    dtype: str
    quantization: str | None
    refusal: str | None


@dataclass(frozen=True, eq=False)
class Completed:
    """The whole answer to a completion.

    `choices` are its tokens; `scored` the prompt's tokens from the second on, if their log-probabilities were asked
    for; `cached_tokens` of the prompt were not computed again.
    """

    choices: tuple[TokenChoice, ...]
    scored: tuple[TokenChoice, ...]
    cached_tokens: int


@dataclass(frozen=True, eq=False)
class ChatPart:
    """A part of the answer to a conversation, or the whole; `choices` are its tokens if log-probabilities were asked
    for, `num_tokens` those so far."""

    text: str
    tool_calls: tuple[dict[str, Any], ...]
    choices: tuple[TokenChoice, ...]
    num_tokens: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, eq=False)
class Measured:
    """`attention` (L, H, K) is Attn(k) of the prompt's last row, without calibration."""

    attention: Tensor
    cached_tokens: int


@dataclass(frozen=True)
class VllmAddress:
    """A server of vLLM at `url`, the name by which it serves a model, and its key (`--api-key`), empty without one."""

    url: str
    model: str
    key: str = field(default="", repr=False)

    def connect(self) -> aiohttp.ClientSession:
        """Make connections; call it on the event loop that uses them."""
        return aiohttp.ClientSession(
            self.url.rstrip("/") + "/",
            headers={"authorization": f"Bearer {self.key}"} if self.key else {},
            # shorter than vLLM keeps an idle connection, so that no request meets one that it is closing
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=MAX_LINE_BYTES,
        )


class VllmClient:
    """Sends requests to a server for the model at `address`.

    Methods raise Unavailable where vLLM does not answer, InvalidRequest with its reason where it refuses a request, and
    InternalError where it fails at one, and for an answer that is none of vLLM's. Cancelling a call ends its request.
    """

    def __init__(self, address: VllmAddress, session: aiohttp.ClientSession) -> None:
        self.model = address.model
        self._session = session

    @classmethod
    @asynccontextmanager
    async def opened(cls, address: VllmAddress) -> AsyncIterator["VllmClient"]:
        """Open connections until the block ends."""
        async with address.connect() as session:
            yield cls(address, session)

    async def describe(self) -> ServedModel:
        """Ask which model is served."""
        found = await self._json("GET", "fovea/model", None, PROBE_TIMEOUT_S)
        try:
            return ServedModel.model_validate(found)
        except ValidationError as error:
            raise InternalError("vLLM described its model in another form.") from error

    async def names(self) -> dict[str, str | None]:
        """Ask for the names by which models are served: those of adapters with that of their base."""
        found = await self._json("GET", "v1/models", None, PROBE_TIMEOUT_S)
        with _reading():
            return {str(one["id"]): one.get("parent") for one in found["data"]}

    async def probe(self) -> None:
        """Ask whether vLLM's engine runs. Raises Unavailable if not."""
        async with self._answer("GET", "health", None, PROBE_TIMEOUT_S):
            pass

    async def complete(
        self, body: dict[str, Any], *, num_prompt_logprobs: int | None = None, token_ids: Sequence[int] = ()
    ) -> Completed:
        """Complete a prompt as a whole; `token_ids` are those whose log-probabilities are wanted at each place."""
        request = self._request({**body, "return_token_ids": True})
        if token_ids:
            request |= {"logprob_token_ids": list(token_ids), "logprobs": len(token_ids)}
        if num_prompt_logprobs is not None:
            request["prompt_logprobs"] = num_prompt_logprobs
        found = await self._json("POST", "v1/completions", request)
        with _reading():
            [choice] = found["choices"]
            scored = choice.get("prompt_logprobs") or ()
            prompt_ids = choice["prompt_token_ids"]
            details = found["usage"].get("prompt_tokens_details") or {}
            return Completed(
                tuple(_choices(choice)),
                tuple(_scored(one, prompt_ids[i], num_prompt_logprobs or 0) for i, one in enumerate(scored) if one),
                details.get("cached_tokens") or 0,
            )

    async def measure(self, prompt_ids: Sequence[int], spans: Sequence[tuple[int, int]], tenant: str) -> Measured:
        """Measure the attention of a prompt's last row to its documents, at the price of one token."""
        key = new_key()
        fields = {**documents_field(spans), "fovea_measure": key}
        completed = await self.complete(one_token(prompt_ids, tenant) | {"vllm_xargs": fields})
        return Measured(await self.take_attention(key), completed.cached_tokens)

    async def take_attention(self, key: str) -> Tensor:
        """Take what a request with `fovea_measure` measured, (L, H, K); it is returned once."""
        found = await self._json("POST", "fovea/attention", {"key": key, "encoding_format": "base64"})
        with _reading():
            numbers = np.frombuffer(base64.b64decode(found["attention"]), dtype="<f4")
            return torch.tensor(numbers.reshape(found["shape"]))

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[list[TokenChoice], None]:
        """Yield the tokens of a completion as they come. Raises Unavailable if the stream breaks off."""
        async with aclosing(self._chunks("v1/completions", {**body, "return_token_ids": True})) as chunks:
            async for chunk in chunks:
                with _reading():
                    tokens = [token for choice in chunk["choices"] for token in _choices(choice)]
                yield tokens

    async def converse(self, body: dict[str, Any]) -> AsyncGenerator[ChatPart, None]:
        """Yield vLLM's own answer to a conversation, as a whole or with `stream` in parts. Raises as `stream`."""
        if not body["stream"]:
            found = await self._json("POST", "v1/chat/completions", self._request(body))
            with _reading():
                [choice] = found["choices"]
                part = _chat_part(choice, choice["message"], found["usage"])
            yield part
            return
        body = {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        async with aclosing(self._chunks("v1/chat/completions", body)) as chunks:
            async for chunk in chunks:
                with _reading():
                    some = [_chat_part(choice, choice["delta"], chunk["usage"]) for choice in chunk["choices"]]
                for part in some:
                    yield part

    def _request(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, **body, "return_tokens_as_token_ids": True}

    async def _chunks(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with self._answer("POST", path, self._request({**body, "stream": True}), None) as response:
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                with _reading():
                    chunk = orjson.loads(data)
                    if "error" in chunk:
                        raise _refusal(int(chunk["error"].get("code") or 500), chunk)
                yield chunk
        raise Gone("vLLM's answer broke off.")

    async def _json(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        async with self._answer(method, path, body, timeout_s) as response:
            content = await response.read()
        with _reading():
            found: dict[str, Any] = orjson.loads(content)
            return found

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        data, has_begun = None if body is None else orjson.dumps(body), False
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(
                method, path, data=data, headers={"content-type": "application/json"}, timeout=timeout
            ) as response:
                if response.status == 404 and method == "GET":
                    what_to_do = "start vLLM with VLLM_PLUGINS=fovea, and give its address without /v1"
                    raise Unavailable(f"the server has no /{path}: {what_to_do}")
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                has_begun = True
                yield response
        except PassingError as error:
            if has_begun:
                raise Gone("vLLM's answer broke off.") from error
            raise Gone(f"vLLM does not answer ({type(error).__name__}).") from error


def new_key() -> str:
    """Make a name for `fovea_measure`."""
    return uuid.uuid4().hex


def documents_field(spans: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Name the documents of a request."""
    return {"fovea_documents": [place for span in spans for place in span]}


def one_token(prompt_ids: Sequence[int], tenant: str = "") -> dict[str, Any]:
    """Make the request that computes a prompt, and its most likely next token."""
    return {"prompt": list(prompt_ids), "max_tokens": 1, "temperature": 0, **of_tenant(tenant)}


def of_tenant(tenant: str) -> dict[str, Any]:
    """Keep a tenant's prompts apart from others in vLLM's prefix cache, as our own engine does."""
    return {"cache_salt": hashlib.sha256(tenant.encode()).hexdigest()} if tenant else {}


@contextmanager
def _reading() -> Iterator[None]:
    """Turn the errors of reading an unexpected answer into InternalError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InternalError("vLLM answered in another form.") from error


def _choices(choice: dict[str, Any]) -> list[TokenChoice]:
    """Read the tokens of a choice, or of a chunk of it."""
    token_ids = choice.get("token_ids") or []
    found = choice.get("logprobs")
    if not found:
        return [TokenChoice(token_id) for token_id in token_ids]
    return [
        TokenChoice(token_id, logprob, _descending((_token_id(name), value) for name, value in top.items()))
        for token_id, logprob, top in zip(token_ids, found["token_logprobs"], found["top_logprobs"], strict=True)
    ]


def _chat_part(choice: dict[str, Any], said: dict[str, Any], usage: dict[str, Any]) -> ChatPart:
    """Read a choice, or a chunk of it, with its message or delta. Raises Gone for an answer that vLLM gave up."""
    finish_reason = choice.get("finish_reason")
    if finish_reason not in (None, *get_args(FinishReason)):
        raise Gone("vLLM ended an answer before its end.")
    calls = [{"index": place, **call} for place, call in enumerate(said.get("tool_calls") or ())]
    found = (choice.get("logprobs") or {}).get("content") or ()
    return ChatPart(
        said.get("content") or "",
        tuple({name: value for name, value in call.items() if value is not None} for call in calls),
        tuple(
            TokenChoice(
                _token_id(one["token"]),
                one["logprob"],
                _descending((_token_id(top["token"]), top["logprob"]) for top in one.get("top_logprobs") or ()),
            )
            for one in found
        ),
        usage["completion_tokens"],
        finish_reason,
    )


def _scored(found: dict[str, Any], token_id: int, num_top: int) -> TokenChoice:
    """Read the log-probabilities in one place of a prompt."""
    top = _descending((int(name), one["logprob"]) for name, one in found.items())
    return TokenChoice(token_id, found[str(token_id)]["logprob"], top[:num_top])


def _descending(top: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(top, key=lambda one: -one[1]))


def _token_id(name: str) -> int:
    return int(name.removeprefix(TOKEN_PREFIX))


def _refusal(status: int, answer: bytes | dict[str, Any]) -> Exception:
    """Make the error for an answer of vLLM's other than 200."""
    reason = _reason(answer)
    if status in (400, 413, 422):
        return InvalidRequest(f"vLLM refused the request: {reason}")
    if status == 401:
        return Unavailable("vLLM refuses the key of this service: set FOVEA_GENERATE_VLLM_KEY to that of --api-key.")
    if status == 500:  # of this request: it may be the only one that fails
        return InternalError("vLLM failed to answer this request (status 500).")
    return Unavailable(f"vLLM cannot answer now (status {status}).")


def _reason(answer: bytes | dict[str, Any]) -> str:
    try:
        body = orjson.loads(answer) if isinstance(answer, bytes) else answer
        message = str(body["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = "it gives no reason"
    return message[:MAX_SHOWN_CHARACTERS]
