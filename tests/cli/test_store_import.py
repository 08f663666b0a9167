"""`fovea store import` of folders in the layouts in which models are published."""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from services.cli.store import app
from services.cli.store_import import store_name
from services.core.store.store import Store
from services.embed.model.plain_engine import PlainEngine
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions
from services.generate.imports.language_model import LanguageModelImport
from services.generate.model.language_model import Prefill
from services.generate.model.profile import OFF, CalibrationProfile, paper_profile, read_profile
from services.generate.prompts.chat import render_chat
from services.generate.prompts.templates import Document
from services.jobs.imports.source import open_source
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from services.predict.engine import PredictEngine
from services.predict.model.student import held_bytes
from services.score.engine import ScoreEngine
from tests.hub_server import COMMIT, serving
from tests.published_clips import openai_state, write_hugging_face, write_laion, write_openai, write_siglip
from tests.published_instructblip import write_instructblip
from tests.published_llava import write_llava
from tests.published_models import LANGUAGE_MODELS, T5S, publish, sentencepiece_model
from tests.published_qwen3_vl import write_qwen3_vl_embedding
from tests.published_rerankers import (
    CROSS_ENCODERS,
    MXBAI_RERANK,
    QWEN3_RERANKER,
    QWEN3_VL_RERANKER,
    publish_reranker,
)

VICUNA = (
    "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed,"
    " and polite answers to the user's questions. USER: Hello! ASSISTANT: Hi!</s>USER: How are you? ASSISTANT:"
)
MADE_PROFILE = "made of the settings published for 7B chat models"
PROGRESS = r"\w+: \d+ of \d+.*"  # which slow machines tell more often
TALK = (("user", "Hello!"), ("assistant", "Hi!"), ("user", "How are you?"))
DOCUMENTS = (
    Document("Three brothers lit the lighthouse.", title="The coast"),
    Document("Ships waited in the harbour until the fog had lifted."),
)


@dataclass(frozen=True)
class Expected:
    """The format of TALK, the tokens that end an answer and the length with which a published model is served."""

    prompt: str
    ends: tuple[str, ...]
    context_length: int
    licence: str = "llama2"


EXPECTED: Mapping[str, Expected] = {
    "vicuna-7b-v1.3": Expected(VICUNA, ("</s>",), 2048),
    "vicuna-7b-v1.5": Expected(VICUNA, ("</s>",), 4096),
    "vicuna-7b-v1.5-16k": Expected(VICUNA, ("</s>",), 16384),
    "tulu-2-7b": Expected(
        "<|user|>\nHello!\n<|assistant|>\nHi!</s>\n<|user|>\nHow are you?\n<|assistant|>\n", ("</s>",), 8192
    ),
    "Mistral-7B-Instruct-v0.2": Expected(
        "<s>[INST] Hello! [/INST] Hi!</s>[INST] How are you? [/INST]", ("</s>",), 32768
    ),
    "Qwen2.5-7B-Instruct": Expected(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n",
        ("<|im_end|>", "<|endoftext|>"),
        32768,
    ),
    "Llama-3.1-8B-Instruct": Expected(
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHow are you?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        131072,
    ),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, so that no test finds another's imports or store."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FOVEA_STORE_URL", f"file://{tmp_path}/store")
    return tmp_path


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["import", *map(str, arguments)])


def imported(tmp_path: Path, source: Path, *arguments: str) -> Path:
    """Import a folder; returns the checkpoint as a service fetches it."""
    result = run(source, "--json", *arguments)
    assert result.exit_code == 0, result.output
    version = json.loads(result.stdout)
    store = Store.open(f"file://{tmp_path}/store")
    return store.fetch(version["name"], version["id"], tmp_path / "copies")


def prompt_of(engine: GenerateEngine) -> str:
    messages = [{"role": role, "content": content} for role, content in TALK]
    return "".join(piece.text for piece in render_chat(engine.processor.tokenizer, messages))


def logits_of(engine: GenerateEngine, ids: tuple[int, ...]) -> torch.Tensor:
    model = engine._model
    return model.prefill([Prefill(model.new_cache(len(ids)).open(len(ids)), ids)])[0].logits


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_a_published_cross_encoder_is_a_reranker_of_generate(tmp_path: Path, name: str) -> None:
    source = publish_reranker(tmp_path, name)
    plan = json.loads(run(source, "--dry-run", "--json").stdout)
    assert (plan["kind"], plan["services"], plan["licence"]) == ("cross-encoder", ["generate"], "apache-2.0")
    assert plan["source"]["context_length"] == (8192 if "modernbert" in name else 512)
    taken = {path.name for path in imported(tmp_path, source).iterdir()}
    assert taken >= {"config.json", "tokenizer.json", "model.safetensors", "reference.json"}
    assert not taken & {"pytorch_model.bin", "vocab.txt", "sentencepiece.bpe.model", "onnx"}


@pytest.mark.parametrize(("name", "is_told"), [(QWEN3_RERANKER, False), ("mine", True), ("mine", False)])
def test_a_qwen3_reranker_is_known_by_its_name_or_its_prompt(tmp_path: Path, name: str, is_told: bool) -> None:
    source = publish_reranker(tmp_path, QWEN3_RERANKER).rename(tmp_path / name)
    if is_told:
        task = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
        (source / "chat_template.jinja").write_text(f"<|im_start|>system\n{task}<|im_end|>\n")
    plan = json.loads(run(source, "--dry-run", "--json").stdout)
    is_known = is_told or name == QWEN3_RERANKER
    assert (plan["kind"], plan["services"]) == ("qwen3-reranker" if is_known else "causal-lm", ["generate"])
    assert plan["source"]["context_length"] == (8192 if is_known else 40960)


def test_an_mxbai_rerank_is_a_reranker_of_generate(tmp_path: Path) -> None:
    source = publish_reranker(tmp_path, MXBAI_RERANK)
    plan = json.loads(run(source, "--dry-run", "--json").stdout)
    assert (plan["kind"], plan["services"]) == ("mxbai-rerank-v2", ["generate"])
    assert plan["source"]["context_length"] == 8192
    assert "calibration" not in plan["source"]


