"""FocalLens-MLLM's loss is the paper's, and its tuning moves what it may and leaves the rest."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.cli.main import app as fovea
from services.core.store.store import Store
from services.embed.data.triplets import LlavaData, LlavaTriplets
from services.embed.evaluation.embedders import load_embedder
from services.embed.model.mllm_engine import (
    MLLM_CONFIG,
    MLLM_PROJECTION,
    MllmCheckpoint,
    MllmEngine,
    load_mllm,
    save_mllm,
)
from services.embed.training.mllm_objective import MllmLoss, merge, prepare_tuning
from services.embed.training.objectives import Contrast, Rows, TripletData
from services.embed.training.train_mllm import app
from services.jobs.checkpoints import find_checkpoint
from services.nn.clip_model import ClipModel, load_clip
from services.nn.devices import DeviceOptions
from services.nn.text_transformer import encode_text
from tests.embed.conversations import write_conversations
from tests.published_llava import SIDE, WIDTH, write_llava

TEXT_WIDTH = 128


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("published") / "llava-1.5-7b-hf")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> ClipModel:
    store_url = (tmp_path_factory.mktemp("models") / "store").as_uri()
    return load_clip(str(find_checkpoint("clip-shapes", store_url).directory))


def batch_of(folder: Path, checkpoint: MllmCheckpoint, clip: ClipModel, num_images: int) -> Rows:
    """Tokenize a batch of conversations."""
    write_conversations(folder, num_images)
    source = LlavaTriplets(LlavaData(folder / "llava.json", folder), checkpoint.transform, 0, num_images)
    return TripletData(clip.tokenizer, source, checkpoint.tokenizer)(0)


def instructions(batch: Rows) -> torch.Tensor:
    """The tokens of each row's instruction."""
    return batch.condition_ids[batch.condition_index]


def test_the_loss_is_the_papers_over_distinct_answers(base: Path, clip: ClipModel, tmp_path: Path) -> None:
    checkpoint = load_mllm(base)
    prepare_tuning(checkpoint.model, TEXT_WIDTH, 0, torch.float32)
    batch = batch_of(tmp_path, checkpoint, clip, 4)
    assert len(instructions(batch)) == len(batch.answer_ids) == len(batch.image_index) == 6
    loss = MllmLoss((checkpoint.model, checkpoint.transform), clip, None, Contrast())
    with torch.no_grad():
        found = loss(batch).item()
        pairs = [(int(image), row) for row, image in enumerate(batch.image_index)]
        pixels = checkpoint.transform.normalise(batch.images)
        phi = checkpoint.model.embed(pixels, instructions(batch), pairs).double()
        np.testing.assert_allclose(
            checkpoint.model(pixels, instructions(batch), batch.image_index).numpy(),
            phi.numpy(),
            atol=1e-5,
        )
        answers = [tuple(row) for row in batch.answer_ids.tolist()]
        known = sorted(set(answers))
        texts = torch.nn.functional.normalize(encode_text(clip.model, torch.tensor(known)), dim=-1).double()
    similarity = clip.model.logit_scale.exp().item() * phi @ texts.T
    terms = [row[known.index(answer)] - row.logsumexp(0) for row, answer in zip(similarity, answers, strict=True)]
    assert found == pytest.approx(-float(torch.stack(terms).mean()), rel=1e-4)
    assert clip.model.visual is not None


def test_lora_is_merged_into_the_weights_that_are_saved(base: Path, clip: ClipModel, tmp_path: Path) -> None:
    checkpoint = load_mllm(base)
    model = checkpoint.model
    prepare_tuning(model, TEXT_WIDTH, 4, torch.float32)
    tuned = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert all("lora_" in name or "projector" in name or name == "projection.weight" for name in tuned)
    assert sum("lora_B" in name for name in tuned) == 3 * 7
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    batch = batch_of(tmp_path, checkpoint, clip, 2)
    pixels = checkpoint.transform.normalise(batch.images)
    with torch.inference_mode():
        before = model.eval()(pixels, instructions(batch), batch.image_index)
    merge(model)
    save_mllm(model, base, tmp_path / "tuned")
    with torch.inference_mode():
        again = load_mllm(tmp_path / "tuned").model(pixels, instructions(batch), batch.image_index)
    np.testing.assert_allclose(again.numpy(), before.numpy(), atol=2e-3)  # stored in half precision


