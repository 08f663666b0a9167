"""`/v1/decisions`, which several services answer: the model decides which, and a key needs that service's scope."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway import directory
from gateway.access import digest
from gateway.settings import KeyRecord
from tests.gateway.routing.pools import answered_by, named, pool, write_pools
from tests.gateway.servers import Service, gateway, metric, read_body, respond, serving, until


def listing(*ids: str, **fields: Any) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": one, **fields} for one in ids]}}


async def decided_by(client: aiohttp.ClientSession, model: Any, **request: Any) -> str:
    body = {"model": model, "input": "x", "questions": []}
    return await answered_by(client, "/v1/decisions", json=body, **request)


async def refusal(client: aiohttp.ClientSession, body: Any, **request: Any) -> tuple[int, Any]:
    async with client.post("/v1/decisions", json=body, **request) as response:
        return response.status, (await response.json())["error"]


async def test_the_service_that_lists_the_model_decides() -> None:
    predict, generate = named("predict", listing("tickets")), named("generate", listing("vicuna"))
    async with (
        serving(predict) as first,
        serving(generate) as second,
        serving(named("score", listing("clip"))) as third,
        gateway(predict_urls=first, generate_urls=second, score_urls=third) as client,
    ):
        models = ["tickets", "vicuna", "clip", "clip@stable", "vicuna@0123456789ab"]
        found = [await decided_by(client, model) for model in models]
        assert found == ["predict", "generate", "score", "score", "generate"]
        assert await answered_by(client, "/decisions", json={"questions": [], "model": "clip"}) == "score"
        assert await metric(client, "fovea_upstream_requests_total", service="score", code="200") == 3
        status, error = await refusal(client, {"model": "clop"})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        told = "model: No service lists the model 'clop'. Models that can decide: 'clip', "
        assert error["message"].startswith(told)
        assert all(name in error["message"] for name in ("'tickets'", "'vicuna'"))


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}, {"questions": [{"model": "tickets"}]}])
async def test_a_request_that_names_no_model_is_refused(body: Any) -> None:
    async with serving(named("predict", listing("tickets"))) as url, gateway(predict_urls=url) as client:
        status, error = await refusal(client, body)
        assert (status, error["param"]) == (422, "model")


async def test_a_model_that_a_service_may_have_that_is_down_is_worth_another_try() -> None:
    async with serving(named("predict", listing("tickets"))) as url, gateway(predict_urls=url) as client:
        status, error = await refusal(client, {"model": "vicuna"})
        assert (status, error["code"]) == (503, "service_unavailable")
        assert "list none now: generate, score" in error["message"]
        # An autoscaler that has scaled them to zero sees that they are wanted.
        assert await metric(client, "fovea_gateway_recent_requests", service="generate") == 1


async def test_a_request_waits_for_a_service_that_is_coming_up_and_may_have_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "MODELS_AGE_S", 0.0)
    predict, lists = named("predict", listing("tickets")), dict[str, Any]()
    async with (
        serving(predict) as first,
        serving(named("generate", lists)) as second,
        gateway(predict_urls=first, generate_urls=second, score_urls="", wait_for_service_s=3600) as client,
    ):
        asking = asyncio.create_task(decided_by(client, "vicuna"))
        mistaken = asyncio.create_task(refusal(client, {"model": "missing"}))

        async def is_seen() -> bool:
            return await metric(client, "fovea_gateway_recent_requests", service="generate") == 2

        await until(is_seen)
        assert not asking.done()
        assert await decided_by(client, "tickets") == "predict"
        lists.update(listing("vicuna"))
        assert await asking == "generate"
        assert (await mistaken)[0] == 404


async def test_the_wait_for_a_service_ends_with_the_request_s_deadline_or_its_own() -> None:
    async with serving(named("predict", listing("tickets"))) as url:
        async with gateway(predict_urls=url, wait_for_service_s=3600) as client:
            status, _ = await refusal(client, {"model": "vicuna"}, headers={"X-Request-Timeout": "0.5"})
            assert status == 504
        async with gateway(predict_urls=url, wait_for_service_s=0.3) as client:
            status, error = await refusal(client, {"model": "vicuna"})
            assert (status, "list none now" in error["message"]) == (503, True)


async def test_a_model_that_can_t_decide_is_refused_as_model_and_as_teacher_beside_those_that_can() -> None:
    deciding = {"predict": None, "generate": False, "embed": False, "score": True}
    services = {name: named(name, listing(f"of-{name}", decides=can)) for name, can in deciding.items()}
    async with AsyncExitStack() as running:
        urls: Any = {f"{name}_urls": await running.enter_async_context(serving(one)) for name, one in services.items()}
        client = await running.enter_async_context(gateway(**urls))
        for model in ("of-embed", "of-embed@latest", "of-generate"):
            name, service = model.partition("@")[0], model.partition("@")[0].removeprefix("of-")
            told = f"{name!r}, a model of {service}, decides nothing. Models that can decide: "
            for field, body in (("model", {"model": model}), ("teacher", {"model": "of-score", "teacher": model})):
                status, error = await refusal(client, body)
                assert (status, error["param"]) == (422, field)
                assert error["message"].startswith(f"{field}: {told}")
                assert set(error["message"].removeprefix(f"{field}: {told}")[:-1].split(", ")) == {
                    "'of-predict'",
                    "'of-score'",
                }
        assert [one for service in services.values() for one in service.requests if one["method"] == "POST"] == []
        async with client.get("/v1/models") as response:
            listed = {one["id"]: one["decides"] for one in (await response.json())["data"]}
        assert listed == {f"of-{name}": can for name, can in deciding.items()}


async def test_a_service_that_is_too_busy_to_list_its_models_has_those_that_it_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "MODELS_AGE_S", 0.0)
    lists = listing("tickets")
    async with serving(named("predict", lists)) as url, gateway(predict_urls=url) as client:
        assert await decided_by(client, "tickets") == "predict"
        lists.clear()
        assert await decided_by(client, "tickets") == "predict"
        status, error = await refusal(client, {"model": "another"})
        assert (status, "predict" in error["message"]) == (503, True)


async def test_a_pool_has_the_models_that_it_claims(tmp_path: Path) -> None:
    async with (
        serving(named("own", listing("clip"))) as own,
        serving(named("large", listing("llama"))) as large,
        gateway(
            score_urls=own, pools=write_pools(tmp_path / "pools", pool("llama", "generate", large)), generate_urls=None
        ) as client,
    ):
        assert [await decided_by(client, model) for model in ("clip", "llama", "llama@1")] == ["own", "large", "large"]


async def test_a_key_needs_the_scope_of_the_service_that_decides() -> None:
    keys = [
        KeyRecord(name=name, sha256=digest(name), scopes=frozenset(scopes))
        for name, scopes in (("of-both", ("predict", "score:read")), ("of-score", ("score",)), ("of-embed", ("embed",)))
    ]
    predict, score = named("predict", listing("tickets")), named("score", listing("clip"))
    async with (
        serving(predict) as first,
        serving(score) as second,
        gateway(predict_urls=first, score_urls=second, keys=tuple(keys)) as client,
    ):

        def sent_by(name: str) -> dict[str, Any]:
            return {"headers": {"Authorization": f"Bearer {name}"}}

        assert await decided_by(client, "tickets", **sent_by("of-both")) == "predict"
        assert await decided_by(client, "clip", **sent_by("of-score")) == "score"
        for name, model in (("of-score", "tickets"), ("of-embed", "clip")):
            num_asked = len(predict.requests) + len(score.requests)
            status, error = await refusal(client, {"model": model}, **sent_by(name))
            assert (status, error["code"]) == (403, "missing_scope")
            asked = (predict.requests + score.requests)[num_asked:]
            assert [one for one in asked if one["path"] != "/v1/models"] == []
        async with client.get("/v1/key", **sent_by("of-score")) as response:
            usage = (await response.json())["usage"]
        assert usage["score"] == {"requests": 1, "errors": 0}
        assert usage["gateway"] == {"requests": 2, "errors": 1}


async def test_the_document_describes_the_shared_route_once() -> None:
    def document(summary: str) -> dict[str, Any]:
        paths = {"/v1/decisions": {"post": {"operationId": "decisions", "summary": summary, "responses": {}}}}
        return {"/openapi.json": {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": paths}}

    async with (
        serving(named("generate", document("of generate"))) as first,
        serving(named("score", document("of score"))) as second,
        gateway(generate_urls=first, score_urls=second) as client,
        client.get("/openapi.json") as response,
    ):
        operation = (await response.json())["paths"]["/v1/decisions"]["post"]
        assert (operation["operationId"], operation["summary"]) == ("decisions", "of generate")


TOO_MANY = "questions.0.choices: Too many."


def deciding(name: str, answers: dict[str, Any], status: int = 200, told: str = TOO_MANY) -> tuple[Service, list[Any]]:
    """A service with the model `name` and the bodies that it was sent, which it answers by the questions' names."""
    bodies: list[Any] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await named(name, listing(name))(scope, receive, send)
            return
        body = await read_body(receive)
        bodies.append(asked := json.loads(body))

        async def again() -> Message:
            return {"type": "http.request", "body": body}

        refused = {"error": {"message": told, "type": "x", "param": told.partition(": ")[0]}}
        found = [answers[one["name"]] for one in asked["questions"]] if status == 200 else []
        usage = {"input_tokens": 10 * len(found), "input_tokens_details": {"cached_tokens": len(found)}}
        decision = {"model": f"{name}@1", "answers": found, "usage": usage} if status == 200 else refused
        headers = ((b"content-type", b"application/json"), (b"x-fovea-model", f"{name}@1".encode()))
        await respond(json.dumps(decision).encode(), status=status, headers=headers)(scope, again, send)

    return Service(answer), bodies