def test_qwen3_reranker_is_imported_as_it_is_published(tmp_path: Path) -> None:
    taken = {path.name for path in imported(tmp_path, publish_reranker(tmp_path, QWEN3_RERANKER)).iterdir()}
    assert taken >= {"config.json", "tokenizer.json", "model.safetensors", "reference.json"}
    assert not taken & {"calibration.json", "vocab.json", "merges.txt"}


def test_qwen3_vl_reranker_is_imported_with_what_its_images_need(tmp_path: Path) -> None:
    source = publish_reranker(tmp_path, QWEN3_VL_RERANKER)
    plan = json.loads(run(source, "--dry-run", "--json").stdout)
    assert (plan["kind"], plan["services"], plan["licence"]) == ("qwen3-vl-reranker", ["generate"], "apache-2.0")
    assert (plan["source"]["context_length"], plan["source"]["dtype"]) == (10245, "bfloat16")
    taken = {path.name for path in imported(tmp_path, source).iterdir()}
    assert taken >= {"config.json", "tokenizer.json", "preprocessor_config.json", "model.safetensors", "reference.json"}
    assert not taken & {"scripts", "vocab.json", "video_preprocessor_config.json", "vlm_embedding.json"}


@pytest.mark.parametrize(
    ("file", "changed", "told"),
    [
        ("config.json", {"quantization_config": {"quant_method": "awq"}}, "quantised weights are not served"),
        ("config.json", {"auto_map": {"AutoModel": "x.y"}}, "auto_map"),
        ("preprocessor_config.json", {"image_processor_type": "ViTImageProcessor"}, "preprocessor_config.json"),
        ("preprocessor_config.json", None, "has no preprocessor_config.json"),
        ("tokenizer.json", None, "has no tokenizer.json"),
    ],
)
def test_a_qwen3_vl_reranker_that_would_not_be_served_rightly_is_refused(
    tmp_path: Path, file: str, changed: dict[str, Any] | None, told: str
) -> None:
    source = publish_reranker(tmp_path, QWEN3_VL_RERANKER)
    if changed is None:
        (source / file).unlink()
    else:
        (source / file).write_text(json.dumps({**json.loads((source / file).read_text()), **changed}))
    result = run(source)
    assert (result.exit_code, told in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, "id2label has 2 labels: a reranker has one"),
        ({"architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3"}, "none of bert, modernbert"),
        ({"auto_map": {"AutoModel": "x.y"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights are not served"),
    ],
)
def test_a_classifier_that_is_no_reranker_is_refused(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    source = publish_reranker(tmp_path, "ms-marco-MiniLM-L6-v2")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **changed}))
    result = run(source)
    assert (result.exit_code, told in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize("length", [3, "many", [512]])
def test_a_cross_encoder_whose_length_is_none_is_refused_with_the_file(tmp_path: Path, length: Any) -> None:
    source = publish_reranker(tmp_path, "ms-marco-MiniLM-L6-v2")
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
    result = run(source)
    assert result.exit_code == 1
    assert "tokenizer_config.json: " in result.stderr


def test_a_cross_encoder_without_a_fast_tokenizer_is_refused_with_the_way_on(tmp_path: Path) -> None:
    source = publish_reranker(tmp_path, "ms-marco-MiniLM-L6-v2")
    (source / "tokenizer.json").unlink()
    result = run(source)
    assert result.exit_code == 1
    assert "has no tokenizer.json: load and save its tokenizer once with transformers" in result.stderr


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_published_language_model_is_served_as_its_makers_serve_it(tmp_path: Path, name: str) -> None:
    source, expected = publish(tmp_path, name), EXPECTED[name]
    engine = GenerateEngine.load(imported(tmp_path, source), EngineOptions())
    config, tokenizer = engine._model.config, engine.processor.tokenizer

    assert prompt_of(engine) == expected.prompt
    assert config.eos_token_ids == set(tokenizer.convert_tokens_to_ids(expected.ends))
    assert config.max_model_len == expected.context_length

    own = transformers().AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = tuple((7 * number) % 400 + 3 for number in range(300))
    with torch.inference_mode():
        theirs = own(torch.tensor([ids])).logits[0, -1]
    assert (logits_of(engine, ids) - theirs).abs().max() < 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_documents_are_located_exactly_in_a_published_models_prompt(tmp_path: Path, name: str) -> None:
    engine = GenerateEngine.load(imported(tmp_path, publish(tmp_path, name)), EngineOptions())
    profile = CalibrationProfile(enabled=True, layers=(2, 3), rel_layers=(2, 3), temperature=1e-3)
    asked = engine.processor.prepare_question(
        "Who lit the lighthouse?", DOCUMENTS, AnswerOptions(max_tokens=3, calibration=profile)
    )
    ids, tokenizer = asked.prompt.input_ids, engine.processor.tokenizer
    for number, (document, (start, stop)) in enumerate(zip(DOCUMENTS, asked.prompt.spans, strict=True), 1):
        text = tokenizer.decode(ids[start:stop])
        title = f"(Title: {document.title})" if document.title else ""
        assert text.strip() == f"Document [{number}]{title} {document.text}"
    events = engine.admit([asked])
    while engine.num_running:
        events += [*(engine.prepare(engine.preparing[0]) if engine.preparing else ()), *engine.step()]
    assert events[-1][2]


def test_the_fast_tokenizer_of_a_sentencepiece_model_gives_its_tokens(tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    tokenizer = GenerateEngine.load(
        imported(tmp_path, publish(tmp_path, "vicuna-7b-v1.3")), EngineOptions()
    ).processor.tokenizer
    theirs = SentencePieceProcessor(model_proto=sentencepiece_model("bpe"))
    for text in ("the lighthouse", "  two spaces", "", "Zoë ☃\n\n\tx 1789", "USER: hello ASSISTANT:", "▁"):
        assert tokenizer(text, add_special_tokens=False).input_ids == theirs.encode(text)
    assert tokenizer("the").input_ids == [1, *theirs.encode("the")]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda at: at / "nothing", "there is no "),
        (lambda at: "lmsys/vicuna-7b-v1.5", "did you mean hf://lmsys/vicuna-7b-v1.5?"),
        (lambda at: "https://huggingface.co/lmsys/vicuna-7b-v1.5", "did you mean hf://lmsys/vicuna-7b-v1.5?"),
        (lambda at: at, "is an empty folder"),
        (lambda at: _with(at, "adapter_config.json", "{}"), "merge it into its model first"),
        (lambda at: _with(at, "model-q4.gguf", "GGUF"), "GGUF is llama.cpp's own format"),
        (
            lambda at: _with(at, "config.json", '{"model_type": "bert"}'),
            "causal language and vision-language models, re",
        ),
        (lambda at: _with(at, "config.json", '{"model_type": "siglip"}'), "timm/ViT-B-16-SigLIP"),
        (lambda at: "hf://no", "is not of the form hf://owner/name"),
    ],
)
def test_a_source_that_is_no_model_to_serve_is_told_apart(tmp_path: Path, make: Any, told: str) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    result = run(make(folder))
    assert (result.exit_code, told in result.stderr) == (1, True), result.stderr


