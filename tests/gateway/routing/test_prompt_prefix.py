"""Prompts that begin alike go to one process of generate, whose prefix cache has their beginning."""

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.access import digest
from gateway.routing.prompt_prefix import HEAD_BYTES, MAX_SEARCHED_BYTES
from tests.gateway.routing.pools import answered_by, named, pool, write_pools
from tests.gateway.servers import Service, gateway, respond, serving

DRAINING = respond(status=503, headers=((b"retry-after", b"1"),))
NUM_SETS = 16


@asynccontextmanager
async def three_processes(**settings: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, dict[str, Service]]]:
    services = {name: named(name) for name in ("first", "second", "third")}
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(service)) for service in services.values()]
        yield await stack.enter_async_context(gateway(generate_urls=",".join(urls), **settings)), services


async def answers(client: aiohttp.ClientSession, path: str, bodies: Sequence[Any], **request: Any) -> list[str]:
    """The names of the processes that answer these bodies, one after the other."""
    return [await answered_by(client, path, json=body, **request) for body in bodies]


def documents(number: int) -> list[Any]:
    return [{"title": f"Set {number}", "text": 'Of "brackets" ] and }.'}, f"Page {number}"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/generate", "documents"),
        ("/v1/generate", "documents"),
        ("/v1/chat/completions", "documents"),
        ("/v1/rerank", "documents"),
        ("/v2/chat", "documents"),
        ("/v2/rerank", "documents"),
        ("/rerank", "texts"),
    ],
)
async def test_the_same_documents_go_to_one_process_whatever_is_asked_about_them(path: str, name: str) -> None:
    async with three_processes() as (client, _):
        homes: list[str] = []
        for number in range(NUM_SETS):
            bodies = [
                {"query": "who?", "messages": [{"role": "user", "content": "who?"}], name: documents(number)},
                {name: documents(number), "query": "where?", "messages": []},
                {"nested": {name: documents(number + 1)}, "top_n": 1, name: documents(number), "query": "why?"},
            ]
            found = set(await answers(client, path, bodies))
            assert len(found) == 1
            homes += found
        assert set(homes) == {"first", "second", "third"}


async def test_documents_in_another_order_begin_another_prompt() -> None:
    async with three_processes() as (client, _):
        of_order = {
            order: await answers(client, "/generate", [{"documents": order}] * 5)
            for order in itertools.permutations(("one", "two", "three", "four"))
        }
        assert all(len(set(found)) == 1 for found in of_order.values())
        assert {found[0] for found in of_order.values()} == {"first", "second", "third"}


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/chat/completions", "messages"), ("/v1/messages", "messages"), ("/v1/responses", "input")],
)
async def test_all_turns_of_a_conversation_go_to_one_process_and_other_conversations_to_others(
    path: str, name: str
) -> None:
    async with three_processes() as (client, _):
        homes = set()
        for number in range(NUM_SETS):
            messages: list[Any] = [
                {"role": "system", "content": 'Say "role": "user" or [. ' * 50},
                {"content": [{"type": "text", "text": f"Chat {number}"}], "role": "user"},
            ]
            bodies = []
            for turn in range(4):
                bodies.append({"model": "any", name: list(messages), "seed": turn})
                messages += [{"role": "assistant", "content": f"{turn}"}, {"role": "user", "content": f"More {turn}"}]
            found = set(await answers(client, path, bodies))
            assert len(found) == 1
            homes |= found
        assert homes == {"first", "second", "third"}


@pytest.mark.parametrize("length", [HEAD_BYTES, MAX_SEARCHED_BYTES])
async def test_texts_that_differ_only_far_behind_their_beginning_go_to_one_process(length: int) -> None:
    text = ("Once upon a time. " * length)[:length]
    async with three_processes() as (client, _):
        texts = [f"{text} {number}" for number in range(10)]
        assert len(set(await answers(client, "/v1/completions", [{"prompt": one} for one in texts]))) == 1
        chats = [{"messages": [{"role": "user", "content": one}]} for one in texts]
        assert len(set(await answers(client, "/v1/chat/completions", chats))) == 1


async def test_short_prompts_are_told_apart_by_all_of_their_text_and_by_nothing_else() -> None:
    async with three_processes() as (client, _):
        homes = set()
        for prompt in (*(f"Prompt {number}" for number in range(NUM_SETS)), [1, 2, 3], ["a", "b"]):
            found = set(await answers(client, "/v1/completions", [{"prompt": prompt, "n": n} for n in range(1, 6)]))
            assert len(found) == 1
            homes |= found
        assert homes == {"first", "second", "third"}


