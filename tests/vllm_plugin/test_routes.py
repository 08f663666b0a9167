"""The routes of Fovea's generate service over vLLM, against the same service with its own engine."""

import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import save_file
from starlette.testclient import TestClient

from services.generate.calibrate.bench import Bench
from services.generate.calibrate.vllm_bench import VllmBench
from services.generate.data.question_sets import at_positions, question_set
from services.generate.data.questions import Example
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import CalibrationProfile, write_profile
from services.generate.vllm.client import VllmAddress
from services.generate.vllm.engine import VllmEngine
from tests.embed.tiny import wait_until_ready
from tests.generate.test_lost_middle import STARTER
from tests.vllm_plugin.calibrated_alike import settings_chosen
from tests.vllm_plugin.engine import Server, free_port, served
from tests.vllm_plugin.own_answers import save
from tests.vllm_plugin.services_over import CPU, generate_service, own_and_vllm, publish, wait_for

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

TINY, ADAPTER = "tiny-llama", "tiny-adapter"
PROFILE = CalibrationProfile(enabled=True, bias="exact", temperature=0.02, layers=(2, 3), rel_layers=(0, 1, 2, 3))
TEXT = "the keeper of lighthouse was called Ada harbour island who traded until 1931 built by people"
TOLERANCE = 1e-4
NUM_POSITIONED = 8  # questions at each gold position
TEMPLATE = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|{{ message['role'] }}|>
{{ message['content'] }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} \
{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
PET = {"type": "object", "properties": {"owner": {"enum": ["Ada", "Ben"]}}, "required": ["owner"]}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "find_pet", "parameters": {**PET, "additionalProperties": False}},
}
NAMED = {"type": "function", "function": {"name": "find_pet"}}
CALL = {"id": "call-1", "type": "function", "function": {"name": "find_pet", "arguments": '{"owner": "Ada"}'}}
CALLED = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
CALLED += [{"role": "tool", "tool_call_id": "call-1", "content": "an otter"}]


def save_adapter(folder: Path) -> Path:
    """A LoRA adapter of the tiny model, with random weights."""
    folder.mkdir()
    projections = {"q_proj": 128, "v_proj": 64}  # outputs
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 32, "target_modules": list(projections), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    draw, weights = torch.Generator().manual_seed(0), {}
    for layer in range(4):
        for name, width in projections.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(8, 128, generator=draw)
            weights[f"{prefix}.lora_B.weight"] = torch.randn(width, 8, generator=draw)
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def text_of(draw: random.Random, longest: int) -> str:
    return " ".join(draw.choice(TEXT.split()) for _ in range(draw.randint(1, longest)))


def question(seed: int, **fields: Any) -> dict[str, Any]:
    """A question over documents of unequal lengths, some with titles; calibrated in one of several ways."""
    draw = random.Random(seed)
    documents: list[Any] = [text_of(draw, 12) for _ in range(draw.randint(2, 5))]
    documents[0] = {"title": text_of(draw, 3), "text": documents[0], "id": "first"}
    calibration = draw.choice(({}, {"bias": "single"}, {"bias": "query"}, {"dummy": "whole"}, {"layers": [1, 2, 3]}))
    return {
        "query": text_of(draw, 6),
        "documents": documents,
        "calibration": calibration,
        "max_tokens": 12,
        **fields,
    }


QUESTIONS = [question(seed) for seed in range(100)]


@dataclass(frozen=True)
class Served:
    """A server of vLLM, and the service over the own engine and over vLLM."""

    vllm: Server
    own: TestClient
    over_vllm: TestClient
    folder: Path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = save(folder, "llama").rename(folder / TINY)
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    write_profile(PROFILE, checkpoint)
    publish(folder, checkpoint, TINY)
    adapter = save_adapter(folder / ADAPTER)
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={adapter}")
    with (
        served(checkpoint, folder / "vllm.log", "--max-model-len", "1024", *tools, *lora) as vllm,
        own_and_vllm(folder, TINY, vllm.url) as (own, over_vllm),
    ):
        yield Served(vllm, own, over_vllm, folder)