def _with(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder


def test_a_model_that_a_containers_limit_does_not_hold_is_published_without_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("services.core.memory.MEMORY_LIMIT", limit)
    limit.write_text("50000")
    for file, text in (("memory.current", "49000"), ("memory.stat", "inactive_file 0\n")):
        limit.with_name(file).write_text(text)
    result = run(publish(tmp_path, "vicuna-7b-v1.3"), "--name", "chat")
    assert result.exit_code == 0, result.output
    assert re.search("published without reference outputs: loading it takes .*B, and 1.0 kB are free", result.stderr)
    store = Store.open(f"file://{tmp_path}/store")
    assert "reference.json" not in store.manifest("chat", store.resolve("chat")).files


def test_an_alias_that_named_another_version_is_told(tmp_path: Path) -> None:
    assert run(publish(tmp_path, "vicuna-7b-v1.3"), "--name", "chat").exit_code == 0
    first = Store.open(f"file://{tmp_path}/store").resolve("chat")
    result = run(publish(tmp_path, "tulu-2-7b"), "--name", "chat")
    assert f"latest named {first} before; `fovea store rollback chat latest` returns to it" in result.stdout


def test_an_import_that_is_done_once_leaves_what_was_promoted_since_until_it_has_another_mark(tmp_path: Path) -> None:
    source, store = publish(tmp_path, "vicuna-7b-v1.3"), Store.open(f"file://{tmp_path}/store")
    once = ("--name", "chat", "--no-reference", "--once")
    assert run(source, *once, "source-a").exit_code == 0
    first = store.resolve("chat")
    assert store.resolve("chat", "source-a") == first
    assert run(publish(tmp_path, "tulu-2-7b"), "--name", "chat", "--no-reference").exit_code == 0
    promoted = store.resolve("chat")

    # Nothing is read of the source either: the Hub may be away by now.
    again = run("hf://nobody/nothing", *once, "source-a")

    assert again.exit_code == 0, again.output
    assert again.stdout == "chat@source-a is there: nothing is done\n"
    assert store.resolve("chat") == promoted != first
    assert run(source, *once, "source-b").exit_code == 0
    assert store.resolve("chat") == first
    unnamed = run(source, "--once", "source-a")
    assert (unnamed.exit_code, "--once requires --name" in unnamed.stderr) == (2, True)


def test_a_failed_import_that_converts_nothing_leaves_nothing(tmp_path: Path) -> None:
    source = publish(tmp_path, "Qwen2.5-7B-Instruct")
    damaged = source / "model-00002-of-00004.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    result = run(source)
    assert result.exit_code == 1
    assert "model-00002-of-00004.safetensors: the weights are damaged" in result.stderr
    assert not (tmp_path / "home" / ".fovea" / "imports").exists()


@pytest.mark.process
def test_two_imports_of_one_source_at_once_both_succeed(tmp_path: Path) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.3")
    command = [sys.executable, "-m", "services.cli.main", "store", "import", str(source), "--no-reference", "--name"]
    both = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in ("one", "two")]
    for process in both:
        _, told = process.communicate()
        assert process.returncode == 0, told
    assert not list((tmp_path / "home" / ".fovea" / "imports").iterdir())