HANDED_OVER = {"a": {"model": None, "choice": "x"}, "b": {"model": "student@1", "choice": "y"}, "c": {"model": None}}
BY_TEACHER = {"a": {"choice": "z"}, "c": {"probability": 0.9}}
CASCADE = {
    "model": "student",
    "teacher": "teacher",
    "input": "It crashes.",
    "questions": [{"name": name, "type": "choice"} for name in "abc"],
}


async def test_a_teacher_decides_what_its_student_hands_over() -> None:
    (student, asked_first), (teacher, asked_then) = deciding("student", HANDED_OVER), deciding("teacher", BY_TEACHER)
    async with (
        serving(student) as first,
        serving(teacher) as second,
        gateway(predict_urls=first, generate_urls=second) as client,
    ):
        async with client.post("/v1/decisions", json=CASCADE, headers={"X-Request-Timeout": "50"}) as response:
            assert response.status == 200 and response.headers["X-Fovea-Model"] == "student@1"
            decision = await response.json()
        assert decision == {
            "model": "student@1",
            "answers": [
                {"choice": "z", "model": "teacher@1"},
                {"choice": "y", "model": "student@1"},
                {"probability": 0.9, "model": "teacher@1"},
            ],
            "usage": {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 5}},
        }
        assert asked_first == [CASCADE]
        questions = [CASCADE["questions"][0], CASCADE["questions"][2]]
        assert asked_then == [{**CASCADE, "model": "teacher", "teacher": None, "questions": questions}]
        assert 0 < float(teacher.header("x-request-timeout") or 0) <= float(student.header("x-request-timeout") or 0)
        async with client.get("/v1/key") as response:
            usage = (await response.json())["usage"]
            assert [usage[name] for name in ("predict", "generate")] == [{"requests": 1, "errors": 0}] * 2