def answered(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return {name: value for name, value in response.json().items() if name not in ("id", "created")}


def assert_alike(found: Any, expected: Any) -> None:
    """Equal but for the last digits of numbers, and for the tokens that a cache saved."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if name != "cached_tokens":
                assert_alike(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=TOLERANCE, rel=1e-4)
    else:
        assert found == expected


def both(case: Served, path: str, bodies: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Answers over vLLM, many at a time, and those of the own engine."""
    with ThreadPoolExecutor(8) as threads:
        over_vllm = list(threads.map(lambda body: answered(case.over_vllm, path, body), bodies))
    return [(found, answered(case.own, path, body)) for found, body in zip(over_vllm, bodies, strict=True)]


def test_calibrated_answers_and_reports_are_those_of_the_own_engine(tiny: Served) -> None:
    for found, expected in both(tiny, "/generate", QUESTIONS):
        assert_alike(found, expected)


def test_calibration_changes_answers_over_vllm(tiny: Served) -> None:
    plain = [question(seed, calibration={"enabled": False}) for seed in range(30)]
    changed = 0
    for (found, expected), body in zip(both(tiny, "/generate", plain), QUESTIONS, strict=False):
        assert_alike(found, expected)
        changed += found["answer"] != answered(tiny.over_vllm, "/generate", body)["answer"]
    assert changed > 10


@pytest.mark.parametrize("reorder", ["attention", "calibrated", "query_likelihood", "prompt"])
def test_documents_are_reordered_alike(tiny: Served, reorder: str) -> None:
    for found, expected in both(tiny, "/generate", [question(seed, reorder=reorder) for seed in range(4)]):
        assert_alike(found, expected)


def chat(seed: int, **fields: Any) -> dict[str, Any]:
    asked = question(seed)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked["query"]}]
    return {
        "messages": messages,
        "documents": asked["documents"],
        "calibration": asked["calibration"],
        "max_tokens": 10,
        **fields,
    }


def test_chat_over_documents_has_the_same_texts_and_log_probabilities(tiny: Served) -> None:
    bodies = [chat(seed, logprobs=True, top_logprobs=2) for seed in range(8)]
    bodies += [chat(9, n=3), chat(10, documents=None, calibration=None, temperature=0), chat(11, stop=["e", " "])]
    bodies += [chat(12, logit_bias={"70": 30}), chat(13, presence_penalty=1.5, frequency_penalty=0.5)]
    for found, expected in both(tiny, "/v1/chat/completions", bodies):
        assert_alike(found, expected)


def test_answers_keep_to_a_response_format_under_calibration(tiny: Served) -> None:
    schema = {"type": "object", "properties": {"pet": {"enum": ["cat", "dog"]}}, "required": ["pet"]}
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": {**schema, "additionalProperties": False}}}
    found = answered(tiny.over_vllm, "/v1/chat/completions", chat(0, response_format=form, max_tokens=60))
    assert json.loads(found["choices"][0]["message"]["content"])["pet"] in ("cat", "dog")
    assert found["usage"]["calibration_passes"] >= 0
    assert found["documents"][0]["relevance"] is not None
    assert found["calibration"] == {
        "bias": "exact",
        "temperature": 0.02,
        "layers": [2, 3],
        "rel_layers": [0, 1, 2, 3],
        "dummy": "framed",
    }
    for client, wanted in ((tiny.own, form), (tiny.over_vllm, {"type": "grammar"})):
        refused = client.post("/v1/chat/completions", json=chat(0, response_format=wanted))
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "response_format"


GUIDED: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": "(cat|dog)s{3}"}}, "(cat|dog)sss"),
    ({"structured_outputs": {"choice": ["otter", "parrot"]}}, "otter|parrot"),
    ({"structured_outputs": {"grammar": 'root ::= "a" "b"+ "c"'}, "max_tokens": 200}, "ab+c?"),
    ({"structured_outputs": {"json": PET}, "max_tokens": 60}, r'\{\s*"owner".*'),
    ({"allowed_token_ids": [40], "ignore_eos": True}, r"(.)\1*"),
]


@pytest.mark.parametrize(("fields", "form"), GUIDED)
def test_answers_are_guided_as_vllm_guides_them_calibrated_or_not(
    tiny: Served, fields: dict[str, Any], form: str
) -> None:
    over_documents = answered(tiny.over_vllm, "/v1/chat/completions", chat(0) | fields)
    assert re.fullmatch(form, over_documents["choices"][0]["message"]["content"], re.DOTALL)
    assert over_documents["calibration"] is not None
    completed = answered(tiny.over_vllm, "/v1/completions", {"prompt": "the keeper", "temperature": 0} | fields)
    assert re.fullmatch(form, completed["choices"][0]["text"], re.DOTALL)
    for path, body in (("/v1/chat/completions", chat(0)), ("/v1/completions", {"prompt": "the keeper"})):
        refused = tiny.own.post(path, json=body | fields)
        assert refused.status_code == 400
        assert "FOVEA_GENERATE_ENGINE=vllm" in refused.json()["error"]["message"]