def test_a_chat_template_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    result = run(publish(tmp_path, "tulu-2-7b"), "--chat-template", template, "--dry-run")
    assert (result.exit_code, "bad.jinja, line 2: unexpected '}'" in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize("name", T5S)
def test_a_published_t5_answers_the_task_that_a_file_describes(tmp_path: Path, name: str) -> None:
    task = tmp_path / "tickets.yaml"
    task.write_text("task: tickets\nfields: [subject]\nlabels: [billing, bug]\n")
    source = publish(tmp_path, name)
    assert f"serve it: FOVEA_PREDICT_MODELS={name} fovea up" in run(source, "--task", task).output
    folder = imported(tmp_path, source, "--task", str(task), "--label-prefix", "classify: ")
    description = json.loads((folder / "task.json").read_text())
    assert (description["labels"], description["label_prefix"]) == (["billing", "bug"], "classify: ")
    PredictEngine.load(folder, DeviceOptions()).self_check()
    assert held_bytes(folder, DeviceOptions()) > 0  # a service measures it before it loads it

    tokenizer = transformers().AutoTokenizer.from_pretrained(folder)
    text = "classify: the oldest lighthouse"
    expected = _spm_ids(text)
    assert tokenizer(text).input_ids == [*expected, 1]


def test_labels_and_prefixes_that_a_tokenizer_reads_alike_are_refused(tmp_path: Path) -> None:
    task = tmp_path / "tickets.yaml"
    task.write_text("task: tickets\nfields: [subject]\nlabels: [fine, bug, \ufb01ne]\n")
    source = publish(tmp_path, "flan-t5-base")
    refused = run(source, "--task", task)
    assert refused.exit_code == 1
    assert "labels: the model reads 'fine' and '\ufb01ne' as the same tokens" in refused.stderr
    refused = run(source, "--task", "esnli", "--label-prefix", "say: ", "--rationale-prefix", "\uff53ay: ")
    assert refused.exit_code == 1
    assert "label_prefix and rationale_prefix: the model reads 'say: ' and '\uff53ay: '" in refused.stderr


def test_a_student_of_the_papers_own_scripts_gives_labels_and_rationales(tmp_path: Path) -> None:
    source = publish(tmp_path, "checkpoint-10000")
    prefixes = ("--label-prefix", "predict: ", "--rationale-prefix", "explain: ")
    folder = imported(tmp_path, source, "--task", "esnli", *prefixes)
    engine = PredictEngine.load(folder, DeviceOptions("cpu", "float32"))
    assert engine.description.labels == ("entailment", "neutral", "contradiction")
    pair = {"premise": "A man sleeps.", "hypothesis": "He runs."}
    item = engine.prepare(pair, rationale=True)
    (prediction,) = engine.run_batch([item])
    assert prediction.rationale is not None

    model = transformers().T5ForConditionalGeneration.from_pretrained(source).eval()
    tokenizer = transformers().T5Tokenizer.from_pretrained(source)
    asked = tokenizer("predict: A man sleeps.</s>He runs.", return_tensors="pt")
    labels = [tokenizer(label).input_ids for label in engine.description.labels]
    place = next(place for place, tokens in enumerate(zip(*labels, strict=False)) if len(set(tokens)) > 1)
    answer = torch.tensor([[model.config.decoder_start_token_id, *labels[0][:place]]])
    with torch.inference_mode():
        logits = model(**asked, decoder_input_ids=answer).logits[0, -1]
    expected = logits[[label[place] for label in labels]].softmax(0).tolist()
    assert prediction.probabilities is not None
    assert list(prediction.probabilities.values()) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("task", ["esnl", "tickets.yaml"])
def test_a_task_that_is_neither_a_file_nor_published_is_refused(tmp_path: Path, task: str) -> None:
    result = run(publish(tmp_path, "flan-t5-base"), "--task", task)
    assert result.exit_code == 1
    assert task in result.stderr


def test_a_model_of_another_kind_does_not_take_a_models_name(tmp_path: Path) -> None:
    imported(tmp_path, publish(tmp_path, "tulu-2-7b"), "--name", "mine")
    result = run(publish(tmp_path, "flan-t5-base"), "--task", "svamp", "--name", "mine")
    assert result.exit_code == 1
    assert "mine@latest is a causal-lm, and this is a t5-student: give it a --name of its own" in result.stderr


def test_an_import_under_another_alias_says_how_that_one_is_served(tmp_path: Path) -> None:
    result = run(publish(tmp_path, "tulu-2-7b"), "--alias", "candidate", "--no-reference")
    assert "serve it: FOVEA_GENERATE_MODELS=tulu-2-7b@candidate fovea up" in result.output


def test_an_option_for_other_kinds_of_models_is_refused(tmp_path: Path) -> None:
    result = run(publish(tmp_path, "tulu-2-7b"), "--label-prefix", "predict: ")
    assert (result.exit_code, "--label-prefix does not apply to" in result.stderr) == (1, True), result.stderr


def _spm_ids(text: str) -> list[int]:
    from sentencepiece import SentencePieceProcessor

    ids: list[int] = SentencePieceProcessor(model_proto=sentencepiece_model("unigram")).encode(text)
    return ids


@pytest.mark.parametrize(
    ("name", "expected"), [("Größe 2", "grosse-2"), ("Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"), ("_x_", "x")]
)
def test_a_name_for_the_store_is_made_of_the_sources(name: str, expected: str) -> None:
    assert store_name(name) == expected


def test_a_t5_without_a_task_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    result = run(publish(tmp_path, "flan-t5-base"))
    assert result.exit_code == 1
    assert "give --task FILE" in result.output


def test_a_dry_run_tells_every_files_fate_and_publishes_nothing(tmp_path: Path) -> None:
    source = publish(tmp_path, "Mistral-7B-Instruct-v0.2")
    result = run(source, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    fates = {file["path"]: file["fate"] for file in plan["files"]}
    assert set(fates) == {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert fates["LICENSE"] == "taken as text"
    assert fates["config.json"] == fates["model-00002-of-00003.safetensors"] == "taken"
    assert fates["consolidated.safetensors"] == fates[".gitattributes"] == "left: not needed for serving"
    assert plan["licence"] == "llama2"
    assert plan["source"]["context_length"] == 32768
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "home" / ".fovea").exists()


def test_the_calibration_profile_of_a_language_model_is_imported_with_it(tmp_path: Path) -> None:
    source = publish(tmp_path, "Mistral-7B-Instruct-v0.2")
    profile = CalibrationProfile(enabled=True, layers=(2, 3), rel_layers=(2, 3), temperature=1e-3)
    (source / "calibration.json").write_text(profile.model_dump_json())
    fates = {file["path"]: file["fate"] for file in json.loads(run(source, "--dry-run", "--json").stdout)["files"]}
    assert fates["calibration.json"] == "taken"
    assert GenerateEngine.load(imported(tmp_path, source), EngineOptions()).processor.profile == profile
    (source / "calibration.json").write_text("{}")
    refused = run(source)
    assert (refused.exit_code, "calibration.json" in refused.stderr) == (1, True)


# Sizes in the configurations of the published models.
LLAMA_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA_13B = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}


def publish_at_size(tmp_path: Path, name: str, sizes: Mapping[str, int]) -> Path:
    """Publish a model whose configuration has the sizes, with holes in place of its weights; returns its folder."""
    source = publish(tmp_path, name)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **sizes, "vocab_size": 32000}))
    for shard in source.glob("*.bin"):
        with shard.open("wb") as file:
            file.truncate(14 * 10**9)
    return source


@pytest.mark.parametrize("name", ["vicuna-7b-v1.5", "vicuna-7b-v1.5-16k", "tulu-2-7b"])
def test_a_chat_model_of_the_papers_size_is_calibrated_as_published(tmp_path: Path, name: str) -> None:
    source = publish_at_size(tmp_path, name, LLAMA_7B)
    plan = json.loads(run(source, "--dry-run", "--json").stdout)
    assert {"path": "calibration.json", "size_bytes": None, "fate": MADE_PROFILE} in plan["files"]
    assert plan["source"]["calibration"] == (
        "as published: last half of the layers, t = 5e-5, exact (a pass for each document); see fovea calibrate"
    )
    folder = tmp_path / "made"
    folder.mkdir()
    LanguageModelImport(open_source(str(source))).build(folder)
    profile = read_profile(folder)
    assert profile == paper_profile(32)
    assert (profile.enabled, profile.source, profile.gain) == (True, "published", {})


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("vicuna-7b-v1.5", {}),  # what a name says of the size decides nothing
        ("tulu-2-7b", {}),
        ("tulu-2-7b", LLAMA_13B),
    ],
)
def test_a_chat_model_of_another_size_is_imported_without_a_profile(
    tmp_path: Path, name: str, sizes: Mapping[str, int]
) -> None:
    source = publish_at_size(tmp_path, name, sizes) if sizes else publish(tmp_path, name)
    plan = json.loads(run(source, "--dry-run", "--json").stdout)
    assert "calibration.json" not in {file["path"] for file in plan["files"]}
    assert plan["source"]["calibration"] == "none; fovea calibrate chooses one"


