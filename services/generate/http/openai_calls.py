"""Conversion of OpenAI's requests into calls of the model; unsupported fields are rejected by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.core.errors import InvalidField, InvalidRequest, TooLarge
from services.core.http.bodies import refuse_misspelt, refuse_unsupported
from services.generate.generation.sampling import Sampling
from services.generate.http.openai_schemas import ChatMessage, ChatRequest, CompletionRequest, SamplingRequest, Tool

# Chat templates only know OpenAI's original role.
TEMPLATE_ROLES = {"developer": "system"}

# Fields that only vLLM can keep to, with the values that change nothing.
OF_VLLM: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
}
# Fields that vLLM, SGLang, llama.cpp and TGI add to OpenAI's, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("structural_tag", "json_schema", "regex", "ebnf", "grammar"), ()),
    **dict.fromkeys(("prompt_embeds", "prompt_logprobs", "truncate_prompt_tokens"), ()),
    **dict.fromkeys(("logits_processors", "stop_token_ids"), ([],)),
    # the plug-in's fields among them, which a client of vLLM may still send
    "vllm_xargs": ({},),
    **dict.fromkeys(("include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("length_penalty", "typical_p"), (1,)),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
}
UNSUPPORTED_IN_CHAT = {
    **UNSUPPORTED,
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
}
# Types of `response_format` that vLLM has.
FORMATS = ("json_object", "json_schema", "structural_tag")
ONLY_VLLM = "Only a server of vLLM can do this (FOVEA_GENERATE_ENGINE=vllm)"
# Our own additions to chat.
OF_DOCUMENTS = ("documents", "calibration", "reorder")
UNSUPPORTED_IN_COMPLETIONS = {**UNSUPPORTED, "add_special_tokens": (True,)}


def check_chat(body: ChatRequest, *, is_over_vllm: bool = False) -> None:
    """Raises InvalidRequest for a field whose omission would make a wrong answer of it."""
    refuse_unsupported(body.model_extra, UNSUPPORTED_IN_CHAT)
    refuse_misspelt(body.model_extra, OF_DOCUMENTS)
    _check_for_vllm({**for_vllm(body), **tools_of(body)}, is_over_vllm=is_over_vllm)
    for index, message in enumerate(body.messages):
        if message.tool_calls and not is_over_vllm:
            raise _refusal(f"messages.{index}", f"It calls tools. {ONLY_VLLM}.")
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise _refusal("tool_choice", "Needs tools.")
    asked = {
        "functions": bool(body.functions),
        "function_call": body.function_call not in (None, "none", "auto"),
        "modalities": body.modalities not in (None, ["text"]),
        "audio": body.audio is not None,
        "web_search_options": body.web_search_options is not None,
        "moderation": body.moderation is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise _refusal(name, "Functions (but for tools), audio, web search and moderation are not supported.")
    if body.top_logprobs is not None and not body.logprobs:
        raise _refusal("top_logprobs", "Requires logprobs to be true.")
    if body.documents is None:
        if body.calibration is not None and body.calibration.enabled is not False:
            raise _refusal("calibration", "Only answers over documents are calibrated; give documents.")
        if body.reorder != "none":
            raise _refusal("reorder", "There is nothing to reorder; give documents.")


def for_vllm(body: SamplingRequest) -> dict[str, Any]:
    """The fields that only vLLM can keep to, as a request to it has them."""
    given = {name: getattr(body, name) for name in OF_VLLM}
    return {name: value for name, value in given.items() if value is not None and value not in OF_VLLM[name]}


def tools_of(body: ChatRequest) -> dict[str, Any]:
    """The tools and the rest that makes vLLM call them; empty without tools."""
    if not body.tools:
        return {}
    tools = [tool.model_dump(exclude=_unset(tool)) for tool in body.tools]
    asked = {"tools": tools, "tool_choice": body.tool_choice, "parallel_tool_calls": body.parallel_tool_calls}
    return {name: value for name, value in asked.items() if value is not None}


def is_with_tools(body: ChatRequest) -> bool:
    """Whether the conversation has tools, or calls of them."""
    return bool(body.tools) or any(message.tool_calls for message in body.messages)


def _unset(tool: Tool) -> dict[str, set[str]]:
    """Leave out what vLLM's templates do not see: a `strict` that was not given, though they see other nulls."""
    return {"function": {"strict"}} if tool.function.strict is None else {}


def _check_for_vllm(given: Mapping[str, Any], *, is_over_vllm: bool) -> None:
    if not is_over_vllm:
        for name in given:
            raise _refusal(name, f"{ONLY_VLLM}; leave the field out.")
    form = given.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") in FORMATS):
        raise _refusal("response_format", f"Its type must be text, {' or '.join(FORMATS)}.")