def test_a_grammar_that_is_none_is_refused_by_vllm_with_its_reason(tiny: Served) -> None:
    body = {"prompt": "the keeper", "structured_outputs": {"regex": "(("}}
    refused = tiny.over_vllm.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["message"].startswith("vLLM refused")) == (400, True)


def client_of(client: TestClient) -> openai.OpenAI:
    return openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=client, max_retries=0)


DOCUMENTS = {"documents": ["the keeper was called Ada", {"title": "harbour", "text": "Ben traded with people"}]}


@pytest.mark.parametrize("extra", [{}, DOCUMENTS, DOCUMENTS | {"reorder": "calibrated"}])
@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_tools_are_called_whole_and_streamed(tiny: Served, extra: dict[str, Any], choice: Any) -> None:
    messages: Any = [{"role": "user", "content": "who has an otter?"}]
    asked: Any = {"model": TINY, "messages": messages, "tools": [TOOL], "tool_choice": choice, "temperature": 0}
    asked |= {"extra_body": extra, "max_tokens": 200}
    client = client_of(tiny.over_vllm)
    whole = client.chat.completions.create(**asked)
    [call] = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)["owner"] in ("Ada", "Ben")) == ("find_pet", True)
    assert whole.model.startswith(f"{TINY}@")
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 5
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    parts = [part for chunk in chunks[:-1] for part in chunk.choices[0].delta.tool_calls or []]
    assert parts[0].function is not None
    assert parts[0].function.name == "find_pet"
    arguments = "".join((part.function and part.function.arguments) or "" for part in parts)
    assert json.loads(arguments) == json.loads(call.function.arguments)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    told = whole.model_extra or {}
    if extra:
        assert [one["index"] for one in told["documents"]] == [0, 1]
        assert told["documents"][0]["relevance"] is not None
        assert told["calibration"]["bias"] == "exact"
    else:
        assert "calibration" not in told


def test_the_results_of_tools_are_read_and_calibration_acts_on_what_follows(tiny: Served) -> None:
    messages = [{"role": "user", "content": "who has an otter?"}, *CALLED]
    body = {"messages": messages, "tools": [TOOL], "max_tokens": 12, "temperature": 0, "logprobs": True}
    for more in ({}, DOCUMENTS, DOCUMENTS | {"calibration": {"enabled": False}}):
        found = answered(tiny.over_vllm, "/v1/chat/completions", body | more)
        [choice] = found["choices"]
        is_ended = choice["finish_reason"] == "stop"  # by a token that is no part of the answer
        assert found["usage"]["completion_tokens"] == len(choice["logprobs"]["content"]) + is_ended
        assert "".join(one["delta"].get("content") or "" for chunk in streamed(tiny.over_vllm, body | more)
                       for one in chunk["choices"]) == found["choices"][0]["message"]["content"]  # fmt: skip
    plain, calibrated = (
        answered(tiny.over_vllm, "/v1/chat/completions", body | DOCUMENTS | {"calibration": options})
        for options in ({"enabled": False}, {"temperature": 1e-5})
    )
    assert plain["documents"][0]["attention"] == pytest.approx(calibrated["documents"][0]["attention"], abs=TOLERANCE)
    assert plain["choices"][0]["logprobs"] != calibrated["choices"][0]["logprobs"]


def test_a_call_that_the_model_writes_itself_is_read_by_vllm(tiny: Served) -> None:
    written = '<tool_call>{"name": "find_pet", "arguments": {"owner": "Ben"}}</tool_call>'
    body = chat(1, tools=[TOOL], tool_choice="auto", max_tokens=200, structured_outputs={"choice": [written]})
    found = answered(tiny.over_vllm, "/v1/chat/completions", body)
    [choice] = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"owner": "Ben"}


def test_what_tools_cannot_have_is_refused(tiny: Served) -> None:
    spelt = chat(0, tools=[TOOL], messages=[{"role": "user", "content": "a <eos> b"}])
    for client, body, said in (
        (tiny.own, chat(0, tools=[TOOL]), "FOVEA_GENERATE_ENGINE=vllm"),
        (tiny.own, chat(0, messages=[*CALLED, {"role": "user", "content": "a"}]), "FOVEA_GENERATE_ENGINE=vllm"),
        (tiny.over_vllm, chat(0, tool_choice="required"), "Needs tools"),
        (tiny.over_vllm, spelt, "'<eos>' is a control token"),
        (tiny.over_vllm, chat(0, tools=[TOOL], tool_choice={"function": {"name": "other"}}), "vLLM refused"),
    ):
        refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert said in refused.json()["error"]["message"]