def test_a_model_of_the_papers_size_without_a_chat_template_or_with_its_own_profile_keeps_what_it_has(
    tmp_path: Path,
) -> None:
    source = publish_at_size(tmp_path, "vicuna-7b-v1.5", LLAMA_7B)
    base = source.rename(tmp_path / "llama-2-7b")
    plan = json.loads(run(base, "--dry-run", "--json").stdout)
    assert (plan["source"]["num_parameters"], plan["source"]["chat_template"]) == (6_738_415_616, "none")
    assert "calibration.json" not in {file["path"] for file in plan["files"]}
    (base / "calibration.json").write_text(OFF.model_dump_json())
    plan = json.loads(run(base, "--dry-run", "--json", "--chat-template", "tulu").stdout)
    assert "calibration.json" in {file["path"] for file in plan["files"] if file["fate"] == "taken"}
    assert plan["source"]["calibration"] == "the source's own"


def cached(tmp_path: Path, repository: str, published: Path) -> Path:
    """Move a folder into the Hub's cache, where its files are links to blobs whose names tell nothing."""
    made = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot, blobs = made / "snapshots" / ("f" * 40), made / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in published.rglob("*") if path.is_file())):
        file.rename(blobs / str(number))
        link = snapshot / file.relative_to(published)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    (made / "refs").mkdir()
    (made / "refs" / "main").write_text("f" * 40)
    return made


@pytest.mark.parametrize(
    ("repository", "write"),
    [
        ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", write_laion),
        ("openai/clip-vit-large-patch14-336", write_hugging_face),
        ("timm/ViT-B-16-SigLIP", write_siglip),
        ("Salesforce/instructblip-vicuna-7b", write_instructblip),
        ("llava-hf/llava-1.5-7b-hf", write_llava),
        ("Qwen/Qwen3-VL-Embedding-2B", write_qwen3_vl_embedding),
    ],
)
def test_weights_are_read_by_their_own_names_where_the_hubs_cache_has_others(
    tmp_path: Path, repository: str, write: Callable[[Path], Any]
) -> None:
    write(tmp_path / "published")
    result = run(cached(tmp_path, repository, tmp_path / "published"), "--json")
    assert result.exit_code == 0, result.output


def test_a_snapshot_in_the_hubs_cache_is_imported_through_its_links(tmp_path: Path) -> None:
    result = run(cached(tmp_path, "lmsys/vicuna-7b-v1.5", publish(tmp_path, "vicuna-7b-v1.5")), "--json")
    assert result.exit_code == 0, result.output
    version = json.loads(result.stdout)
    manifest = Store.open(f"file://{tmp_path}/store").manifest(version["name"], version["id"])
    assert manifest.source is not None
    assert manifest.source["uri"] == "hf://lmsys/vicuna-7b-v1.5"
    assert manifest.source["revision"] == "f" * 40
    assert manifest.source["chat_template"] == "the family's: vicuna_v1.1"


@pytest.mark.parametrize("name", ["README.md", "config.json", "tokenizer_config.json", "LICENSE"])
def test_a_file_that_is_too_large_to_be_read_whole_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.5")
    with (source / name).open("wb") as file:
        file.truncate(2**40)  # of which nothing is on the disk
    result = run(source)
    assert result.exit_code == 1
    assert re.search(rf"{name}(\.txt)? has {2**40} bytes; a (JSON|text) file may have", result.stderr), result.stderr


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE.md", "generation_config.json", "special_tokens_map.json", "more"])
def test_a_link_out_of_a_source_is_refused_and_nothing_of_its_target_published(tmp_path: Path, name: str) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.5")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text('{"secret": 1}')
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(tmp_path / "private" if name == "more" else tmp_path / "private" / "key")
    result = run(source)
    assert result.exit_code == 1
    assert f"{name} links to" in result.stderr
    assert not (tmp_path / "store" / "models" / source.name).exists()


def test_a_link_within_a_source_is_followed(tmp_path: Path) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.5")
    (source / "licences").mkdir()
    (source / "licences" / "ours").write_text("Do what you like.")
    (source / "LICENSE").unlink(missing_ok=True)
    (source / "LICENSE").symlink_to(Path("licences", "ours"))
    assert (imported(tmp_path, source) / "LICENSE.txt").read_text() == "Do what you like."


Tensors = dict[str, torch.Tensor]


def _publisher(name: str) -> Callable[[Path], Path]:
    return lambda folder: publish(folder.parent, name)


def _writer(write: Callable[[Path], Any]) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        folder.mkdir()
        write(folder)
        return folder

    return written


# One source of each family that is imported: how it is made, and what its import needs.
FAMILIES: Mapping[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "tulu-2-7b": (_publisher("tulu-2-7b"), ()),
    "Qwen2.5-7B-Instruct": (_publisher("Qwen2.5-7B-Instruct"), ()),
    "flan-t5-base": (_publisher("flan-t5-base"), ("--task", "svamp")),
    "t5-v1_1-small": (_publisher("t5-v1_1-small"), ("--task", "svamp")),
    "laion": (write_laion, ()),
    "hugging-face-clip": (write_hugging_face, ()),
    "siglip": (write_siglip, ()),
    "llava": (_writer(write_llava), ()),
    "instructblip": (_writer(write_instructblip), ()),
    "qwen3-vl": (_writer(write_qwen3_vl_embedding), ()),
}


