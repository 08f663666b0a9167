"""Tools, guided answers and adapters: what the generate service has over vLLM only."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient

from services.nn.reference_outputs import REFERENCE_FILE
from tests.vllm_plugin.engine import served
from tests.vllm_plugin.services_over import (
    TINY,
    TOLERANCE,
    Served,
    answered,
    assert_alike,
    both,
    chat,
    generate_service,
    own_and_vllm,
    publish,
    publish_tiny,
    question,
    streamed,
    wait_for,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

ADAPTER = "tiny-adapter"
PET = {"type": "object", "properties": {"owner": {"enum": ["Ada", "Ben"]}}, "required": ["owner"]}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "find_pet", "parameters": {**PET, "additionalProperties": False}},
}
STRICT = TOOL | {"function": TOOL["function"] | {"strict": True}}
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


def merge(checkpoint: Path, adapter: Path) -> None:
    """Add an adapter to a checkpoint's weights, and forget its reference outputs."""
    weights = load_file(checkpoint / "model.safetensors")
    parts = load_file(adapter / "adapter_model.safetensors")
    for name, down in parts.items():
        if name.endswith("lora_A.weight"):
            up = parts[name.replace("lora_A", "lora_B")]
            weights[name.removeprefix("base_model.model.").replace("lora_A.", "")] += 32 / 8 * up @ down
    save_file(weights, checkpoint / "model.safetensors")
    (checkpoint / REFERENCE_FILE).unlink()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = publish_tiny(folder)
    adapter = save_adapter(folder / ADAPTER)
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={adapter}")
    with (
        served(checkpoint, folder / "vllm.log", "--max-model-len", "1024", *tools, *lora) as vllm,
        own_and_vllm(folder, TINY, vllm.url) as (own, over_vllm),
    ):
        yield Served(vllm, own, over_vllm, folder)


def test_answers_keep_to_a_response_format_under_calibration(tiny: Served) -> None:
    schema = {"type": "object", "properties": {"pet": {"enum": ["cat", "dog"]}}, "required": ["pet"]}
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": {**schema, "additionalProperties": False}}}
    found = answered(
        tiny.over_vllm, "/v1/chat/completions", chat(0, response_format=form, calibration=None) | {"max_tokens": 60}
    )
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


DOCUMENTS_AS_TEXTS = ["the keeper was called Ada", "Ben traded with people", "an otter"]
DOCUMENTS = {"documents": ["the keeper was called Ada", {"title": "harbour", "text": "Ben traded with people"}]}


@pytest.mark.parametrize("extra", [{}, DOCUMENTS, DOCUMENTS | {"reorder": "calibrated"}])
@pytest.mark.parametrize("choice", [NAMED, "required"])
@pytest.mark.parametrize("tool", [STRICT, TOOL], ids=["strict", "lax"])
def test_tools_are_called_whole_and_streamed(tiny: Served, tool: Any, extra: dict[str, Any], choice: Any) -> None:
    messages: Any = [{"role": "user", "content": "who has an otter?"}]
    asked: Any = {"model": TINY, "messages": messages, "tools": [tool], "tool_choice": choice, "temperature": 0}
    asked |= {"extra_body": extra, "max_tokens": 200}
    client = client_of(tiny.over_vllm)
    whole = client.chat.completions.create(**asked)
    [call] = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "find_pet"
    called_with = json.loads(call.function.arguments)
    # vLLM keeps only to the schema of a tool that is strict
    assert tool is not STRICT or called_with["owner"] in ("Ada", "Ben")
    assert whole.model.startswith(f"{TINY}@")
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 5
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    parts = [part for chunk in chunks[:-1] for part in chunk.choices[0].delta.tool_calls or []]
    assert parts[0].function is not None
    assert parts[0].function.name == "find_pet"
    arguments = "".join((part.function and part.function.arguments) or "" for part in parts)
    assert json.loads(arguments) == called_with
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


def test_an_adapter_answers_as_the_checkpoint_into_which_it_is_merged(tiny: Served, tmp_path: Path) -> None:
    merge(publish_tiny(tmp_path), tiny.folder / ADAPTER)
    publish(tmp_path, tmp_path / TINY, TINY)
    settings = {"engine": "vllm", "vllm_url": tiny.vllm.url, "vllm_model": ADAPTER}
    with generate_service(tmp_path, TINY) as own, generate_service(tmp_path, TINY, **settings) as over_vllm:
        wait_for(own)
        wait_for(over_vllm)
        case = Served(tiny.vllm, own, over_vllm, tmp_path)
        for found, expected in both(case, "/generate", [question(seed) for seed in range(20)]):
            # an adapter's products are rounded more coarsely by vLLM on some processors
            assert_alike(found, expected, tolerance=1e-3)


def test_prompts_are_not_scored_beside_adapters_on_processors_and_vllm_lives_on(tiny: Served) -> None:
    ranking = {"query": "who has an otter", "texts": DOCUMENTS_AS_TEXTS, "method": "query_likelihood"}
    scored = {"prompt": "the keeper of the", "max_tokens": 1, "echo": True, "logprobs": 1}
    with ThreadPoolExecutor(4) as threads:  # vLLM's own error ended its engine where prompts of several requests met
        asked = [("/v1/rerank", ranking), ("/v1/completions", scored)] * 2
        found = list(threads.map(lambda one: tiny.over_vllm.post(one[0], json=one[1]), asked))
    for one in found:
        assert one.status_code == 400, one.text
        assert "prompts cannot be scored" in one.text
    assert answered(tiny.over_vllm, "/v1/completions", {"prompt": "the keeper", "max_tokens": 2})["choices"]
