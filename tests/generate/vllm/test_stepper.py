"""Every item gets one answer, whatever vLLM does; asked of a scripted server."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core.batching.stepper import StepLimits
from services.core.errors import DeadlineExceeded, FoveaError, InternalError, InvalidRequest, Overloaded
from services.core.exchange import Caller, set_caller
from services.core.metrics import Metrics
from services.generate.generation.generation import AnswerOptions, Generation, Progress
from services.generate.generation.ranking import Ranking
from services.generate.http.documents import CalibrationOptions, calibration_of
from services.generate.model.profile import CalibrationProfile, paper_profile, write_profile
from services.generate.prompts.templates import Document
from services.generate.vllm import stepper as stepper_module
from services.generate.vllm.client import Unavailable, VllmAddress
from services.generate.vllm.engine import NotServed, VllmEngine
from services.generate.vllm.stepper import VllmStepper
from tests.generate.tiny_models import save_tiny
from tests.generate.vllm.scripted_server import KEY, NAME, ScriptedServer

PROFILE = CalibrationProfile(enabled=True, bias="tree", temperature=1e-2, layers=(2, 3), rel_layers=(0, 1, 2, 3))
DOCUMENTS = (Document("The keeper was called Ada."), Document("The harbour was built.", title="The harbour"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny(tmp_path_factory.mktemp("tiny") / NAME)
    write_profile(PROFILE, folder)
    return folder


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer().served() as server:
        yield server


async def load(checkpoint: Path, server: ScriptedServer) -> VllmEngine:
    return await asyncio.to_thread(VllmEngine.load, checkpoint, VllmAddress(server.url, NAME, KEY))


@asynccontextmanager
async def stepping(
    checkpoint: Path,
    server: ScriptedServer,
    *,
    max_running: int = 8,
    max_waiting: int = 8,
    metrics: Metrics | None = None,
) -> AsyncIterator[tuple[VllmEngine, VllmStepper]]:
    engine = await load(checkpoint, server)
    limits = StepLimits(8192, 8192, max_waiting)
    metrics = metrics or Metrics("generate")
    stepper = VllmStepper(engine, limits=limits, max_running=max_running, metrics=metrics)
    try:
        yield engine, stepper
    finally:
        await stepper.close()


def question(engine: VllmEngine, max_tokens: int = 4, **options: Any) -> Generation:
    return engine.processor.prepare_question(
        "Who kept the lighthouse?", DOCUMENTS, AnswerOptions(max_tokens=max_tokens, **options)
    )


async def answers(stepper: VllmStepper, item: Any, deadline: float | None = None) -> list[Any]:
    async with aclosing(stepper.submit(item, cost=10, deadline=deadline)) as events:
        return [event.value async for event in events]


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110 (a state of the server)
            await asyncio.sleep(0.01)


async def test_a_calibrated_answer_measures_each_dummy_once_for_all_its_choices(
    checkpoint: Path, server: ScriptedServer
) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        choices = question(engine, explain=True).choices(3)
        found: list[list[Progress]] = await asyncio.gather(*(answers(stepper, one) for one in choices))
    assert len(server.measured) == 1 + len(DOCUMENTS)  # `tree` is answered by `exact`
    facts = [one for steps in found if (one := steps[0].facts) is not None]
    assert sorted(one.calibration_passes for one in facts) == [0, 0, len(DOCUMENTS)]
    for one in facts:
        assert one.by_layer is not None and one.by_layer.relevance is not None
        of_rel = [one.by_layer.relevance[layer] for layer in PROFILE.rel_layers]
        assert np.mean(of_rel, axis=0) == pytest.approx(one.relevance, abs=1e-8)
    assert all(steps[-1].finish_reason == "length" and steps[-1].num_tokens == 4 for steps in found)
    for sent in (one for one in server.requests if one.get("stream")):
        assert sent["vllm_xargs"]["fovea_layers"] == [2, 3]
        assert sent["vllm_xargs"]["fovea_first_row"] == len(sent["prompt"]) - 1
        assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop_token_ids"} <= sent.keys()


async def test_enabled_alone_means_the_published_settings_and_estimate_over_vllm_too(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with stepping(save_tiny(tmp_path / NAME), server) as (engine, stepper):
        enabled = calibration_of(CalibrationOptions(enabled=True), engine.processor.profile, 4)
        steps = await answers(stepper, question(engine, calibration=enabled))
        await answers(stepper, engine.processor.prepare_ranking("Who kept the lighthouse?", DOCUMENTS, "calibrated"))
    assert steps[0].facts.applied == enabled == paper_profile(4)
    (sent,) = (one for one in server.requests if one.get("stream"))
    assert sent["vllm_xargs"]["fovea_layers"] == [2, 3]
    # a ranking reads both orders, the first of which is the answer's prompt and was measured by the same estimate
    assert len(server.measured) == 2 * (1 + len(DOCUMENTS))


async def test_an_answer_that_is_not_calibrated_is_measured_by_its_own_request(
    checkpoint: Path, server: ScriptedServer
) -> None:
    off = PROFILE.model_copy(update={"enabled": False})
    async with stepping(checkpoint, server) as (engine, stepper):
        steps = await answers(stepper, question(engine, calibration=off, explain=True))
    assert len(server.requests) == 1
    assert steps[0].facts.attention == pytest.approx((0.01, 0.02))
    assert steps[0].facts.relevance is None
    by_layer = steps[0].facts.by_layer
    assert np.mean(by_layer.attention, axis=0) == pytest.approx((0.01, 0.02))
    assert by_layer.relevance is None


async def test_tenants_have_salts_of_their_own(checkpoint: Path, server: ScriptedServer) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        for tenant in ("one", "two", ""):
            await answers(stepper, replace(question(engine), tenant=tenant))
    salts = [one.get("cache_salt") for one in server.requests]
    assert len(set(salts)) == 3
    assert all(len(set(some)) == 1 for some in (salts[:4], salts[4:8], salts[8:]))
    assert salts[-1] is None


async def test_a_stop_string_ends_vllm_s_request(checkpoint: Path, server: ScriptedServer) -> None:
    server.is_held = True
    async with stepping(checkpoint, server) as (engine, stepper):
        text = engine.processor.tokenizer.decode([70])
        steps = await answers(stepper, question(engine, max_tokens=100, stop=(text,)))
        assert [steps[-1].finish_reason, steps[-1].text] == ["stop", ""]
        await until(lambda: server.num_left == 1)


async def test_a_client_that_leaves_and_a_deadline_end_vllm_s_request(checkpoint: Path, server: ScriptedServer) -> None:
    server.is_held = True
    async with stepping(checkpoint, server) as (engine, stepper):
        async with aclosing(stepper.submit(question(engine), cost=10)) as events:
            await anext(events)
        await until(lambda: server.num_left == 1)
        with pytest.raises(DeadlineExceeded):
            await answers(stepper, question(engine), deadline=time.monotonic() + 0.5)
        await until(lambda: server.num_left == 2 or sum(bool(one.get("stream")) for one in server.requests) < 2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"breaks_after": 0}, Unavailable, "broke off"),
        ({"breaks_after": 2}, Unavailable, "broke off"),
        ({"ends_after": 2}, Unavailable, "before its end"),
        ({"refusal": (400, "too many log-probabilities")}, InvalidRequest, "too many log-probabilities"),
        ({"refusal": (500, "a secret")}, InternalError, "status 500"),
        ({"refusal": (503, "a secret")}, Unavailable, "status 503"),
        ({"refusal": (404, "no such model")}, Unavailable, "status 404"),
    ],
)
async def test_what_goes_wrong_at_vllm_is_an_error_of_the_request(
    checkpoint: Path, server: ScriptedServer, changes: dict[str, Any], error: type[FoveaError], message: str
) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        for name, value in changes.items():
            setattr(server, name, value)
        with pytest.raises(error, match=message) as raised:
            await answers(stepper, question(engine))
        assert "secret" not in raised.value.message


def guided(engine: VllmEngine, choice: str) -> Generation:
    """A completion that vLLM guides to one choice."""
    options = AnswerOptions(max_tokens=4, for_vllm={"structured_outputs": {"choice": [choice]}})
    return engine.processor.prepare_completion("the keeper", options)


async def test_a_client_that_leaves_while_vllm_has_sent_nothing_ends_its_request(
    checkpoint: Path, server: ScriptedServer
) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        server.is_compiling = True
        for number, item in enumerate((question(engine), guided(engine, "otter")), 1):  # whole, and as a stream
            asking = asyncio.create_task(answers(stepper, item))
            await until(lambda: len(server.requests) == number)  # noqa: B023
            asking.cancel()
            await until(lambda: server.num_left == number)  # noqa: B023


async def test_clients_take_turns_with_new_guides_and_known_ones_need_none(
    checkpoint: Path, server: ScriptedServer
) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):

        async def ask(client: str, choice: str) -> list[Progress]:
            set_caller(Caller(client))
            return await answers(stepper, guided(engine, choice))

        server.is_compiling = True
        asked = [("one", "otter"), ("one", "parrot"), ("one", "heron"), ("two", "crane")]
        asking = [asyncio.create_task(ask(*one)) for one in asked]
        await until(lambda: len(server.requests) == 2)
        await asyncio.sleep(0.05)
        assert [one["structured_outputs"]["choice"] for one in server.requests] == [["otter"], ["crane"]]
        server.release.set()
        assert [len(steps) for steps in await asyncio.gather(*asking)] == [4] * 4
        server.release.clear()
        server.requests.clear()
        again = [asyncio.create_task(ask("three", choice)) for _, choice in asked]
        await until(lambda: len(server.requests) == 4)
        server.release.set()
        await asyncio.gather(*again)


async def test_a_guide_that_was_left_counts_while_vllm_may_still_compile_it(
    checkpoint: Path, server: ScriptedServer
) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        server.is_compiling = True
        left = asyncio.create_task(answers(stepper, guided(engine, "otter")))
        await until(lambda: len(server.requests) == 1)
        left.cancel()
        await until(lambda: server.num_left == 1)
        waiting = asyncio.create_task(answers(stepper, guided(engine, "parrot")))
        await asyncio.sleep(0.05)
        assert len(server.requests) == 1
        waiting.cancel()


@pytest.mark.parametrize(
    ("message", "param"), [("Grammar error: no rule", "structured_outputs"), ("too many log-probabilities", None)]
)
async def test_a_guide_that_vllm_refuses_is_named(
    checkpoint: Path, server: ScriptedServer, message: str, param: str | None
) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        server.refusal = 400, message
        with pytest.raises(InvalidRequest, match=message) as raised:
            await answers(stepper, guided(engine, "otter"))
        assert raised.value.param == param


async def test_more_than_can_wait_are_refused_and_those_that_wait_are_answered(
    checkpoint: Path, server: ScriptedServer
) -> None:
    server.is_held = True
    metrics = Metrics("generate")
    async with stepping(checkpoint, server, max_running=1, max_waiting=1, metrics=metrics) as (engine, stepper):
        first = asyncio.create_task(answers(stepper, question(engine)))
        await until(lambda: any(one.get("stream") for one in server.requests))
        second = asyncio.create_task(answers(stepper, question(engine)))
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded, match="Too many requests are waiting"):
            await answers(stepper, question(engine))
        told = metrics.render().decode()
        for name, value in (("queue_depth", 1), ("queue_cost", 10), ("running_items", 1), ("room_demand_ratio", 2)):
            assert re.search(rf"^fovea_{name}(\{{.*\}})? {value}\.0$", told, re.MULTILINE)
        server.release.set()
        assert [len(steps) for steps in await asyncio.gather(first, second)] == [4, 4]


async def test_while_vllm_does_not_answer_nothing_is_accepted_and_what_runs_is_given_up(
    checkpoint: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepper_module, "PROBE_S", 0.05)
    monkeypatch.setattr(stepper_module, "GIVE_UP_S", 0.2)
    server.is_held = True
    async with stepping(checkpoint, server) as (engine, stepper):
        running = asyncio.create_task(answers(stepper, question(engine)))
        await until(lambda: any(one.get("stream") for one in server.requests))
        server.is_healthy = False
        with pytest.raises(Unavailable):
            await running
        assert engine.trouble is not None
        with pytest.raises(Unavailable):
            stepper.check_wait()
        server.is_healthy, server.name = True, "another"
        await until(lambda: "--served-model-name tiny" in (engine.trouble or ""))
        server.name = NAME
        await until(lambda: engine.trouble is None)
        server.is_held = False
        assert len(await answers(stepper, question(engine))) == 4


async def test_what_waits_when_the_service_stops_is_refused(checkpoint: Path, server: ScriptedServer) -> None:
    server.is_held = True
    async with stepping(checkpoint, server, max_running=1) as (engine, stepper):
        first = asyncio.create_task(answers(stepper, question(engine)))
        await until(lambda: any(one.get("stream") for one in server.requests))
        second = asyncio.create_task(answers(stepper, question(engine)))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(stepper.close())
        await asyncio.sleep(0.05)
        server.release.set()
        with pytest.raises(Overloaded, match="The service stopped"):
            await second
        assert len(await first) == 4
        await closing


async def test_a_ranking_is_one_event(checkpoint: Path, server: ScriptedServer) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        for method, num_requests in (("attention", 1), ("calibrated", 1 + len(DOCUMENTS))):
            server.requests.clear()
            job = engine.processor.prepare_ranking("Who?", DOCUMENTS, method)  # type: ignore[arg-type]
            [ranking] = await answers(stepper, job)
            assert isinstance(ranking, Ranking)
            assert len(server.requests) == num_requests


async def test_options_are_ranked_by_the_tokens_that_stand_for_them(checkpoint: Path, server: ScriptedServer) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        job = engine.processor.prepare_options([{"role": "user", "content": "Which?"}], ["A", "B", "C"])
        [ranking] = await answers(stepper, job)
    assert isinstance(ranking, Ranking)
    shares = np.exp([0.0, -1.0, -2.0])
    assert ranking.relevance_scores == pytest.approx(shares / shares.sum())
    assert [one["logprob_token_ids"] for one in server.requests] == [list(job.answer_ids or ())]


async def test_options_over_documents_are_read_with_the_calibrated_attention_of_answers(
    checkpoint: Path, server: ScriptedServer
) -> None:
    async with stepping(checkpoint, server) as (engine, stepper):
        job = engine.processor.prepare_options([{"role": "user", "content": "Which?"}], ["A", "B", "C"], DOCUMENTS)
        [ranking] = await answers(stepper, job)
        [sent] = [one for one in server.requests if "logprob_token_ids" in one]
        await answers(stepper, Generation(job.prompts[0], 1, calibration=PROFILE))
    assert isinstance(ranking, Ranking)
    assert len(sent["vllm_xargs"]["fovea_log_alpha"]) == len(DOCUMENTS)
    [answered] = [one for one in server.requests if one.get("stream")]
    assert sent["vllm_xargs"] == answered["vllm_xargs"]


async def test_an_address_without_the_plug_in_is_refused_with_what_to_do(
    checkpoint: Path, server: ScriptedServer
) -> None:
    with pytest.raises(NotServed, match="VLLM_PLUGINS=fovea, and give its address without /v1"):
        await asyncio.to_thread(VllmEngine.load, checkpoint, VllmAddress(f"{server.url}/v1", NAME))


async def test_another_model_or_none_is_refused_for_now(checkpoint: Path, server: ScriptedServer) -> None:
    server.name = "another"
    with pytest.raises(NotServed, match="vLLM serves another: start it with --served-model-name tiny"):
        await load(checkpoint, server)
    with pytest.raises(NotServed, match="vLLM does not answer"):
        await asyncio.to_thread(VllmEngine.load, checkpoint, VllmAddress("http://127.0.0.1:9", NAME))