def test_an_adapter_of_the_checkpoint_answers_calibrated(tiny: Served) -> None:
    settings = {"engine": "vllm", "vllm_url": tiny.vllm.url, "vllm_model": ADAPTER}
    with generate_service(tiny.folder, TINY, **settings) as client:
        wait_for(client)
        pairs = [[answered(one, "/generate", question(seed)) for one in (client, tiny.over_vllm)] for seed in range(5)]
    assert all(found["documents"][0]["relevance"] is not None for found, _ in pairs)
    assert any(found["answer"] != of_base["answer"] for found, of_base in pairs)


def streamed(client: TestClient, body: dict[str, Any]) -> list[Any]:
    response = client.post("/v1/chat/completions", json=body | {"stream": True})
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [{**json.loads(one), "id": None, "created": None} for one in events]


def test_streams_of_chat_have_the_same_chunks(tiny: Served) -> None:
    for seed in range(4):
        body = chat(20 + seed, stream_options={"include_usage": True})
        assert_alike(streamed(tiny.over_vllm, body), streamed(tiny.own, body))


def test_completions_echo_and_score_their_prompts_alike(tiny: Served) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": "the keeper of the", "max_tokens": 8, "temperature": 0, "echo": True, "logprobs": 2},
        {"prompt": ["Ada", "the harbour was"], "max_tokens": 0, "echo": True, "logprobs": 1},
        {"prompt": [[70, 71, 72], [80]], "max_tokens": 5, "temperature": 0, "ignore_eos": True, "n": 2},
    ]
    for found, expected in both(tiny, "/v1/completions", bodies):
        assert_alike(found, expected)


@pytest.mark.parametrize(
    "method", ["calibrated", "attention", "query_likelihood", "query_generation", "relevance_prompt"]
)
def test_rankings_have_the_scores_of_the_own_engine(tiny: Served, method: str) -> None:
    for seed in range(6):
        asked = question(seed)
        texts = [one if isinstance(one, str) else one["text"] for one in asked["documents"]]
        body = {"query": asked["query"], "texts": [*texts, texts[0]], "method": method, "raw_scores": True}
        by_index = [
            sorted(client.post("/v1/rerank", json=body).json(), key=lambda one: one["index"])
            for client in (tiny.over_vllm, tiny.own)
        ]
        assert_alike(*by_index)
        first, *_, last = by_index[0]
        assert method in ("calibrated", "attention") or first["score"] == last["score"]


def test_each_head_and_the_whole_tail_can_be_calibrated(tiny: Served, tmp_path: Path) -> None:
    changes = {"rel_scope": "per_head", "row_scope": "tail", "span_rule": "text"}
    checkpoint = save(tmp_path, "llama")
    write_profile(PROFILE.model_copy(update=changes), checkpoint)
    publish(tmp_path, checkpoint, TINY)
    with own_and_vllm(tmp_path, TINY, tiny.vllm.url) as (own, over_vllm):
        case = Served(tiny.vllm, own, over_vllm, tmp_path)
        bodies = [question(seed, calibration=None) for seed in range(10)]
        for found, expected in both(case, "/generate", bodies):
            assert_alike(found, expected)
        # another profile of the same weights is a version of its own, which is served at once
        write_profile(PROFILE.model_copy(update={"enabled": False}), checkpoint)
        publish(tmp_path, checkpoint, TINY)
        before = answered(over_vllm, "/generate", bodies[0])["model"]
        wait_until_ready(lambda: answered(over_vllm, "/generate", bodies[0])["model"] != before)
        assert answered(over_vllm, "/generate", bodies[0])["documents"][0]["relevance"] is None


def test_bad_requests_get_the_same_errors(tiny: Served) -> None:
    for body in (question(1, max_tokens=4097), question(2, calibration={"layers": [9]}), question(3, top_k=1)):
        found, expected = (client.post("/generate", json=body) for client in (tiny.over_vllm, tiny.own))
        assert (found.status_code, found.json()) == (expected.status_code, expected.json())
        assert found.status_code >= 400
    too_long = tiny.over_vllm.post("/generate", json=question(0, documents=["the keeper " * 600]))
    assert too_long.status_code == 413
    assert "the limit is 1024" in too_long.json()["error"]["message"]