@pytest.mark.training
def test_the_job_tunes_a_published_llava_and_publishes_it(base: Path, tmp_path: Path) -> None:
    store_url = (tmp_path / "store").as_uri()
    arguments = ["--base", base, "--output", tmp_path / "run", "--steps", "12", "--batch-size", "4"]
    changes = ["--set", "lora_rank=2", "--set", "learning_rate=5e-3", "--set", "scale=10"]
    arguments += [*changes, "--precision", "no", "--recompute"]
    arguments += [*write_conversations(tmp_path), "--store-url", store_url]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    store = Store.open(store_url)
    manifest = store.manifest("focallens-mllm", store.resolve("focallens-mllm", "latest"))
    assert (manifest.kind, manifest.base) == ("focallens-mllm", str(base))
    assert manifest.training["lora_rank"] == 2
    assert manifest.files.keys() >= {MLLM_PROJECTION, "tokenizer.json", "preprocessor_config.json"}
    directory = tmp_path / "run" / "checkpoint"
    assert load_file(directory / MLLM_PROJECTION)["weight"].shape == (TEXT_WIDTH, WIDTH)
    before, after = (load_mllm(folder).model.llava.state_dict() for folder in (base, directory))
    moved = {name.split(".")[0] for name, weight in before.items() if not torch.allclose(weight, after[name])}
    assert moved == {"language_model", "multi_modal_projector"}
    embedder = load_embedder(str(directory))
    image = Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8))
    embedded = embedder.embed_images([image], ["what color?", None])
    assert embedded.shape == (2, 1, TEXT_WIDTH)
    engine = MllmEngine.load(directory, DeviceOptions("cpu", "float32", num_threads=1))
    engine.self_check()
    assert engine.embedding_width == TEXT_WIDTH
    (served,) = engine.run_batch(engine.prepare_image(image, "", [engine.prepare_condition("what color?"), None]))
    np.testing.assert_allclose(served.rows, embedded[:, 0], atol=1e-5)
    planned = CliRunner().invoke(fovea, ["store", "import", str(directory), "--dry-run", "--json"])
    assert planned.exit_code == 0, planned.output
    fates = {file["path"]: file["fate"] for file in json.loads(planned.stdout)["files"]}
    assert {fates[MLLM_CONFIG], fates[MLLM_PROJECTION]} == {"taken"}


@pytest.mark.training
@pytest.mark.parametrize(("lora_rank", "dtype"), [(4, torch.float32), (4, torch.bfloat16), (0, torch.float32)])
def test_a_batch_is_learnt(base: Path, clip: ClipModel, lora_rank: int, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    checkpoint = load_mllm(base)
    prepare_tuning(checkpoint.model, TEXT_WIDTH, lora_rank, dtype)
    batch = batch_of(tmp_path, checkpoint, clip, 4)
    loss = MllmLoss((checkpoint.model, checkpoint.transform), clip, 10.0, Contrast())
    trained = [weight for weight in loss.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in trained} == {torch.float32}
    assert {weight.dtype for weight in checkpoint.model.llava.vision_tower.parameters()} == {dtype}
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    values = []
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            value = loss(batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(value.item())
    assert values[-1] < values[0] / 2


def test_conversations_of_llava_are_read(base: Path, clip: ClipModel, tmp_path: Path) -> None:
    turns = [("human", "<image>\nWhat is it?"), ("gpt", "A dog."), ("human", "Which color?"), ("gpt", "Black.")]
    record = {"id": "1", "image": "a.png", "conversations": [{"from": who, "value": text} for who, text in turns]}
    (tmp_path / "llava.json").write_text(json.dumps([record]))
    Image.new("RGB", (80, 60)).save(tmp_path / "a.png")
    checkpoint = load_mllm(base)
    records = LlavaData(tmp_path / "llava.json", tmp_path)
    source = LlavaTriplets(records, checkpoint.transform, 0, 2)
    batch = TripletData(clip.tokenizer, source, checkpoint.tokenizer)(0)
    assert batch.image_index.tolist() == [0, 0, 1, 1]
    asked = checkpoint.tokenizer(["What is it?", "Which color?"])
    np.testing.assert_array_equal(instructions(batch), torch.cat([asked, asked]))
