"""FocalLens-MLLM reads out what transformers' own LLaVA computes at the end of a prompt, and answers behind the same
conditions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from services.core.errors import InvalidRequest, TooLarge
from services.embed import focallens_mllm
from services.embed.evaluation.embedders import NoTextSide, load_embedder
from services.embed.model.items import ImageItem
from services.embed.model.mllm_engine import MLLM_KIND, MllmEngine, MllmPrompt, load_mllm
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from tests.core.image_files import scene
from tests.embed.serving import as_base64, imported_client
from tests.published_llava import NUM_IMAGE_TOKENS, SIDE, WIDTH, write_llava

CPU = DeviceOptions("cpu", "float32", num_threads=1)
INSTRUCTIONS = ("What is the color of the object?", "shape?", MllmPrompt().no_instruction)
PAIRS = [(image, asked) for image in range(3) for asked in range(3)]

Rows = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("published") / "llava-1.5-7b-hf")


@pytest.fixture(scope="module")
def engine(folder: Path) -> MllmEngine:
    return MllmEngine.load(folder, CPU)


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def llava(folder: Path) -> Any:
    return transformers().LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return transformers().AutoProcessor.from_pretrained(folder)


def read_out(llava: Any, processor: Any, pairs: Sequence[tuple[int, int]], **padding: Any) -> Rows:
    """Let transformers prepare images and prompts, run its own model, and take the last layer's output at </s>."""
    prompts = [f"USER: <image>\n{INSTRUCTIONS[asked]} ASSISTANT:</s>" for _, asked in pairs]
    images = [Image.fromarray(pixels(image)) for image, _ in pairs]
    inputs = processor(images=images, text=prompts, return_tensors="pt", **padding)
    with torch.inference_mode():
        hidden = llava(**inputs, output_hidden_states=True).hidden_states[-1]
    is_end = inputs["input_ids"] == processor.tokenizer.eos_token_id
    assert is_end.sum() == len(pairs)
    rows: Rows = torch.nn.functional.normalize(hidden[is_end], dim=-1).numpy()
    return rows


@pytest.fixture(scope="module")
def reference(llava: Any, processor: Any) -> Rows:
    return np.concatenate([read_out(llava, processor, [pair]) for pair in PAIRS])