def test_an_equal_seed_draws_an_equal_answer(tiny: Served) -> None:
    answers = [
        answered(tiny.over_vllm, "/generate", question(3) | {"temperature": 1.0, "seed": seed})["answer"]
        for seed in (5, 5, -1, -1, 6)
    ]
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert len({answers[0], answers[2], answers[4]}) > 1


def test_a_server_with_other_weights_is_refused_with_a_sentence(tiny: Served, tmp_path: Path) -> None:
    publish(tmp_path, save(tmp_path, "mistral"), TINY)
    with generate_service(tmp_path, TINY, engine="vllm", vllm_url=tiny.vllm.url) as client:
        wait_for(client, f"vLLM serves other weights as {TINY}", 503)
        assert client.post("/generate", json=QUESTIONS[0]).status_code == 503
    with generate_service(tiny.folder, TINY, engine="vllm", vllm_url=tiny.vllm.url, vllm_model="other") as client:
        wait_for(client, "--served-model-name other", 503)


# The tests below end the tiny server, and come last.


def test_while_vllm_is_gone_requests_get_503_and_later_answers_again(tiny: Served) -> None:
    expected = answered(tiny.own, "/generate", QUESTIONS[0])
    client = tiny.over_vllm
    long = question(0, max_tokens=400, calibration=None)
    is_running = re.compile(r"^vllm:num_requests_running\S* [1-9]", re.MULTILINE)
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(client.post, "/generate", json=long) for _ in range(4)]
        wait_until_ready(lambda: is_running.search(tiny.vllm.get("/metrics").text) is not None)
        tiny.vllm.stop()
        assert {one.result().status_code for one in running} <= {200, 503}
    response = client.post("/generate", json=QUESTIONS[0])
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "vllm_unavailable"
    wait_for(client, "vLLM does not answer", 503)
    assert client.get("/livez").status_code == 200
    port = int(tiny.vllm.url.rpartition(":")[2])
    log = tiny.folder / "again.log"
    with served(tiny.folder / TINY, log, "--max-model-len", "1024", port=port):
        wait_for(client)
        assert_alike(answered(client, "/generate", QUESTIONS[0]) | {"usage": 0}, expected | {"usage": 0})


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The packaged starter; its service is there before vLLM is."""
    folder = tmp_path_factory.mktemp("starter")
    publish(folder, STARTER, STARTER.name)
    port = free_port()
    with ExitStack() as stack:
        over_vllm = stack.enter_context(
            generate_service(folder, STARTER.name, engine="vllm", vllm_url=f"http://127.0.0.1:{port}")
        )
        wait_for(over_vllm, "vLLM does not answer", 503)
        vllm = stack.enter_context(served(STARTER, folder / "vllm.log", "--max-model-len", "1024", port=port))
        own = stack.enter_context(generate_service(folder, STARTER.name))
        wait_for(own)
        wait_for(over_vllm)
        yield Served(vllm, own, over_vllm, folder)


def is_right(client: TestClient, example: Example, calibration: dict[str, Any]) -> bool:
    documents = [{"title": one.title, "text": one.text} for one in example.documents]
    body = {"query": example.question, "documents": documents, "max_tokens": 8, "calibration": calibration}
    questions = question_set("generated")
    body |= {"max_tokens": questions.max_tokens, "stop": list(questions.stop)}
    return bool(questions.is_right(answered(client, "/generate", body)["answer"], example.answers))


def test_the_table_by_gold_position_is_that_of_the_own_engine(starter: Served) -> None:
    drawn = question_set("generated").examples("evaluation", 10, NUM_POSITIONED, seed=3)
    for calibration in ({"enabled": False}, {"bias": "cached"}, {"bias": "exact"}):
        tables = []
        for client in (starter.over_vllm, starter.own):
            with ThreadPoolExecutor(4) as threads:
                placed = [at_positions(drawn, (position,)) for position in (0, 4, 9)]
                ask = [list(threads.map(lambda one: is_right(client, one, calibration), some)) for some in placed]  # noqa: B023
            tables.append(ask)
        assert tables[0] == tables[1]
        assert any(map(any, tables[0]))


def test_calibrate_chooses_the_same_profile(starter: Served) -> None:
    questions = question_set("generated")
    engine = VllmEngine.load(STARTER, VllmAddress(starter.vllm.url, STARTER.name))
    own = Bench(LanguageModel.load(STARTER, CPU), questions)
    found, expected = settings_chosen(VllmBench(engine, questions)), settings_chosen(own)
    assert found == expected
    assert expected.enabled
