"""An endpoint is asked again when it fails, and not when asking again is no use."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from services.core.openai_client import MAX_MALFORMED, Answer, Api, Endpoint, EndpointClient, EndpointError, Patience
from tests.kept_port import kept_port
from tests.predict.teacher_server import (
    COMPLETION_TOKENS,
    OUTPUT,
    PROMPT_TOKENS,
    Dropped,
    Halved,
    TeacherServer,
    error,
    until,
)

PATIENCE = Patience(attempts=4, timeout_s=60, first_wait_s=0.001, longest_wait_s=0.01)
BODY = {"model": "big", "messages": [{"role": "user", "content": "Is it?"}]}
COMPLETION = {"model": "big", "prompt": "Is it?"}


@pytest.fixture
async def server() -> AsyncIterator[TeacherServer]:
    async with TeacherServer().served() as server:
        yield server


async def ask(
    server: TeacherServer, api: Api = "chat", key: str | None = None, patience: Patience = PATIENCE
) -> Answer:
    async with EndpointClient(Endpoint(server.url, api, key), patience) as teacher:
        return await teacher.ask(BODY if api == "chat" else COMPLETION)


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_an_answer_comes_with_what_the_endpoint_tells_of_it(server: TeacherServer, api: Api) -> None:
    answer = await ask(server, api)
    assert (answer.text.strip(), answer.finish_reason, answer.model) == (OUTPUT, "stop", "big@1")
    assert (answer.prompt_tokens, answer.completion_tokens) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    assert server.bodies == [BODY if api == "chat" else COMPLETION]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>Perhaps a cat.</think>\n\nA dog.", "A dog."),
        ("\n<thinking>Perhaps.</thinking>A dog.", "A dog."),
        ("Perhaps a cat.\n</think>\nA dog.", "A dog."),  # where the template has opened the thoughts
        ("<think>Perhaps a cat, or", ""),
        ("A dog thinks: <think>", "A dog thinks: <think>"),
    ],
)
async def test_an_answer_is_what_follows_the_thoughts(server: TeacherServer, content: str, text: str) -> None:
    server.outputs = {"": content}
    assert (await ask(server)).text == text


async def test_an_answer_that_a_filter_withholds_is_refused(server: TeacherServer) -> None:
    choice = {"message": {"role": "assistant", "content": None}, "finish_reason": "content_filter"}
    server.faults.append(web.json_response({"choices": [choice]}))
    with pytest.raises(EndpointError, match="filter has withheld") as refused:
        await ask(server)
    assert refused.value.is_refusal
    assert server.asked.total() == 1


async def test_a_web_page_in_place_of_an_answer_is_called_one(server: TeacherServer) -> None:
    server.faults += [web.Response(text="\n<!doctype html><html>") for _ in range(MAX_MALFORMED)]
    with pytest.raises(EndpointError, match="it is a web page, so the address may lack its end, such as /v1"):
        await ask(server)


async def test_tokens_that_nobody_counts_are_unknown(server: TeacherServer) -> None:
    server.counts_tokens = False
    answer = await ask(server)
    assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


@pytest.mark.parametrize(
    "fault",
    [error(429, "Slow down."), error(500, "Oh."), error(503, "Starting."), error(529, "Full."), Dropped, Halved],
    ids=["429", "500", "503", "529", "dropped", "halved"],
)
async def test_what_may_pass_is_asked_again(server: TeacherServer, fault: type[Dropped]) -> None:
    server.faults += [fault]
    async with EndpointClient(Endpoint(server.url), PATIENCE) as teacher:
        assert (await teacher.ask(BODY)).text == OUTPUT
        assert teacher.num_retries == 1
    assert server.asked.total() == 2


async def test_an_answer_that_takes_too_long_is_asked_for_again(server: TeacherServer) -> None:
    server.delay_s = 30
    asking = asyncio.create_task(ask(server, patience=Patience(attempts=50, timeout_s=0.3, first_wait_s=0.001)))
    await until(lambda: server.asked)
    server.delay_s = 0
    assert (await asking).text == OUTPUT
    assert server.asked.total() >= 2


async def test_the_last_failure_is_told_when_the_attempts_are_used_up(server: TeacherServer) -> None:
    server.faults += [error(500, "Oh."), error(503, "No room."), error(500, "Oh."), error(503, "Gone fishing.")]
    with pytest.raises(EndpointError, match=r"4 attempts have failed; last error: 503: Gone fishing\.") as failed:
        await ask(server)
    assert not failed.value.is_about_all
    assert server.asked.total() == 4


async def test_a_wait_that_is_asked_for_is_kept_by_all_requests(server: TeacherServer) -> None:
    server.faults += [error(429, "Slow down.", Retry_After="100")]
    async with EndpointClient(Endpoint(server.url), PATIENCE) as teacher:
        first = asyncio.create_task(teacher.ask(BODY))
        await until(lambda: teacher.num_retries)
        second = asyncio.create_task(teacher.ask(BODY))
        # somebody else, who begins later, is there and back
        await ask(server)
        assert server.asked.total() == 2
        teacher.stop()
        for waiting in (first, second):
            with pytest.raises(EndpointError, match="stopped"):
                await waiting


async def test_waits_are_read_in_seconds_and_milliseconds_and_end(server: TeacherServer) -> None:
    server.faults += [error(429, "Slow.", Retry_After="0.01"), error(429, "Slow.", retry_after_ms="10"),
                      error(503, "Slow.", Retry_After="Wed, 21 Oct 2099 07:28:00 GMT")]  # fmt: skip
    assert (await ask(server)).text == OUTPUT
    assert server.asked.total() == 4


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_request_that_is_refused_is_not_repeated(server: TeacherServer, status: int) -> None:
    server.faults += [error(status, "It is too long.")]
    with pytest.raises(EndpointError, match=f"^{status}: It is too long") as refused:
        await ask(server)
    assert (refused.value.status, refused.value.is_about_all) == (status, False)
    assert server.asked.total() == 1


@pytest.mark.parametrize(
    "fault",
    [
        error(401, "Who?"),
        error(403, "Not you."),
        error(404, "No such model."),
        error(429, "Pay.", "insufficient_quota"),
    ],
    ids=["401", "403", "404", "quota"],
)
async def test_what_would_be_refused_to_every_request_says_so(server: TeacherServer, fault: type[Dropped]) -> None:
    server.faults += [fault]
    with pytest.raises(EndpointError) as refused:
        await ask(server)
    assert refused.value.is_about_all
    assert server.asked.total() == 1


async def test_the_key_opens_and_is_in_no_message(server: TeacherServer) -> None:
    server.key = "right"
    assert (await ask(server, key="right")).text == OUTPUT
    with pytest.raises(EndpointError, match="401") as refused:
        await ask(server, key="sk-secret")
    assert "sk-secret" not in str(refused.value)


async def test_a_key_is_not_carried_to_where_the_endpoint_points(server: TeacherServer) -> None:
    server.faults += [error(307, "Elsewhere.", Location=f"{server.url}/chat/completions")]
    with pytest.raises(EndpointError, match="307") as refused:
        await ask(server, key="sk-secret")
    assert refused.value.is_about_all
    assert server.asked.total() == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"text": "no chat"}]}'])
async def test_something_that_is_no_such_endpoint_is_told_so_after_few_attempts(
    server: TeacherServer, body: bytes
) -> None:
    server.faults += [web.Response(body=body) for _ in range(MAX_MALFORMED)]
    with pytest.raises(EndpointError, match="does not have OpenAI's format"):
        await ask(server)
    assert server.asked.total() == MAX_MALFORMED
    # one such answer is no reason to give up
    server.faults += [web.Response(body=body) for _ in range(MAX_MALFORMED - 1)]
    assert (await ask(server)).text == OUTPUT


async def test_whoever_watches_is_told_that_no_answer_comes(server: TeacherServer) -> None:
    told: list[str] = []
    server.delay_s = 30
    patience = Patience(attempts=500, timeout_s=0.3, first_wait_s=0.001, longest_wait_s=0.01, silence_s=0.01)
    async with EndpointClient(Endpoint(server.url), patience) as teacher:
        watching = asyncio.create_task(teacher.watch(told.append))
        asking = asyncio.create_task(teacher.ask(BODY))
        await until(lambda: told and "last failure" in told[-1])
        server.delay_s = 0
        await asking
        watching.cancel()
    begins = rf"no answer from {server.url}/chat/completions for \d+ s; requests waiting: 1"
    assert re.fullmatch(begins, told[0]) and re.match(f"{begins}; last failure: ", told[-1])


async def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with kept_port() as port:
        async with EndpointClient(Endpoint(f"http://127.0.0.1:{port}/v1"), Patience()) as teacher:
            with pytest.raises(EndpointError, match="no response from") as failed:
                await teacher.ask(BODY)
        assert failed.value.is_about_all and teacher.num_retries == 0


@pytest.mark.parametrize("address", ["localhost:8080/v1", "here", "ftp://host/v1", "http://"])
async def test_what_is_no_address_is_told_at_once(address: str) -> None:
    async with EndpointClient(Endpoint(address), Patience()) as teacher:
        with pytest.raises(EndpointError, match=re.escape(f"{address.rstrip('/')}/chat/completions is not an HTTP")):
            await teacher.ask(BODY)


async def test_a_teacher_that_is_stopped_waits_no_more_and_lets_an_answer_come(server: TeacherServer) -> None:
    server.faults += [error(503, "Later.", Retry_After="100")]
    server.delay_s = 0.05
    async with EndpointClient(Endpoint(server.url), PATIENCE) as teacher:
        waiting = asyncio.create_task(teacher.ask(BODY))
        await until(lambda: teacher.num_retries)
        teacher.stop()
        with pytest.raises(EndpointError, match="stopped"):
            await waiting
    async with EndpointClient(Endpoint(server.url), PATIENCE) as teacher:
        asked = asyncio.create_task(teacher.ask(BODY))
        await until(lambda: server.asked.total() == 2)
        teacher.stop()
        assert (await asked).text == OUTPUT


async def test_a_teacher_may_be_stopped_again_while_a_wait_ends(server: TeacherServer) -> None:
    server.faults += [error(503, "Later.", Retry_After="100")]
    async with EndpointClient(Endpoint(server.url), PATIENCE) as teacher:
        waiting = asyncio.create_task(teacher.ask(BODY))
        await until(lambda: teacher.num_retries)
        for _ in range(5):
            teacher.stop()
            await asyncio.sleep(0)
        with pytest.raises(EndpointError, match="stopped"):
            await waiting