def _rewrite(source: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change what the files of a source's weights hold, and name it in their index."""
    files = [file for file in source.iterdir() if re.search(r"model.*\.(safetensors|bin)$", file.name)]
    mapped: dict[str, str] = {}
    for file in files:
        is_safe = file.suffix == ".safetensors"
        tensors = change(dict(load_file(file) if is_safe else torch.load(file, weights_only=True)))
        tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(tensors, file, metadata={"format": "pt"}) if is_safe else torch.save(tensors, file)
        mapped |= dict.fromkeys(tensors, file.name)
    for index in source.glob("*.index.json"):
        index.write_text(json.dumps({"metadata": {}, "weight_map": mapped}))


def _without_progress(told: str) -> list[str]:
    return [line for line in told.strip().splitlines() if not re.fullmatch(PROGRESS, line)]


def _weights_of(folder: Path) -> Tensors:
    return {name: weight for file in sorted(folder.glob("*.safetensors")) for name, weight in load_file(file).items()}


@pytest.mark.parametrize("wrapper", ["_orig_mod.module.", "model._orig_mod."])
@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_a_wrapper_are_left_out_of_what_is_published(tmp_path: Path, family: str, wrapper: str) -> None:
    make, options = FAMILIES[family]
    source = make(tmp_path / family)
    plain = _weights_of(imported(tmp_path, source, "--no-reference", "--name", "plain", *options))
    _rewrite(source, lambda tensors: {f"{wrapper}{name}": weight for name, weight in tensors.items()})
    found = _weights_of(imported(tmp_path, source, "--name", "wrapped", *options))
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize("part", ["_orig_mod.", "_fsdp_wrapped_module."])
def test_a_part_that_was_wrapped_alone_is_read_as_the_whole_model_is(tmp_path: Path, part: str) -> None:
    source = publish(tmp_path, "Qwen2.5-7B-Instruct")
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    plain = _weights_of(imported(tmp_path, source, "--name", "plain"))
    _rewrite(source, lambda tensors: {name.replace("model.", f"model.{part}"): w for name, w in tensors.items()})
    index = (source / "model.safetensors.index.json").read_bytes()
    assert _weights_of(imported(tmp_path, source, "--name", "part")).keys() == plain.keys()
    assert (source / "model.safetensors.index.json").read_bytes() == index  # which the checkpoint's was a link to
    assert before.keys() == {file.name for file in source.iterdir()}


def test_two_weights_that_are_one_without_their_wrapper_are_named(tmp_path: Path) -> None:
    source = publish(tmp_path, "Qwen2.5-7B-Instruct")
    _rewrite(source, lambda tensors: tensors | {f"_orig_mod.{name}": tensors[name] for name in tensors})
    assert re.search(r"(\S+) and _orig_mod\.\1 are both \1 without the names of wrappers", run(source).stderr)


def _first(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    """Change the embeddings of tokens."""
    names = re.compile(r"(.*\.)?(embed_tokens|shared|token_embedding|word_embeddings)\.weight")
    return {name: change(weight.clone()) if names.fullmatch(name) else weight for name, weight in tensors.items()}


def _poisoned(weight: torch.Tensor, value: float) -> torch.Tensor:
    weight[1, 2] = value
    return weight


NOT_FINITE = r"{name} has numbers that are not finite \(NaN or Inf\): 1 of \d+, the first at \[1, 2\]; export it from"
HARMS: Mapping[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "more rows": (
        lambda weight: torch.cat([weight, weight[:3]]),
        r"{name} is \[(\d+), \d+\], and \[\d+, \d+\] by the config.*: the vocabularies differ; set vocab_size to \1 if",
    ),
    "fewer rows": (lambda weight: weight[:-3], r"{name} is \[(\d+), \d+\].* set vocab_size to \1 if its tokenizer"),
    "transposed": (lambda weight: weight.T, r"{name} is \[(\d+), (\d+)\], and \[\2, \1\] by .*: it is transposed"),
    "NaN": (lambda weight: _poisoned(weight, float("nan")), NOT_FINITE),
    "Inf": (lambda weight: _poisoned(weight, float("-inf")), NOT_FINITE),
    "huge": (
        lambda weight: _poisoned(weight, 3e7),
        r"{name} (ranges from -.* to 3e\+07, and those of a tra|has numbers)",
    ),
    "integers": (lambda weight: weight.to(torch.int8), r"{name} is of (int8|I8), so it is quantised; import the model"),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("family", ["tulu-2-7b", "flan-t5-base", "laion", "siglip", "llava", "qwen3-vl"])
def test_weights_that_cant_be_served_are_named_with_what_is_wrong_and_the_cure(
    tmp_path: Path, family: str, harm: str
) -> None:
    make, options = FAMILIES[family]
    source = make(tmp_path / family)
    change, told = HARMS[harm]
    _rewrite(source, lambda tensors: _first(tensors, change))
    result = run(source, *options)
    name = r"\S*(embed_tokens|shared|token_embedding)\.weight"
    pattern = told.format(name=name).replace(r"\2", r"\3").replace(r"\1", r"\2")
    assert (result.exit_code, bool(re.search(pattern, result.stderr))) == (1, True), result.stderr
    assert source.name in result.stderr or "safetensors" in result.stderr or ".bin" in result.stderr
    assert str(tmp_path / "home") not in result.stderr.splitlines()[-1]  # a folder that is gone by now


TRANSFORMERS = ["tulu-2-7b", "Qwen2.5-7B-Instruct", "flan-t5-base", "llava", "qwen3-vl"]
Q, UP = re.compile(r".*(q_proj|SelfAttention\.q)\.weight"), re.compile(r".*(up_proj|wi_0)\.weight")


@pytest.mark.parametrize("family", TRANSFORMERS)
@pytest.mark.parametrize(
    ("part", "end", "more"), [(UP, ".weight", ".weight_scale"), (Q, ".weight", ".lora_A.weight")], ids=["scale", "LoRA"]
)
def test_a_layer_with_weights_that_the_configuration_does_not_know_is_refused(
    tmp_path: Path, family: str, part: re.Pattern[str], end: str, more: str
) -> None:
    make, options = FAMILIES[family]
    source = make(tmp_path / family)
    _rewrite(
        source,
        lambda tensors: (
            tensors | {name.removesuffix(end) + more: torch.ones(2, 2) for name in tensors if part.fullmatch(name)}
        ),
    )
    result = run(source, *options)
    assert result.exit_code == (0 if more.startswith(".lora") else 1), result.stderr


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_missing_weights_are_all_named_and_those_without_a_place_tell_nothing(tmp_path: Path, family: str) -> None:
    make, options = FAMILIES[family]
    source = make(tmp_path / family)
    _rewrite(source, lambda tensors: tensors | {"v_head.summary.weight": torch.ones(1, 3)})  # of TRL's training
    assert run(source, "--name", "whole", *options).exit_code == 0
    _rewrite(source, lambda tensors: {name: weight for name, weight in tensors.items() if not UP.fullmatch(name)})
    result = run(source, *options)
    assert result.exit_code == 1
    assert re.search(r"lacks weights of its model, '\S+0\S+\.weight', '\S+1\S+\.weight'", result.stderr), result.stderr


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_bytes", [0, 50, -100])
def test_a_file_that_was_cut_is_named_and_not_the_configuration(tmp_path: Path, family: str, num_bytes: int) -> None:
    make, options = FAMILIES[family]
    source = make(tmp_path / family)
    for file in source.iterdir():  # of two formats, the other one must not be taken for it
        if re.search(r"model.*\.(safetensors|bin)$", file.name):
            file.write_bytes(file.read_bytes()[:num_bytes])
    result = run(source, *options)
    (told,) = _without_progress(result.stderr)
    pattern = r"model\S*\.(safetensors|bin)(: the weights are damaged| ends too early).*(copy or download|it again)"
    assert (result.exit_code, bool(re.search(pattern, told))) == (1, True), told
    assert "config.json" not in told


@pytest.mark.parametrize("num_bytes", [0, -100])
def test_a_cut_file_of_openais_is_not_taken_for_one_of_a_training(tmp_path: Path, num_bytes: int) -> None:
    source = write_openai(tmp_path / "ViT-B-32.pt")
    source.write_bytes(source.read_bytes()[:num_bytes])
    result = run(source)
    assert result.exit_code == 1
    assert re.search(r"ViT-B-32\.pt ends too early, at \d+ bytes: copy or download it again", result.stderr)


def test_weights_that_were_mended_without_another_size_are_read_anew(tmp_path: Path) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.3")
    last = source / "pytorch_model-00002-of-00002.bin"
    sound = {file: file.read_bytes() for file in source.glob("*.bin")}
    _rewrite(source, lambda tensors: _first(tensors, lambda weight: _poisoned(weight, float("nan"))))
    torch.save({"a": torch.eye(2).to_sparse()}, last)
    assert run(source).exit_code == 1  # after the first file was converted
    for file, content in sound.items():
        file.write_bytes(content)
    result = run(source)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("family", ["Qwen2.5-7B-Instruct", "flan-t5-base", "siglip", "llava", "qwen3-vl"])
def test_a_tokenizer_with_tokens_that_the_embeddings_lack_is_refused(tmp_path: Path, family: str) -> None:
    make, options = FAMILIES[family]
    source = make(tmp_path / family)
    path = source / "tokenizer.json"
    content = json.loads(path.read_text())
    number = max([0, *(token["id"] for token in content["added_tokens"]), len(content["model"]["vocab"]) - 1])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"] += [
        {"id": number + place, "content": f"<new{place}>", **flags} for place in range(1, 700 - number)
    ]
    path.write_text(json.dumps(content))
    result = run(source, *options)
    told = r"tokenizer\.json: the token '<new\d+>' has the number (\d+), and the embeddings have \1 rows: take both"
    assert (result.exit_code, bool(re.search(told, result.stderr))) == (1, True), result.stderr


TEMPLATES: Mapping[str, tuple[str, str]] = {
    "syntax": ("{% for m in messages %}\n{{ m.content }\n{% endfor %}", "line 2"),
    "filter": ("\n{{ messages | nothing }}", "No filter named 'nothing'"),
    "own refusal": ("{{ raise_exception('only one turn') }}", "only one turn"),
    "undefined": ("{{ messages[0].nothing.here }}", "has no attribute 'nothing'"),
    "division": ("{{ 1 / 0 }}", "division by zero"),
    "include": ("{% include 'others' %}", "no loader"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
}


@pytest.mark.parametrize("fault", TEMPLATES)
@pytest.mark.parametrize("family", ["Qwen2.5-7B-Instruct", "qwen3-vl"])
def test_a_chat_template_that_writes_no_prompt_is_told_in_one_line(tmp_path: Path, family: str, fault: str) -> None:
    make, options = FAMILIES[family]
    source = make(tmp_path / family)
    template, told = TEMPLATES[fault]
    (source / "chat_template.json").unlink(missing_ok=True)
    (source / "chat_template.jinja").write_text(template)
    result = run(source, *options)
    (line,) = _without_progress(result.stderr)
    assert (result.exit_code, told in line, "template" in line) == (1, True, True), line


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (5, "tokenizer_config.json: chat_template is 5, and must be text"),
        ([{"name": "default", "template": "{{ x }"}], "tokenizer_config.json, line 1: unexpected '}'"),
    ],
)
def test_a_chat_template_in_the_tokenizers_configuration_is_checked_too(
    tmp_path: Path, given: object, told: str
) -> None:
    source = publish(tmp_path, "tulu-2-7b")
    _edit(source / "tokenizer_config.json", chat_template=given)
    assert told in run(source, "--dry-run").stderr


def test_a_chat_template_may_mark_what_is_generated_and_leave_loops(tmp_path: Path) -> None:
    template = tmp_path / "trained.jinja"
    template.write_text(
        "{% for m in messages %}{% generation %}[{{ m.content }}]{% endgeneration %}{% break %}{% endfor %}>"
    )
    source = publish(tmp_path, "tulu-2-7b")
    engine = GenerateEngine.load(imported(tmp_path, source, "--chat-template", str(template)), EngineOptions())
    assert prompt_of(engine) == "[Hello!]>"


class Opens:
    """Pickles to a call of os.system."""

    def __reduce__(self) -> Any:
        return os.system, ("touch run",)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda source: _edit(source / "config.json", auto_map={"AutoModel": "m.M"}), "nothing of a source is run"),
        (lambda source: (source / "pytorch_model-00002-of-00002.bin").unlink(), "its download is incomplete"),
        (lambda source: _edit(source / "config.json", model_type="mamba"), "the architecture 'mamba' is not served"),
        (
            lambda source: _edit(source / "config.json", quantization_config={"quant_method": "awq"}),
            "quantised weights (awq) are not served; import the model that they were made from",
        ),
        (lambda source: (source / "tokenizer.model").unlink(), "has no tokenizer"),
        (lambda source: (source / "tokenizer.model").write_bytes(b"no"), "is not a SentencePiece model"),
        (
            lambda source: (source / "pytorch_model-00001-of-00002.bin").write_bytes(b"version https://git-lfs.github"),
            "git lfs pull",
        ),
        (
            lambda source: (source / "pytorch_model-00001-of-00002.bin").write_bytes(pickle.dumps(Opens())),
            "no code was executed",
        ),
        (
            lambda source: torch.save(
                {"model.norm.weight": torch.zeros(1).expand(2**32)}, source / "pytorch_model-00001-of-00002.bin"
            ),
            "model.norm.weight [4294967296] repeats 4 stored bytes until they are 17179869184",
        ),
        (
            lambda source: torch.save(
                dict.fromkeys(map(str, range(9)), torch.zeros(2**18)), source / "pytorch_model-00001-of-00002.bin"
            ),
            "8 [262144] repeats 1048576 stored bytes until they are 9437184",
        ),
        (
            lambda source: torch.save(
                {"a": torch.eye(2).to_sparse()},
                source / "pytorch_model-00001-of-00002.bin",
            ),
            "a is not a dense tensor",
        ),
    ],
)
def test_a_source_that_would_not_be_served_rightly_is_refused_in_one_line(tmp_path: Path, harm: Any, told: str) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.3")
    harm(source)
    result = run(source)
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(_without_progress(result.stderr)) <= 2  # and where converted weights are
    assert not (tmp_path / "store" / "models" / source.name).exists()