def check_completion(body: CompletionRequest, *, is_over_vllm: bool = False) -> None:
    """Raises InvalidRequest for a field whose omission would make a wrong answer of it."""
    refuse_unsupported(body.model_extra, UNSUPPORTED_IN_COMPLETIONS)
    refuse_misspelt(body.model_extra, OF_DOCUMENTS)
    _check_for_vllm(for_vllm(body), is_over_vllm=is_over_vllm)
    if body.suffix:
        raise _refusal("suffix", "Texts can only be continued at their end.")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise _refusal("best_of", "Choosing the best of more than n answers is not supported.")
    if body.documents:
        raise _refusal("documents", "Completions take no documents: use /v1/chat/completions or /generate.")
    if body.max_tokens == 0 and not body.echo:
        raise _refusal("max_tokens", "Must be at least 1 unless echo is true.")


def charges(costs: Sequence[int], num_choices: int, *, max_waiting: int, max_queue_cost: int) -> list[int]:
    """Compute each choice's charge for its place in the queue, if answering prompt p costs `costs[p]` tokens.

    The choices of a prompt share its computation, which is charged to the first; the others are charged 1 each. A
    single prompt is charged at most the queue's capacity, so that an idle service accepts it with all its choices.
    Raises TooLarge for requests that even an empty queue could not accept, so that retrying is useless.
    """
    num_answers = num_choices * len(costs)
    param = "n" if num_choices > 1 else "prompt"
    if num_answers > max_waiting:
        raise TooLarge(f"{param}: The request asks for {num_answers} answers; the limit is {max_waiting}.", param=param)
    if len(costs) == 1:
        costs = [max(1, min(costs[0], max_queue_cost - num_choices + 1))]
    total = sum(costs) + num_answers - len(costs)
    if total > max_queue_cost and num_answers > 1:
        raise TooLarge(
            f"prompt: The request's prompts have {total} tokens together; the limit is {max_queue_cost}.",
            param="prompt",
        )
    return [charged for cost in costs for charged in (cost, *[1] * (num_choices - 1))]


def stops_of(body: SamplingRequest) -> tuple[str, ...]:
    """The strings before which an answer ends."""
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def sampling_of(
    body: SamplingRequest, num_logprobs: int | None, vocab_size: int, *, is_greedy: bool = False
) -> Sampling:
    """Read the sampling options, with the route's defaults; `is_greedy` makes greedy decoding the default.

    Raises InvalidField for an unknown token id.
    """
    logit_bias = tuple((int(token_id), bias) for token_id, bias in (body.logit_bias or {}).items())
    for token_id, _ in logit_bias:
        if token_id >= vocab_size:
            raise _unknown_token("logit_bias", token_id, vocab_size)
    return Sampling(
        temperature=_default_temperature(body, is_greedy=is_greedy) if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        num_logprobs=num_logprobs,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=logit_bias,
    )


def _default_temperature(body: SamplingRequest, *, is_greedy: bool) -> float:
    """Return OpenAI's default; over documents, which are our extension, decode greedily like `/generate`."""
    return 0.0 if is_greedy or (isinstance(body, ChatRequest) and body.documents) else 1.0


def messages_of(messages: Sequence[ChatMessage], *, has_tools: bool = False) -> list[dict[str, Any]]:
    """Roles and texts for a chat template, with `has_tools` also what belongs to calls of tools.

    Raises InvalidRequest for content other than text, InvalidField for none.
    """
    more = {"tool_calls", "tool_call_id", "name"} if has_tools else set()
    for index, message in enumerate(messages):
        if message.tool_calls and not has_tools:
            raise _refusal(f"messages.{index}", "Calls of tools are not supported here.")
    return [
        {
            "role": TEMPLATE_ROLES.get(message.role, message.role),
            "content": _text_of(message, f"messages.{index}"),
            **message.model_dump(include=more, exclude_none=True),
        }
        for index, message in enumerate(messages)
    ]


def prompts_of(body: CompletionRequest, vocab_size: int) -> list[str | tuple[int, ...]]:
    """The prompts: texts and token ids. Raises InvalidField for a token id that the model does not have."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    several = [one for one in given if not isinstance(one, int)]
    prompts = [one if isinstance(one, str) else tuple(one) for one in several] or [
        tuple(one for one in given if isinstance(one, int))
    ]
    for prompt in prompts:
        if not isinstance(prompt, str) and max(prompt) >= vocab_size:
            raise _unknown_token("prompt", max(prompt), vocab_size)
    return prompts


def _text_of(message: ChatMessage, param: str) -> str:
    if message.function_call is not None:
        raise _refusal(param, "Functions are not supported; use tools.")
    if message.content is None:
        if message.tool_calls:
            return ""
        raise InvalidField(f"{param}.content: The message has no content.", param=f"{param}.content")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for index, part in enumerate(message.content):
        where = f"{param}.content.{index}"
        if part.type != "text":
            raise InvalidRequest(f"{where}: Only text parts are supported, not {part.type[:40]!r}.", param=where)
        if part.text is None:
            raise InvalidField(f"{where}.text: The part has no text.", param=f"{where}.text")
        texts.append(part.text)
    return "".join(texts)


def _refusal(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {reason}", param=param)


def _unknown_token(param: str, token_id: int, vocab_size: int) -> InvalidField:
    return InvalidField(
        f"{param}: Token {token_id} is not in the model's vocabulary of {vocab_size} tokens.", param=param
    )
