"""A small LLaVA is made in the published layout, and learns the answers of conversations as transformers does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from services.cli.main import app as fovea
from services.core.store.store import Store
from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS
from services.embed.evaluation.embedders import load_embedder
from services.embed.model.mllm_engine import MllmPrompt, load_mllm
from services.nn.image_transform import ImageTransform
from starters.embed import train_mllm
from starters.embed.llava_objectives import NOT_LEARNT, AnswerLoss, ConversationData
from starters.embed.questions import Asked, triplet_batch
from starters.embed.small_llava import (
    MEAN,
    STD,
    Dimensions,
    create_llava,
    create_tokenizer,
    save_llava,
)
from starters.embed.train_llava import app

SIDE = 16
# In single precision, like all jobs of one process.
FAST = ["--precision", "no", "--images-per-class", "2"]
SMALL = Dimensions(32, 2, 32, 2, SIDE)
ASKED = Asked(3, has_unconditional=False, picture_share=0.0)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return create_tokenizer()


@pytest.fixture(scope="module")
def llava(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    return create_llava(SMALL, tokenizer).eval()


def test_a_word_of_the_pictures_is_one_token_wherever_it_stands(tokenizer: Any) -> None:
    for text in TEST_INSTRUCTIONS.values():
        words = text.removesuffix("?").lower().split()
        assert [token.removeprefix("Ġ") for token in tokenizer.tokenize(text)] == [*words, "?"]
    first, again = tokenizer("Checkered, checkered", add_special_tokens=False)["input_ids"][::2]
    assert first == again
    ids = tokenizer("USER: <image>\nIs it rød? ASSISTANT: no</s>")["input_ids"]
    assert tokenizer.decode(ids) == "<s> user :<image> is it rød ? assistant : no</s>"
    assert tokenizer.unk_token_id not in ids


def test_the_answers_loss_is_transformers_own(llava: Any, tokenizer: Any) -> None:
    data = ConversationData(tokenizer, MllmPrompt(), SIDE, 0, 4, ASKED)
    batch = data(0)
    opening = tokenizer("USER: ")["input_ids"]
    transform = ImageTransform((SIDE, SIDE), MEAN, STD)
    image = [llava.config.image_token_id] * (SIDE // 8) ** 2
    before = torch.tensor([*opening, *image]).expand(4, -1)
    with torch.inference_mode():
        found = AnswerLoss(llava, opening, transform)(batch)
        expected = llava(
            input_ids=torch.cat([before, batch.input_ids], dim=1),
            pixel_values=transform.normalise(batch.images),
            labels=torch.cat([torch.full_like(before, NOT_LEARNT), batch.labels], dim=1),
        ).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    _, triplets = triplet_batch(0, 0, 4, SIDE, ASKED)
    said = [answer for place, answer in enumerate(triplets.answers) if triplets.image_index[place] == 1]
    learnt = batch.input_ids[1][batch.labels[1] != NOT_LEARNT]
    assert tokenizer.decode(learnt) == "".join(f" {answer}</s>" for answer in said)


def test_a_conversation_opens_like_the_prompt_that_is_embedded(llava: Any, tokenizer: Any, tmp_path: Path) -> None:
    save_llava(llava, tokenizer, tmp_path)
    prompted = load_mllm(tmp_path).tokenizer
    batch = ConversationData(tokenizer, MllmPrompt(), SIDE, 0, 4, ASKED)(0)
    _, triplets = triplet_batch(0, 0, 4, SIDE, ASKED)
    question = triplets.instructions[triplets.image_index.tolist().index(2)]
    assert question is not None
    asked = prompted([question])[0, :-1]
    np.testing.assert_array_equal(batch.input_ids[2, : len(asked)], asked)
    assert batch.labels[2, len(asked)] == batch.input_ids[2, len(asked)]


@pytest.mark.training
def test_the_job_makes_a_llava_that_is_imported_and_tuned(tmp_path: Path) -> None:
    store_url = (tmp_path / "store").as_uri()
    arguments = ["--warmup-steps", "2", "--warmup-batch-size", "4", "--steps", "2", "--batch-size", "4", *FAST]
    arguments += [
        "--width",
        "32",
        "--layers",
        "2",
        "--text-width",
        "32",
        "--text-layers",
        "2",
        "--image-size",
        str(SIDE),
    ]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "run"), "--store-url", store_url])
    assert result.exit_code == 0, result.output
    store = Store.open(store_url)
    manifest = store.manifest("llava-shapes", store.resolve("llava-shapes", "latest"))
    assert manifest.kind == "focallens-mllm"
    assert manifest.metrics.keys() >= {"map_color", "continuous_color_spearman"}
    planned = CliRunner().invoke(
        fovea, ["store", "import", str(tmp_path / "run" / "checkpoint"), "--dry-run", "--json"]
    )
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["kind"] == "focallens-mllm"
    tuning = ["--base", "llava-shapes", "--lora-rank", "0", "--steps", "2", "--batch-size", "4", *FAST]
    tuning += ["--picture-share", "0", "--output", str(tmp_path / "tuned"), "--no-publish", "--store-url", store_url]
    result = CliRunner().invoke(train_mllm.app, tuning)
    assert result.exit_code == 0, result.output
    assert load_embedder(str(tmp_path / "tuned" / "checkpoint")).image_size == SIDE