async def test_a_teacher_is_not_asked_what_its_student_decides() -> None:
    answers = {name: {"model": "student@1", "choice": name} for name in "abc"}
    (student, _), (teacher, asked_then) = deciding("student", answers), deciding("teacher", {})
    async with (
        serving(student) as first,
        serving(teacher) as second,
        gateway(predict_urls=first, generate_urls=second) as client,
    ):
        async with client.post("/v1/decisions", json=CASCADE) as response:
            assert (await response.json())["answers"] == list(answers.values())
        assert asked_then == []


async def test_a_teacher_that_fails_fails_the_request_by_the_client_s_own_question() -> None:
    (student, _) = deciding("student", {**HANDED_OVER, "a": HANDED_OVER["b"]})
    (teacher, _) = deciding("teacher", {}, 422)
    async with (
        serving(student) as first,
        serving(teacher) as second,
        gateway(predict_urls=first, generate_urls=second) as client,
    ):
        status, error = await refusal(client, CASCADE)
        assert (status, error["param"]) == (422, "questions.2.choices")
        assert error["message"] == "questions.2.choices: Too many."
        async with client.get("/v1/key") as response:
            usage = (await response.json())["usage"]
        assert (usage["predict"]["errors"], usage["generate"]["errors"]) == (0, 1)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("input: tickets reads no images.", "teacher: teacher refused: input: tickets reads no images."),
        (
            "input.0.content.1: This model reads text.",
            "teacher: teacher refused: input.0.content.1: This model reads text.",
        ),
        ("questions: At most 9 captions.", "teacher: teacher refused: questions: At most 9 captions."),
        ("model: vicuna was not taught it.", "teacher: teacher refused: vicuna was not taught it."),
    ],
)
async def test_what_a_teacher_refuses_does_not_read_like_the_client_s_own_mistake(told: str, expected: str) -> None:
    (student, _), (teacher, _) = deciding("student", HANDED_OVER), deciding("teacher", {}, 422, told)
    async with (
        serving(student) as first,
        serving(teacher) as second,
        gateway(predict_urls=first, generate_urls=second) as client,
    ):
        status, error = await refusal(client, CASCADE)
        assert (status, error["param"], error["message"]) == (422, "teacher", expected)


async def test_a_teacher_that_there_is_not_or_that_the_key_may_not_ask_is_refused_before_its_student_is_asked() -> None:
    (student, asked_first), (teacher, _) = deciding("student", HANDED_OVER), deciding("teacher", {})
    keys = (KeyRecord(name="small", sha256=digest("small"), scopes=frozenset({"predict"})),)
    async with serving(student) as first, serving(teacher) as second:
        async with gateway(predict_urls=first, generate_urls=second, score_urls="") as client:
            status, error = await refusal(client, {**CASCADE, "teacher": "missing"})
            assert (status, error["param"]) == (404, "teacher")
        async with gateway(predict_urls=first, generate_urls=second, keys=keys) as client:
            status, error = await refusal(client, CASCADE, headers={"Authorization": "Bearer small"})
            assert (status, "generate" in error["message"]) == (403, True)
    assert asked_first == []
