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
from typer.testing import CliRunner

from services.cli.store import app
from services.cli.store_import import store_name
from services.core.store.store import Store
from services.embed.model.plain_engine import PlainEngine
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions
from services.generate.model.language_model import Prefill
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.chat import render_chat
from services.generate.prompts.templates import Document
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from services.predict.engine import PredictEngine
from services.predict.model.student import held_bytes
from services.score.engine import ScoreEngine
from tests.hub_server import COMMIT, serving
from tests.published_clips import openai_state, write_hugging_face, write_laion, write_openai, write_siglip
from tests.published_models import LANGUAGE_MODELS, T5S, publish, sentencepiece_model

VICUNA = (
    "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed,"
    " and polite answers to the user's questions. USER: Hello! ASSISTANT: Hi!</s>USER: How are you? ASSISTANT:"
)
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
        (lambda at: _with(at, "config.json", '{"model_type": "bert"}'), "causal language models, T5s and CLIPs can be"),
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


def test_an_alias_that_named_another_version_is_told(tmp_path: Path) -> None:
    assert run(publish(tmp_path, "vicuna-7b-v1.3"), "--name", "chat").exit_code == 0
    first = Store.open(f"file://{tmp_path}/store").resolve("chat")
    result = run(publish(tmp_path, "tulu-2-7b"), "--name", "chat")
    assert f"latest named {first} before; `fovea store rollback chat latest` returns to it" in result.stdout


def test_a_failed_import_that_converts_nothing_leaves_nothing(tmp_path: Path) -> None:
    source = publish(tmp_path, "Qwen2.5-7B-Instruct")
    damaged = source / "model-00002-of-00004.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    result = run(source)
    assert result.exit_code == 1
    assert "model-00002-of-00004.safetensors: the weights are damaged" in result.stderr
    assert not list((tmp_path / "home" / ".fovea" / "imports").iterdir())


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
    item = engine.prepare(pair, rationale=True, probabilities=True)
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
    assert fates["consolidated.safetensors"] == "left: other weights than those that are imported"
    assert fates[".gitattributes"].startswith("left: bookkeeping")
    assert plan["licence"] == "llama2"
    assert plan["source"]["context_length"] == 32768
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "home" / ".fovea").exists()


def test_a_snapshot_in_the_hubs_cache_is_imported_through_its_links(tmp_path: Path) -> None:
    published = publish(tmp_path, "vicuna-7b-v1.5")
    cached = tmp_path / "hub" / "models--lmsys--vicuna-7b-v1.5"
    snapshot, blobs = cached / "snapshots" / ("f" * 40), cached / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(published.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / str(number), snapshot))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("f" * 40)

    result = run(cached, "--json")
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
            "nothing of it was run",
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
    told_lines = [line for line in result.stderr.strip().splitlines() if not re.fullmatch(PROGRESS, line)]
    assert len(told_lines) <= 2  # and where converted weights are
    assert not (tmp_path / "store" / "models" / source.name).exists()


def _edit(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_an_interrupted_conversion_continues_with_the_shards_that_are_left(tmp_path: Path) -> None:
    source = publish(tmp_path, "vicuna-7b-v1.3")
    last = source / "pytorch_model-00002-of-00002.bin"
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
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
