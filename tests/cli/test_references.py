"""A version serves only if its weights answer what they answered where it was published, and never without sense."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from services.cli.store import app
from services.cli.store_import import NoReference, write_reference
from services.core.store.errors import InvalidCheckpoint
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.model.focallens_engine import FocalLensEngine
from services.generate.engine import EngineOptions, GenerateEngine
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from services.nn.reference_outputs import REFERENCE_FILE, TOLERANCES
from services.predict.engine import PredictEngine
from services.score.engine import ScoreEngine
from tests.core.serving.hostile_tokenizers import PANICKING, hostile_tokenizer
from tests.core.tiny_checkpoints import write_checkpoint
from tests.generate.tiny_models import tiny_tokenizer
from tests.nn.counted_gpu import GPU, CountedGPU

SERVICES = Path(__file__).parents[2] / "services"
STARTERS = {
    "focallens-clip": SERVICES / "embed/starter/focallens-shapes",
    "fsc-clip": SERVICES / "score/starter/fsc-clip-scenes",
    "t5-student": SERVICES / "predict/starter/word-problems",
    "causal-lm": SERVICES / "generate/starter/litm-facts",
}
KINDS = list(STARTERS)
CPU = DeviceOptions("cpu", "float32")


def load(kind: str, directory: Path, options: DeviceOptions = CPU, *, is_int8: bool = False) -> Any:
    if kind == "t5-student":
        return PredictEngine.load(directory, options, is_int8=is_int8)
    if kind == "causal-lm":
        return GenerateEngine.load(directory, EngineOptions(device=options))
    return (FocalLensEngine if kind == "focallens-clip" else ScoreEngine).load(directory, options)


def changed(kind: str, folder: Path, change: Callable[[str, Tensor], Tensor], *, has_reference: bool) -> Path:
    """The starter of a kind with other weights; 8-byte counters and the like stay."""
    directory = Path(shutil.copytree(STARTERS[kind], folder / "changed"))
    (weights_file,) = directory.glob("*.safetensors")
    weights = {
        name: change(name, tensor) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(weights_file).items()
    }
    save_file(weights, weights_file, metadata={"format": "pt"})
    if not has_reference:
        (directory / REFERENCE_FILE).unlink()
    return directory


def zeros(name: str, tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor)


def constant(name: str, tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, 0.02)


def enormous(name: str, tensor: Tensor) -> Tensor:
    return torch.full(tensor.shape, 1e20)


def scaled(name: str, tensor: Tensor) -> Tensor:
    return tensor.float() * 1e20


def not_numbers(name: str, tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, float("nan"))


def random(name: str, tensor: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(tensor.shape, generator=generator) * tensor.std(correction=0) + tensor.mean()


def shuffled(name: str, tensor: Tensor) -> Tensor:
    order = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(0))
    return tensor.flatten()[order].reshape(tensor.shape).contiguous()


@pytest.mark.parametrize("kind", KINDS)
def test_every_starter_has_a_reference_and_gives_it(kind: str) -> None:
    assert (STARTERS[kind] / REFERENCE_FILE).exists()
    load(kind, STARTERS[kind]).self_check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_holds_in_other_number_formats(kind: str) -> None:
    load(kind, STARTERS[kind], DeviceOptions("cpu", "bfloat16")).self_check()
    if kind == "t5-student":
        load(kind, STARTERS[kind], is_int8=True).self_check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_needs_no_number_format_that_apples_gpus_lack(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceOptions, "choose_device", lambda options: GPU)

    def give_outputs() -> None:
        engine = load(kind, STARTERS[kind])
        engine.reference_outputs(engine.reference_inputs())

    assert CountedGPU.of(give_outputs).reads


@pytest.mark.parametrize("change", [zeros, constant, enormous, scaled, not_numbers])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_no_training_leaves_behind_are_refused_also_without_a_reference(
    tmp_path: Path, kind: str, change: Callable[[str, Tensor], Tensor]
) -> None:
    directory = changed(kind, tmp_path, change, has_reference=False)

    with pytest.raises(BrokenModel):
        load(kind, directory).self_check()


@pytest.mark.parametrize("kind", KINDS)
def test_random_weights_are_refused(tmp_path: Path, kind: str) -> None:
    directory = changed(kind, tmp_path, random, has_reference=True)

    with pytest.raises(BrokenModel):
        load(kind, directory).self_check()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_those_of_the_reference_are_refused(tmp_path: Path, kind: str) -> None:
    directory = changed(kind, tmp_path, shuffled, has_reference=True)

    with pytest.raises(BrokenModel, match="differs from its reference"):
        load(kind, directory).self_check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_without_a_reference_serves(tmp_path: Path, kind: str) -> None:
    load(kind, changed(kind, tmp_path, lambda _, tensor: tensor, has_reference=False)).self_check()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"dtype": "float64", "inputs": ["a"], "outputs": [[1]]}',
        '{"dtype": "float32", "inputs": [], "outputs": []}',
        '{"dtype": "float32", "inputs": ["a"], "outputs": [[1], [2]]}',
        '{"dtype": "float32", "inputs": ["a"], "outputs": [[NaN]]}',
        json.dumps({"dtype": "float32", "inputs": ["a"] * 17, "outputs": [[1]] * 17}),
        json.dumps({"dtype": "float32", "inputs": ["a"], "outputs": [[0.5] * 9000]}),
        json.dumps({"dtype": "float32", "inputs": ["a" * 2**21], "outputs": [[1]]}),
        json.dumps({"dtype": "float32", "inputs": ["a text"], "outputs": [[0.5] * 3]}),
    ],
)
def test_a_reference_that_is_none_is_refused(tmp_path: Path, body: str) -> None:
    directory = changed("causal-lm", tmp_path, lambda _, tensor: tensor, has_reference=True)
    (directory / REFERENCE_FILE).write_text(body)

    with pytest.raises(BrokenModel):
        load("causal-lm", directory).self_check()


def test_references_tell_the_weights_of_two_trained_models_apart() -> None:
    """The margin between what rounding does and what other weights do."""
    one, other = (load("t5-student", SERVICES / "predict/starter" / name) for name in ("word-problems", "inferences"))
    inputs = one.reference_inputs()
    for row, foreign in zip(one.reference_outputs(inputs), other.reference_outputs(inputs), strict=True):
        numbers = min(len(row), len(foreign))
        distance = torch.dist(torch.tensor(row[:numbers]), torch.tensor(foreign[:numbers]))
        assert distance > max(TOLERANCES.values()) * torch.linalg.norm(torch.tensor(row[:numbers]))


def test_publishing_writes_the_reference_into_the_version(tmp_path: Path) -> None:
    directory = changed("t5-student", tmp_path, lambda _, tensor: tensor, has_reference=False)
    store = Store.open((tmp_path / "store").as_uri())
    store.publish("other", write_checkpoint(tmp_path / "other"), CheckpointInfo(kind="tiny"))  # no starters then

    done = CliRunner().invoke(app, ["publish", str(directory), "--store-url", store.label])

    assert (done.exit_code, done.stderr) == (0, "")
    manifest = store.manifest("word-problems", store.resolve("word-problems"))
    assert REFERENCE_FILE in manifest.files
    written = json.loads((directory / REFERENCE_FILE).read_text())
    packaged = json.loads((STARTERS["t5-student"] / REFERENCE_FILE).read_text())
    assert written["inputs"] == packaged["inputs"]


def test_publishing_weights_that_are_not_those_of_the_reference_is_refused(tmp_path: Path) -> None:
    directory = changed("t5-student", tmp_path, shuffled, has_reference=True)
    with pytest.raises(InvalidCheckpoint, match="differs from its reference"):
        write_reference("t5-student", directory)


def test_publishing_a_tokenizer_that_breaks_its_library_is_refused_before_it_is_read_here(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(STARTERS["causal-lm"], tmp_path / "hostile"))
    (directory / "tokenizer.json").write_text(json.dumps(hostile_tokenizer(PANICKING)))
    with pytest.raises(InvalidCheckpoint, match=r"its tokenizer\.json takes more than .* or breaks its library"):
        write_reference("causal-lm", directory)


def test_a_kind_that_no_service_runs_is_published_without_a_reference(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "toy")
    store = Store.open((tmp_path / "store").as_uri())
    store.publish("other", directory, CheckpointInfo(kind="tiny"))
    with pytest.raises(NoReference):
        write_reference("tiny", directory)

    done = CliRunner().invoke(
        app, ["publish", str(directory), "--kind", "tiny", "--name", "toy", "--store-url", store.label]
    )

    assert done.exit_code == 0
    assert "published without reference outputs" in done.stderr
    assert REFERENCE_FILE not in store.manifest("toy", store.resolve("toy")).files


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_its_service_can_not_load_moves_no_alias(tmp_path: Path, kind: str) -> None:
    directory = write_checkpoint(tmp_path / "toy")
    store = Store.open((tmp_path / "store").as_uri())
    first = store.publish("toy", directory, CheckpointInfo(kind="tiny")).id
    publish = ["publish", str(directory), "--kind", kind, "--name", "toy", "--store-url", store.label]
    refused = CliRunner().invoke(app, publish)
    assert refused.exit_code == 1
    assert f"can't be loaded as {kind}: " in refused.stderr
    assert store.resolve("toy") == first
    assert CliRunner().invoke(app, [*publish, "--no-reference"]).exit_code == 0


@pytest.mark.parametrize(
    ("folder", "kind", "message"),
    [
        ("gpt2", "causal-lm", "the architecture 'gpt2' is none of llama, mistral, qwen2, qwen3"),
        ("t5", "t5-student", "task.json is missing, which says what the student answers"),
        ("gpt2", "causal_lm", "kind: 'causal_lm' is unknown; did you mean causal-lm?"),
    ],
)
def test_a_stock_folder_that_no_service_runs_is_refused_with_what_it_lacks(
    tmp_path: Path, folder: str, kind: str, message: str
) -> None:
    sizes: dict[str, Any] = {"vocab_size": 300, "d_model": 16, "num_layers": 1, "num_heads": 2, "eos_token_id": 1}
    model: Any = (
        transformers().T5ForConditionalGeneration(transformers().T5Config(**sizes, d_kv=8, d_ff=16))
        if folder == "t5"
        else transformers().GPT2LMHeadModel(transformers().GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2))
    )
    model.save_pretrained(tmp_path / folder)
    tiny_tokenizer().save_pretrained(tmp_path / folder)
    store = Store.open((tmp_path / "store").as_uri())
    first = store.publish("mine", write_checkpoint(tmp_path / "toy"), CheckpointInfo(kind="tiny")).id

    refused = CliRunner().invoke(
        app, ["publish", str(tmp_path / folder), "--kind", kind, "--name", "mine", "--store-url", store.label]
    )

    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert message in line
    assert [store.resolve("mine"), len(store.versions("mine"))] == [first, 1]


def test_the_kinds_are_listed_in_the_help() -> None:
    told = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["publish", "--help"]).output
    assert all(kind in re.sub(r"-\s+", "-", told) for kind in KINDS)  # lines break after hyphens
