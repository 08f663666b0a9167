"""Bodies of OpenAI's chat completions and completions, extended by documents and their calibration.

Unsupported fields, OpenAI's and those of vLLM and others, are rejected by name; fields that do not affect an answer
(`user`, `store`, …) are ignored like every unknown field.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from services.core.documents import MAX_LISTED, DocumentList
from services.core.errors import InvalidRequest, check_count
from services.core.http.bodies import OpenRequest
from services.core.strict_requests import JsonList
from services.generate.generation.generation import Reorder
from services.generate.http.citations import CITATIONS_DESCRIPTION, Citation
from services.generate.http.documents import (
    APPLIED_DESCRIPTION,
    REORDER_DESCRIPTION,
    SEED_DESCRIPTION,
    AppliedCalibration,
    CalibrationOptions,
    DocumentReport,
    FinishReason,
)

TEMPERATURE_DESCRIPTION = "1 by default, as with OpenAI; 0 if the checkpoint's `generation_config.json` says so."
MAX_PROMPTS = 128
MAX_STOPS = 4
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_TOOLS = 128
# A single spelling of each id, because biases of one token under several spellings would add up.
TOKEN_ID = r"^(0|[1-9][0-9]{0,8})$"

# Refused by the own engine.
OVER_VLLM = "Only with `FOVEA_GENERATE_ENGINE=vllm`"

Role = Literal["system", "developer", "user", "assistant", "tool"]
# strict: a list of booleans is not a prompt
TokenIds = JsonList[Annotated[int, Field(strict=True, ge=0)]]
Stop = Annotated[str, Field(min_length=1)]
PromptText = Annotated[str, Field(min_length=1)]
ChatFinishReason = Literal["stop", "length", "tool_calls"]
LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=TOKEN_ID)], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIASES, fail_fast=True),
]


class StreamOptions(BaseModel):
    include_usage: bool | None = Field(None, description="Send one more chunk, without choices, that holds the usage.")


def check_logit_bias(given: Any) -> Any:
    """Check the biases before their values are read, and return them unchanged.

    Raises InvalidRequest for more than MAX_LOGIT_BIASES, and for a key that is not a token id, written as in JSON.
    """
    if not isinstance(given, dict):
        return given
    if len(given) > MAX_LOGIT_BIASES:
        raise _bad_logit_bias(f"It has {len(given)} entries; the limit is {MAX_LOGIT_BIASES}.")
    for key in given:
        if not re.fullmatch(TOKEN_ID, key):
            raise _bad_logit_bias(f"{key[:40]!r} is not a token id: a decimal number without leading zeros.")
    return given


def _bad_logit_bias(reason: str) -> InvalidRequest:
    return InvalidRequest(f"logit_bias: {reason}", param="logit_bias")


class SamplingRequest(OpenRequest):
    """Fields of both routes: how the answer is drawn and how it is sent."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(None, description="Answers per prompt.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description=TEMPERATURE_DESCRIPTION)
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description=SEED_DESCRIPTION)
    stop: Stop | Annotated[JsonList[Stop], Field(max_length=MAX_STOPS)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[LogitBias | None, BeforeValidator(check_logit_bias)] = Field(
        None, description="Numbers to add to the logits, by token id."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = Field(False, description="Continue after the model's end-of-text token.")
    response_format: Any = Field(
        None, description=f"{OVER_VLLM}, if its type is not `text`: `json_object`, `json_schema` or `structural_tag`."
    )
    structured_outputs: dict[str, Any] | None = Field(
        None, description=f"{OVER_VLLM}: what it takes, such as `regex`, `choice`, `grammar` or `json`."
    )
    allowed_token_ids: TokenIds | None = Field(None, description=f"{OVER_VLLM}: the only tokens of the answer.")
    bad_words: JsonList[str] | None = Field(None, description=f"{OVER_VLLM}: words that the answer does not have.")
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description=f"{OVER_VLLM}, if it is above 0.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description=f"{OVER_VLLM}, if it is above 0.")
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = Field(
        None, description=f"{OVER_VLLM}, if it is not 1."
    )
    user: str | None = None


class ContentPart(BaseModel):
    """A part of a message; only `{"type": "text", "text": …}` is read."""

    type: str = "text"
    text: str | None = None


class FunctionCall(BaseModel):
    name: str
    arguments: str = Field("", description="JSON.")


class ToolCall(BaseModel):
    """A call of a tool by the model."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Function(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = None


class Tool(BaseModel):
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(BaseModel):
    """One turn; calls of tools only with `FOVEA_GENERATE_ENGINE=vllm`."""

    role: Role
    content: str | JsonList[ContentPart] | None = None
    tool_calls: JsonList[ToolCall] | None = None
    tool_call_id: str | None = Field(None, description="Of the call that a message of the role `tool` answers.")
    name: str | None = None
    function_call: Any = None


def check_messages(given: Any) -> Any:
    """Check the messages before they are read, and return them. Raises TooLarge for too many messages or parts."""
    if isinstance(given, list):
        contents = [message.get("content") for message in given if isinstance(message, dict)]
        number = len(given) + sum(len(content) for content in contents if isinstance(content, list))
        check_count("messages", number, MAX_LISTED, "messages and parts of them")
    return given


def check_prompts(given: Any) -> Any:
    """Check the prompt before it is read, and return it. Raises TooLarge for more than MAX_PROMPTS items."""
    if isinstance(given, list) and given and not isinstance(given[0], int):
        check_count("prompt", len(given), MAX_PROMPTS, "prompts")
    return given


Messages = Annotated[JsonList[ChatMessage], Field(min_length=1), BeforeValidator(check_messages)]


class ChatRequest(SamplingRequest):
    """A conversation, answered over documents where there are any."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description=f"{TEMPERATURE_DESCRIPTION} Also 0 with `documents`, as on `/generate`."
    )
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Takes precedence over `max_tokens`; without either, as many as there is room for."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(None, description="Needs `logprobs`.")
    documents: DocumentList | None = Field(None, description="Documents that the user's last message asks about.")
    calibration: CalibrationOptions | None = None
    reorder: Reorder = Field("none", description=REORDER_DESCRIPTION)
    citations: bool = Field(False, description=f"{CITATIONS_DESCRIPTION} Needs `documents`.")
    tools: Annotated[JsonList[Tool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description=f"{OVER_VLLM}: functions that the model may call."
    )
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = Field(
        None, description="Needs `tools`; `auto` by default. A named function is called in any case."
    )
    parallel_tool_calls: bool | None = None


class CompletionRequest(SamplingRequest):
    """Texts, or token ids of the served model's own tokenizer, to be continued."""

    prompt: Annotated[
        PromptText
        | Annotated[JsonList[PromptText], Field(min_length=1)]
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[JsonList[Annotated[TokenIds, Field(min_length=1)]], Field(min_length=1)],
        BeforeValidator(check_prompts),
    ]
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(None, description="16 by default; 0 only with `echo`.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        None, description="How many of the most likely tokens to report for each token."
    )
    echo: bool | None = Field(
        None, description="Repeat the prompt before its continuation; `logprobs` then cover its tokens too."
    )
    best_of: int | None = Field(None, description="Refused unless it equals `n`.")
    documents: list[Any] | None = Field(None, description="Refused: only chat and `/generate` take documents.")


class CompletionLogprobs(BaseModel):
    """One entry per token of the text; `text_offset` counts characters from the start of `text`.

    The first token of an echoed prompt has null in place of log-probabilities.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(BaseModel):
    """`content` is null if tools are called and nothing is said."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] = []
    citations: list[Citation] = Field([], description="Each sentence with its documents, with `citations`.")


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class FunctionCallDelta(BaseModel):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(BaseModel):
    """A part of a call: the first has its id and name, further ones continue its arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta | None = None


class AnswerDelta(BaseModel):
    """The first delta has the role and an empty text; the last is empty."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] = []
    citations: list[Citation] = Field([], description="In the last delta, with `citations`.")


class ChatChunkChoice(BaseModel):
    index: int
    delta: AnswerDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class CompletionChunkChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(description="Prompt tokens whose computation was reused from earlier requests.")


class CompletionUsage(BaseModel):
    """`calibration_passes` counts the forward passes that estimated positional bias, besides the prompt's own."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    calibration_passes: int


class OpenAiAnswer(BaseModel):
    """Fields of both formats, whole and in chunks."""

    id: str
    object: str
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="`name@version` of the checkpoint that answered.")
    system_fingerprint: str


class ChatCompletion(OpenAiAnswer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: CompletionUsage
    documents: list[DocumentReport] = Field([], description="Attention and relevance of the request's documents.")
    calibration: AppliedCalibration | None = Field(None, description=APPLIED_DESCRIPTION)


class Completion(OpenAiAnswer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: CompletionUsage


class ChatCompletionChunk(OpenAiAnswer):
    """One event of a streamed chat; only the one that carries the usage has no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    documents: list[DocumentReport] = Field(
        [], description="In the last chunk of a choice, if the request has documents."
    )
    calibration: AppliedCalibration | None = Field(None, description="Beside `documents`.")


class CompletionChunk(OpenAiAnswer):
    """One event of a streamed completion; only the one that carries the usage has no choices."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | None = None