async def test_tenants_share_no_prefixes_and_keys_of_one_tenant_do(tmp_path: Path) -> None:
    keys = {"a": "red", "b": "red", "c": "blue"}
    records = [
        {"name": name, "sha256": digest(name), "scopes": ["generate"], "tenant": tenant}
        for name, tenant in keys.items()
    ]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": records}))
    bodies = [{"documents": documents(number)} for number in range(NUM_SETS)]
    async with three_processes(keys_file=tmp_path / "keys.json") as (client, _):
        red, also_red, blue = [
            await answers(client, "/generate", bodies, headers={"Authorization": f"Bearer {key}"}) for key in keys
        ]
        assert red == also_red
        assert red != blue


@pytest.mark.parametrize(
    "request_",
    [
        {"json": {"query": "who?"}},
        {"json": {"documents": []}},
        {"json": {"documents": None}},
        {"json": {"documents": 5, "nested": {"documents": ["a"]}}},
        {"data": b'{"documents": ['},
        {"data": b"documents"},
        {"data": b""},
    ],
)
async def test_what_names_no_documents_goes_to_any_process(request_: dict[str, Any]) -> None:
    async with three_processes() as (client, _):
        found = {await answered_by(client, "/generate", **request_) for _ in range(60)}
        assert found == {"first", "second", "third"}


async def test_documents_in_a_compressed_body_go_where_they_go_uncompressed() -> None:
    body = b'{"documents": ["a"]}'
    async with three_processes() as (client, _):
        plain = {await answered_by(client, "/generate", data=body) for _ in range(5)}
        packed = {"data": gzip.compress(body), "headers": {"Content-Encoding": "gzip"}}
        assert {await answered_by(client, "/generate", **packed) for _ in range(5)} == plain


async def test_a_route_without_a_prompt_goes_to_any_process() -> None:
    async with three_processes() as (client, _):
        found = {await answered_by(client, "/tokenize", json={"prompt": "a", "documents": ["a"]}) for _ in range(60)}
        assert found == {"first", "second", "third"}


async def test_documents_whose_process_refuses_go_to_the_same_other_one_until_it_takes_them_again() -> None:
    async with three_processes() as (client, services):
        body = {"documents": documents(0)}
        (home,) = set(await answers(client, "/generate", [body] * 5))
        answer, services[home].answer = services[home].answer, DRAINING
        assert len({*await answers(client, "/generate", [body] * 5)} - {home}) == 1
        services[home].answer = answer
        assert set(await answers(client, "/generate", [body] * 5)) == {home}


async def test_very_popular_documents_are_answered_by_more_than_one_process_at_a_time() -> None:
    has_come, leave = asyncio.Semaphore(0), asyncio.Event()
    async with three_processes() as (client, services):
        for service in services.values():
            answer = service.answer

            async def slow(scope: Any, receive: Any, send: Any, answer: Any = answer) -> None:
                has_come.release()
                await leave.wait()
                await answer(scope, receive, send)

            service.answer = slow
        asked = [
            asyncio.create_task(answered_by(client, "/generate", json={"documents": documents(0)})) for _ in range(12)
        ]
        for _ in asked:
            await has_come.acquire()
        assert sorted(len(service.requests) for service in services.values()) == [0, 6, 6]
        # Others are not kept waiting for them.
        others = [
            asyncio.create_task(answered_by(client, "/generate", json={"documents": documents(k)})) for k in range(1, 7)
        ]
        for _ in others:
            await has_come.acquire()
        leave.set()
        await asyncio.gather(*asked, *others)
        assert max(len(service.requests) for service in services.values()) <= 9


async def test_the_processes_of_a_pool_get_documents_in_the_same_way(tmp_path: Path) -> None:
    async with serving(named("one")) as one, serving(named("two")) as two:
        pools = write_pools(tmp_path / "pools", pool("vicuna", "generate", one) | {"urls": [one, two]})
        async with gateway(pools=pools, generate_urls=None) as client:
            homes: list[str] = []
            for number in range(NUM_SETS):
                body = {"model": "vicuna", "documents": documents(number)}
                homes += set(await answers(client, "/generate", [body] * 4))
            assert len(homes) == NUM_SETS
            assert set(homes) == {"one", "two"}
