"""Chat, completions and responses by OpenAI's own client and LangChain's, through the gateway before a real process."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
import requests

from tests.contract.generate_processes import running_system
from tests.contract.served_system import System, wait_until
from tests.generate.served_tiny import CONTEXT, MODEL

QUESTION: Any = [{"role": "user", "content": "who kept the lighthouse?"}]
PROMPT = "The keeper of the lighthouse was called"
DOCUMENTS = [
    {"title": "The harbour", "text": "The harbour was built by the people of the island.", "id": "h"},
    {"title": "The lighthouse", "text": "The keeper of the lighthouse was called Ada.", "id": "l"},
    "The people fished and traded with the mainland.",
]
# random weights seldom say that an answer is over: these go on until they are cut off
LONG = CONTEXT - 100


@pytest.fixture(scope="module")
def generate_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("generate")) as system:
        yield system


@pytest.fixture(scope="module")
def client(generate_system: System) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{generate_system.gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


# --- chat ---


def test_chat_gives_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8, temperature=0)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert abs(answer.created - time.time()) < 3600
    assert answer.model.startswith(f"{MODEL}@")
    assert answer.system_fingerprint
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.logprobs) == (0, "assistant", None)
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    if choice.finish_reason == "length":
        assert answer.usage.completion_tokens == 8


def test_chat_streams_what_it_answers_whole(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert [chunk.choices[0].delta.role for chunk in chunks[1:]] == [None] * (len(chunks) - 1)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_ends_with_its_usage_where_it_was_asked_for(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 5, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    *before, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None and chunk.choices for chunk in before)


def test_several_answers_differ_by_chance_alone_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "n": 3, "seed": 7, "temperature": 1.5}
    answers = [client.chat.completions.create(**asked) for _ in range(2)]
    texts = [[choice.message.content for choice in answer.choices] for answer in answers]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    assert [choice.index for choice in answers[0].choices] == [0, 1, 2]
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts[0]


def test_chat_tells_the_probability_of_each_token(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    (choice,) = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert answer.usage is not None
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 3
        # without temperature the likeliest is taken
        assert token.top_logprobs[0].logprob == token.logprob <= 0
        assert token.top_logprobs[0].bytes == token.bytes
    streamed = [
        token
        for chunk in client.chat.completions.create(**asked, logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs is not None
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == choice.logprobs.content


def test_a_stop_string_ends_the_answer_before_itself(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 30, "temperature": 0}
    text = client.chat.completions.create(**asked).choices[0].message.content or ""
    stop = text[4:7]
    for given in (stop, ["never said \u2603", stop]):
        (choice,) = client.chat.completions.create(**asked, stop=given).choices
        assert choice.finish_reason == "stop"
        assert choice.message.content == text[: text.index(stop)]


def test_chat_reads_parts_of_text_and_refuses_what_it_cannot_see(client: openai.OpenAI) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    asked: Any = {"model": MODEL, "max_tokens": 5, "temperature": 0}
    from_parts = client.chat.completions.create(**asked, messages=parts)
    assert (
        from_parts.choices[0].message == client.chat.completions.create(**asked, messages=QUESTION).choices[0].message
    )
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked, messages=image)
    assert refused.value.param == "messages.0.content.0"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"audio": {"voice": "alloy", "format": "wav"}, "modalities": ["text", "audio"]},
    ],
)
def test_what_an_answer_could_not_honour_is_refused_by_name(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, **fields)
    assert refused.value.param in fields


def test_chat_over_documents_tells_where_the_answer_looked(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 5, "temperature": 0}
    plain = client.chat.completions.create(**asked)
    answer = client.chat.completions.create(**asked, extra_body={"documents": DOCUMENTS, "reorder": "attention"})
    documents: Any = (answer.model_extra or {})["documents"]
    assert [document["index"] for document in documents] == [0, 1, 2]
    assert [document["id"] for document in documents] == ["h", "l", None]
    assert sorted(document["position"] for document in documents) == [0, 1, 2]
    assert answer.usage is not None
    assert plain.usage is not None
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens


# --- completions ---


def test_a_completion_goes_on_where_the_prompt_ends(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = client.completions.create(**asked)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    chunks = list(client.completions.create(**asked, stream=True))
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason
    echoed = client.completions.create(**asked, echo=True)
    assert echoed.choices[0].text == PROMPT + answer.choices[0].text


def test_several_prompts_have_their_answers_in_order(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "It was built", "The people of the island"]
    asked: Any = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    together = client.completions.create(**asked, prompt=prompts)
    alone = [client.completions.create(**asked, prompt=prompt) for prompt in prompts]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.text for choice in together.choices] == [one.choices[0].text for one in alone]
    assert together.usage is not None
    assert together.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone if one.usage)
    twice = client.completions.create(**asked, prompt=prompts, n=2)
    assert [choice.text for choice in twice.choices] == [one.choices[0].text for one in alone for _ in range(2)]


def test_a_prompt_may_be_token_ids(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=4, temperature=0)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    two = client.completions.create(model=MODEL, prompt=[[5, 6, 7], [8]], max_tokens=4, temperature=0)
    assert two.choices[0].text == answer.choices[0].text
    with pytest.raises(openai.UnprocessableEntityError) as unknown:
        client.completions.create(model=MODEL, prompt=[5, 10**6], max_tokens=4)
    assert unknown.value.param == "prompt"


def test_completions_tell_where_each_token_stands(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2)
    (choice,) = answer.choices
    told: Any = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == len(told.top_logprobs)
    assert told.text_offset == sorted(told.text_offset)
    assert told.text_offset[0] == 0
    assert all(offset <= len(choice.text) for offset in told.text_offset)
    # of tokens that read alike (bytes that are no character) one is told
    assert all(1 <= len(top) <= 3 for top in told.top_logprobs)
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == max(top.values()) == logprob


# --- errors, deadlines, disconnects ---


def test_errors_are_of_openais_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.UnprocessableEntityError) as hot:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=3)
    assert hot.value.param == "temperature"
    long = client.completions.with_raw_response
    with pytest.raises(openai.APIStatusError) as too_long:
        long.create(model=MODEL, prompt="lighthouse " * 5000)
    assert too_long.value.status_code == 413
    assert "4096" in too_long.value.message
    # before a stream begins an error still has its status
    with pytest.raises(openai.APIStatusError) as in_stream:
        client.completions.create(model=MODEL, prompt="lighthouse " * 5000, stream=True)
    assert in_stream.value.status_code == 413


def test_work_past_the_clients_deadline_is_dropped(generate_system: System, client: openai.OpenAI) -> None:
    with pytest.raises((openai.APITimeoutError, openai.InternalServerError)):
        client.with_options(timeout=0.3).completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=LONG, extra_body={"ignore_eos": True}
        )
    wait_until(lambda: running(generate_system) == 0)


def test_a_deadline_in_mid_stream_is_told_in_the_stream(generate_system: System, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=LONG,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"X-Request-Timeout": "5"},
    )
    next(stream)
    with generate_system.standing_still(), pytest.raises(openai.APIError, match=" 5 s"):
        list(stream)


def test_a_client_that_leaves_in_mid_stream_frees_its_slot(generate_system: System, client: openai.OpenAI) -> None:
    wait_until(lambda: generate_system.metric("fovea_inflight_requests") == 0)  # another's end may still be counted
    made_before = generate_system.metric("fovea_generated_tokens_total")
    before = generate_system.metric('fovea_cancelled_total{reason="disconnect"}')
    stream = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=LONG, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: generate_system.metric('fovea_cancelled_total{reason="disconnect"}') == before + 1)
    wait_until(lambda: running(generate_system) == 0)
    made = generate_system.metric("fovea_generated_tokens_total")
    assert made - made_before < LONG  # it was not written to its end
    # and nothing goes on being written
    client.models.list()
    assert generate_system.metric("fovea_generated_tokens_total") == made


def test_two_hundred_streams_at_once_all_end_complete(generate_system: System) -> None:
    prompts = [f"{PROMPT} number {number % 25}" for number in range(200)]

    async def stream(client: openai.AsyncOpenAI, prompt: str) -> tuple[str, str | None]:
        text, reason = "", None
        chunks: Any = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=10, temperature=0, stream=True
        )
        async for chunk in chunks:
            assert reason is None
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason
        return text, reason

    async def all_at_once() -> list[tuple[str, str | None]]:
        async with openai.AsyncOpenAI(
            base_url=f"{generate_system.gateway.url}/v1", api_key="none", max_retries=0, timeout=100
        ) as client:
            return await asyncio.gather(*(stream(client, prompt) for prompt in prompts))

    answers = asyncio.run(all_at_once())
    assert {reason for _, reason in answers} <= {"stop", "length"}
    with openai.OpenAI(base_url=f"{generate_system.service.url}/v1", api_key="none") as service:
        for number in range(25):
            alone = service.completions.create(model=MODEL, prompt=prompts[number], max_tokens=10, temperature=0)
            expected = (alone.choices[0].text, alone.choices[0].finish_reason)
            assert [answers[index] for index in range(number, 200, 25)] == [expected] * 8


def test_the_gateway_passes_on_what_the_service_answers(generate_system: System) -> None:
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 10, "temperature": 0, "documents": DOCUMENTS}
    requests.post(f"{generate_system.service.url}/v1/chat/completions", json=asked, timeout=30)
    for stream in (False, True):
        bodies = []
        for process in (generate_system.service, generate_system.gateway):
            # what an earlier request left computed of the prompt rounds otherwise than the first pass over it
            answer = requests.post(f"{process.url}/v1/chat/completions", json={**asked, "stream": stream}, timeout=30)
            assert answer.status_code == 200
            bodies.append(without_identity(answer.text, answer.headers["content-type"]))
        assert bodies[0] == bodies[1]


# --- responses, and what breaks off in Anthropic's form ---


def test_a_response_is_the_chats_answer_in_another_form(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "max_output_tokens": 8, "temperature": 0}
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Answer briefly."}, *QUESTION],
        max_tokens=8,
        temperature=0,
    )
    forms: list[Any] = [
        QUESTION[0]["content"],
        QUESTION,
        [{"role": "user", "content": [{"type": "input_text", "text": QUESTION[0]["content"]}]}],
    ]
    for given in forms:
        response = client.responses.create(
            **asked, input=given, instructions="Answer briefly.", metadata={"who": "a"}, store=False
        )
        assert response.output_text == chat.choices[0].message.content
        assert (response.object, response.error, response.metadata) == ("response", None, {"who": "a"})
        assert response.id.startswith("resp_") and response.model == chat.model
        assert response.usage is not None and chat.usage is not None
        assert response.usage.total_tokens == chat.usage.total_tokens
        assert response.usage.input_tokens == chat.usage.prompt_tokens
        is_cut = chat.choices[0].finish_reason == "length"
        assert response.status == ("incomplete" if is_cut else "completed")
        if is_cut:
            assert response.incomplete_details is not None
            assert response.incomplete_details.reason == "max_output_tokens"


def test_a_responses_own_output_is_the_next_input(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "max_output_tokens": 4, "temperature": 0}
    first = client.responses.create(**asked, input=QUESTION)
    said: Any = [one.to_dict() for one in first.output]
    again = client.responses.create(**asked, input=[*QUESTION, *said, {"role": "user", "content": "and then?"}])
    assert first.usage is not None and again.usage is not None
    assert again.usage.input_tokens > first.usage.input_tokens


def test_a_stream_of_a_response_is_put_together_to_the_same_one(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": QUESTION, "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * len(deltas),
        *("output_text.done", "content_part.done", "output_item.done", whole.status),
    ]
    assert "".join(deltas) == whole.output_text
    last: Any = events[-1]
    assert last.response.output_text == whole.output_text
    assert last.response.usage.output_tokens == whole.usage.output_tokens if whole.usage else False
    with client.responses.stream(**asked) as stream:
        assert [event.type for event in stream if event.type == "response.output_text.delta"]


def test_the_asynchronous_client_has_responses_too(generate_system: System) -> None:
    asked: Any = {"model": MODEL, "input": QUESTION, "max_output_tokens": 6, "temperature": 0}

    async def both() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{generate_system.gateway.url}/v1", api_key="none") as client:
            whole = await client.responses.create(**asked)
            text = ""
            async for event in await client.responses.create(**asked, stream=True):
                text += event.delta if event.type == "response.output_text.delta" else ""
            return whole.output_text, text

    whole, streamed = asyncio.run(both())
    assert whole == streamed


@pytest.mark.parametrize(
    ("fields", "refusal", "param"),
    [
        ({"store": True}, openai.BadRequestError, "store"),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError, "previous_response_id"),
        ({"background": True}, openai.BadRequestError, "background"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools"),
        ({"reasoning": {"effort": "high"}}, openai.BadRequestError, "reasoning"),
        ({"truncation": "auto"}, openai.BadRequestError, "truncation"),
        ({"text": {"format": {"type": "json_object"}}}, openai.BadRequestError, "text.format"),
        ({"extra_body": {"documents": DOCUMENTS}}, openai.BadRequestError, "documents"),
        ({"extra_body": {"max_tokens": 3}}, openai.UnprocessableEntityError, "max_tokens"),
        ({"extra_body": {"instruction": None}}, openai.UnprocessableEntityError, "instruction"),
        ({"extra_body": {"unheard_of": 1}}, openai.UnprocessableEntityError, "unheard_of"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://a.b/c.png"}]}]},
            *(openai.UnprocessableEntityError, "input.0.content.0"),
        ),
        (
            {"input": [*QUESTION, {"type": "function_call_output", "call_id": "1", "output": "x"}]},
            *(openai.UnprocessableEntityError, "input.1"),
        ),
        ({"input": "word " * 5000}, openai.APIStatusError, "input"),
        ({"max_output_tokens": 10**6}, openai.APIStatusError, "max_output_tokens"),
        ({"model": "gpt-6"}, openai.NotFoundError, "model"),
    ],
)
def test_what_a_response_can_not_keep_to_is_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], refusal: type[openai.APIStatusError], param: str
) -> None:
    asked: Any = {"model": MODEL, "input": QUESTION, "max_output_tokens": 4, **fields}
    with pytest.raises(refusal) as refused:
        client.responses.create(**asked)
    assert refused.value.param == param


@pytest.mark.parametrize("form", ["openai", "anthropic"])
def test_a_deadline_in_mid_stream_is_the_clients_own_error_in_each_form(generate_system: System, form: str) -> None:
    url, asked = generate_system.gateway.url, {"model": MODEL, "extra_headers": {"X-Request-Timeout": "5"}}
    own: Any = {"api_key": "none", "max_retries": 0}
    client: Any
    if form == "openai":
        client = openai.OpenAI(base_url=f"{url}/v1", **own)
        stream = client.responses.create(**asked, input=QUESTION, max_output_tokens=LONG, stream=True)
    else:
        client = anthropic.Anthropic(base_url=url, **own)
        stream = client.messages.create(**asked, messages=QUESTION, max_tokens=LONG, stream=True)
    with client:
        next(stream)
        with generate_system.standing_still(), pytest.raises((openai.APIError, anthropic.APIStatusError)) as broken:
            list(stream)
        assert "timeout_error" in str(vars(broken.value)["body"])


# --- LangChain ---


@pytest.fixture
def langchain(generate_system: System) -> Any:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    return ChatOpenAI(
        model=MODEL,
        base_url=f"{generate_system.gateway.url}/v1",
        api_key=SecretStr("none"),
        temperature=0,
        max_completion_tokens=8,
        stream_usage=True,
    )


def test_langchain_chats_and_streams(langchain: Any, client: openai.OpenAI) -> None:
    from langchain_core.messages import HumanMessage

    direct = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=8, temperature=0)
    messages = [HumanMessage(QUESTION[0]["content"])]
    answer = langchain.invoke(messages)
    assert answer.content == direct.choices[0].message.content
    assert direct.usage is not None
    assert answer.usage_metadata["total_tokens"] == direct.usage.total_tokens
    chunks = list(langchain.stream(messages))
    assert "".join(chunk.content for chunk in chunks) == answer.content
    assert (
        sum(chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata)
        == direct.usage.total_tokens
    )


def test_langchain_speaks_responses(langchain: Any) -> None:
    by_responses = langchain.model_copy(update={"use_responses_api": True})
    answer = by_responses.invoke(QUESTION[0]["content"])
    assert answer.text == langchain.invoke(QUESTION[0]["content"]).content
    assert "".join(chunk.text for chunk in by_responses.stream(QUESTION[0]["content"])) == answer.text


def test_langchain_passes_documents_on(langchain: Any) -> None:
    with_documents = langchain.bind(extra_body={"documents": DOCUMENTS})
    plain, grounded = langchain.invoke("who kept the lighthouse?"), with_documents.invoke("who kept the lighthouse?")
    assert grounded.usage_metadata["input_tokens"] > plain.usage_metadata["input_tokens"]


def running(system: System) -> float:
    return system.metric("fovea_running_items")


def without_identity(body: str, content_type: str) -> Any:
    """The JSON objects of an answer without what names this one answer or its time."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line]
    objects = [json.loads(line) if line != "[DONE]" else line for line in lines]
    for one in objects:
        if isinstance(one, dict):
            one.pop("id")
            one.pop("created")
    return [content_type, *objects]