def _edit(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_an_interrupted_conversion_continues_with_the_shards_that_are_left(tmp_path: Path) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.3")
    last = source / "pytorch_model-00002-of-00002.bin"
    whole = last.read_bytes()
    torch.save({"a": torch.eye(2).to_sparse()}, last)
    assert run(source).exit_code == 1
    (first,) = (tmp_path / "home" / ".fovea" / "imports").rglob("*.safetensors")
    assert first.name == "model-00001-of-00002.safetensors"
    written = first.stat().st_mtime_ns

    # the size is part of what an attempt is recognised by
    last.write_bytes(whole)
    assert run(source).exit_code == 0
    assert first.exists() is False or first.stat().st_mtime_ns == written


@pytest.mark.parametrize("given", ["file", "name"])
def test_a_chat_template_of_ones_own_replaces_the_models(tmp_path: Path, given: str) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>")
    folder = imported(
        tmp_path, publish(tmp_path, "tulu-2-7b"), "--chat-template", str(template) if given == "file" else "vicuna_v1.1"
    )
    engine = GenerateEngine.load(folder, EngineOptions())
    expected = "[user]Hello![assistant]Hi![user]How are you?>" if given == "file" else VICUNA
    assert prompt_of(engine) == expected


CLIPS: Mapping[str, Callable[[Path], Path]] = {
    "CLIP-ViT-B-32-laion2B-s34B-b79K": write_laion,
    "clip-vit-large-patch14-336": write_hugging_face,
    "ViT-B-32.pt": write_openai,
    "RN50.pt": partial(write_openai, is_resnet=True),
    "ViT-B-16-SigLIP": write_siglip,
}


@pytest.mark.parametrize("name", CLIPS)
def test_a_published_clip_is_served_by_two_services(tmp_path: Path, name: str) -> None:
    source = CLIPS[name](tmp_path / name)
    result = run(source)
    assert result.exit_code == 0, result.output
    served = source.stem.lower() if source.is_file() else name.lower()
    for setting in (f"FOVEA_SCORE_MODELS={served} ", f"FOVEA_EMBED_MODELS={served} "):
        assert f"serve it: {setting}fovea up" in result.output
    store = Store.open(f"file://{tmp_path}/store")
    folder = store.fetch(served, store.resolve(served), tmp_path / "copies")
    for engine in (PlainEngine.load(folder, DeviceOptions()), ScoreEngine.load_plain(folder, DeviceOptions())):
        engine.self_check()


def test_a_file_of_a_training_needs_the_name_of_its_architecture(tmp_path: Path) -> None:
    tuned = {f"module.{name}": weight for name, weight in openai_state().items()}
    torch.save({"epoch": 5, "name": "negclip", "state_dict": tuned}, tmp_path / "negclip.pt")
    result = run(tmp_path / "negclip.pt")
    assert (result.exit_code, "give --architecture" in result.stderr) == (1, True)


@pytest.mark.process
def test_a_repository_of_the_hub_is_imported_though_a_download_breaks_off(tmp_path: Path) -> None:
    published = publish(tmp_path, "vicuna-7b-v1.5")
    shard = "pytorch_model-00001-of-00002.bin"
    with serving({"lmsys/vicuna-7b-v1.5": published}, cut={shard: 1000}) as url:
        environment = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

        def ran(source: str) -> Any:
            command = [sys.executable, "-m", "services.cli.main", "store", "import", source, "--json"]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

        done = ran("hf://lmsys/vicuna-7b-v1.5")
        if done.returncode:  # it depends on the library's version whether it tries again by itself
            done = ran("hf://lmsys/vicuna-7b-v1.5")
        assert done.returncode == 0, done.stderr
        missing = ran("hf://lmsys/vicuna-7b-v9")
    version = json.loads(done.stdout)
    manifest = Store.open(f"file://{tmp_path}/store").manifest(version["name"], version["id"])
    assert manifest.source is not None
    assert (manifest.source["uri"], manifest.source["revision"]) == ("hf://lmsys/vicuna-7b-v1.5", COMMIT)
    assert manifest.licence == "llama2"
    assert missing.returncode == 1
    assert "there is no such repository" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1


def test_the_index_of_shards_that_are_converted_is_read_and_made_anew(tmp_path: Path) -> None:
    files = json.loads(run(publish(tmp_path, "vicuna-7b-v1.3"), "--dry-run", "--json").stdout)["files"]
    fates = {file["path"]: file["fate"] for file in files}
    assert fates["pytorch_model.bin.index.json"] == "read"
    assert [path for path, fate in fates.items() if fate == "taken as text"] == ["LICENSE"]