def test_embeddings_equal_transformers_own_model_at_the_end_of_each_prompt(
    folder: Path, llava: Any, processor: Any, reference: Rows
) -> None:
    checkpoint = load_mllm(folder)
    images = checkpoint.transform.normalise(torch.from_numpy(np.stack([pixels(seed) for seed in range(3)])))
    with torch.inference_mode():
        found = checkpoint.model.embed(images, checkpoint.tokenizer(INSTRUCTIONS), PAIRS).numpy()
    np.testing.assert_allclose(found, reference, atol=1e-5)
    for side in ("left", "right"):
        padded = read_out(llava, processor, PAIRS, padding=True, padding_side=side)
        np.testing.assert_allclose(found, padded, atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 0.05
    assert np.abs(found[0] - found[3]).max() > 0.05


def test_training_reads_out_what_is_embedded_whatever_else_is_asked_of_an_image(folder: Path, reference: Rows) -> None:
    checkpoint = load_mllm(folder)
    images = checkpoint.transform.normalise(torch.from_numpy(np.stack([pixels(seed) for seed in range(3)])))
    rows = [5, 0, 8, 2, 1, 7]  # three, one and two instructions, in any order
    instructions = checkpoint.tokenizer([INSTRUCTIONS[PAIRS[row][1]] for row in rows])
    with torch.inference_mode():
        found = checkpoint.model(images, instructions, torch.tensor([PAIRS[row][0] for row in rows]))
    np.testing.assert_allclose(found.numpy(), reference[rows], atol=1e-5)


def test_instructions_are_tokenised_as_by_the_published_processor(folder: Path, processor: Any) -> None:
    tokenizer = load_mllm(folder).tokenizer
    input_ids = tokenizer(INSTRUCTIONS)
    for instruction, row in zip(INSTRUCTIONS, input_ids.tolist(), strict=True):
        text = f"USER: <image>\n{instruction} ASSISTANT:</s>"
        expected = processor(images=Image.fromarray(pixels(0)), text=text)["input_ids"][0]
        opening = [*tokenizer.opening, *[processor.image_token_id] * NUM_IMAGE_TOKENS]
        num_tokens = tokenizer.num_tokens(instruction)
        assert [*opening, *row[:num_tokens]] == list(expected)
        assert set(row[num_tokens - 1 :]) == {tokenizer.end}


def test_the_engine_embeds_each_image_under_each_instruction_and_under_none(
    engine: MllmEngine, reference: Rows
) -> None:
    conditions = [engine.prepare_condition(text) for text in INSTRUCTIONS[:2]]
    items = [ImageItem(str(seed), pixels(seed), (*conditions, None), keeps_state=True) for seed in range(3)]
    readings = engine.run_batch([*items, items[0]])
    np.testing.assert_allclose(np.concatenate([one.rows for one in readings[:3]]), reference, atol=1e-5)
    np.testing.assert_array_equal(readings[3].rows, readings[0].rows)
    assert engine.state_bytes is None
    assert all(one.state is None for one in readings)
    engine.warm_up()
    engine.self_check()


def test_an_image_passes_tower_and_language_model_once_for_all_its_instructions(
    engine: MllmEngine, reference: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(focallens_mllm, "AT_ONCE", 2)
    llava = engine._model.llava
    seen: list[tuple[str, int, int]] = []
    hooks = [
        llava.vision_tower.register_forward_hook(
            lambda module, args, kwargs, output: seen.append(("tower", len(args[0]), 0)), with_kwargs=True
        ),
        llava.language_model.register_forward_hook(
            lambda module, args, kwargs, output: seen.append(("model", *kwargs["inputs_embeds"].shape[:2])),
            with_kwargs=True,
        ),
    ]
    conditions = [engine.prepare_condition(text) for text in INSTRUCTIONS]
    items = [item for seed in range(3) for item in engine.prepare_pixels(pixels(seed), str(seed), conditions)]
    rows = np.concatenate([reading.rows for reading in engine.run_batch(items)])
    for hook in hooks:
        hook.remove()
    np.testing.assert_allclose(rows, reference, atol=1e-5)
    assert [num_images for part, num_images, _ in seen if part == "tower"] == [2, 1]
    passes = [(num_rows, num_tokens >= NUM_IMAGE_TOKENS) for part, num_rows, num_tokens in seen if part == "model"]
    # two images and their six readouts, then one image and its three, never more than two at once
    assert [num_rows for num_rows, _ in passes] == [2, 2, 2, 2, 1, 2, 1]
    fed = sum(num_rows * num_tokens for part, num_rows, num_tokens in seen if part == "model")
    whole = sum(NUM_IMAGE_TOKENS + condition.num_tokens for condition in conditions)
    assert fed < 3 * whole


def test_a_batch_costs_an_images_tokens_once_and_those_of_each_instruction(engine: MllmEngine) -> None:
    one, other = (engine.prepare_condition(text) for text in INSTRUCTIONS[:2])
    (alone,) = engine.prepare_pixels(pixels(0), "0", [one])
    (both,) = engine.prepare_pixels(pixels(0), "0", [one, other])
    assert engine.cost(both) - engine.cost(alone) == other.num_tokens
    assert engine.cost(alone) > 2 * NUM_IMAGE_TOKENS + one.num_tokens


@pytest.mark.parametrize("instruction", ["what is <image>?", "a</s>b", "<s>"])
def test_an_instruction_that_spells_control_tokens_is_read_as_text(engine: MllmEngine, instruction: str) -> None:
    tokens = engine.prepare_condition(instruction).input_ids.tolist()
    assert tokens != engine.prepare_condition("what is").input_ids.tolist()
    assert tokens.index(tokens[-1]) == len(tokens) - 1  # </s> is at the end alone


def test_what_the_model_can_not_read_is_refused(engine: MllmEngine) -> None:
    with pytest.raises(InvalidRequest, match="a text by itself has no embedding"):
        engine.prepare_text("a red circle")
    with pytest.raises(TooLarge, match=f"at most {engine.context_length}"):
        engine.prepare_condition("what " * engine.context_length)


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with imported_client(tmp_path_factory.mktemp("served"), folder, "llava") as client:
        yield client


def test_the_service_answers_behind_the_same_condition(client: TestClient, engine: MllmEngine) -> None:
    body = {"images": [as_base64(scene())], "condition": list(INSTRUCTIONS[:2])}
    answered = client.post("/embed", json=body).json()
    wanted = [engine.prepare_condition(text) for text in INSTRUCTIONS[:2]]
    (expected,) = engine.run_batch(engine.prepare_image(scene(), "", wanted))
    np.testing.assert_allclose([row["embedding"] for row in answered["data"]], expected.rows, atol=1e-5)
    bare, asked = (
        client.post("/embed", json={"images": body["images"], **condition}).json()["data"][0]["embedding"]
        for condition in ({}, {"condition": MllmPrompt().no_instruction})
    )
    np.testing.assert_allclose(bare, asked, atol=1e-5)
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["kind"], model["dimensions"]) == (MLLM_KIND, WIDTH)
    assert client.post("/embed", json={**body, "condition": "the <image>"}).status_code == 200
    answer = client.post("/embed", json={"texts": ["a red circle"]})
    assert answer.status_code == 400
    assert "FocalLens-MLLM" in answer.json()["error"]["message"]


def test_a_collection_is_searched_by_an_image_under_an_instruction(client: TestClient) -> None:
    images = {"photo": scene(), "turned": scene().rotate(90, expand=True)}
    assert client.put("/collections/things", json={"conditions": [INSTRUCTIONS[0]]}).status_code == 201
    rows = [{"id": name, "image": as_base64(image)} for name, image in images.items()]
    client.post("/collections/things/images", params={"wait": True}, json={"images": rows})
    for condition in INSTRUCTIONS[:2]:  # the second is no index yet
        body = {"image": as_base64(images["turned"]), "condition": condition}
        found: Any = client.post("/collections/things/search", json=body).json()
        assert [hit["id"] for hit in found["results"]] == ["turned", "photo"]
        assert found["results"][0]["score"] == pytest.approx(1, abs=1e-5)


def test_the_protocols_embed_images_under_their_instructions(folder: Path, reference: Rows) -> None:
    embedder = load_embedder(str(folder))
    images = [Image.fromarray(pixels(seed)) for seed in range(3)]
    found = embedder.embed_images(iter(images), [*INSTRUCTIONS[:2], None])
    np.testing.assert_allclose(found.swapaxes(0, 1).reshape(9, WIDTH), reference, atol=1e-5)
    assert embedder.image_size == SIDE
    with pytest.raises(NoTextSide, match="not texts by themselves"):
        embedder.embed_texts(["a"])
    with pytest.raises(ValueError, match="no inputs"):
        embedder.embed_images([], [None])
