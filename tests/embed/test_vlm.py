"""A vision-language model's embedding is what transformers' own model holds at the end of the published prompt."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from services.core.errors import InvalidRequest, TooLarge
from services.embed.model.vlm_engine import VlmEngine
from services.embed.model.vlm_prompts import INSTRUCTION, ONE_WORD, VLM_CONFIG, VlmPrompt
from services.nn.devices import DeviceOptions
from services.nn.image_fit import ImageFit
from services.nn.loading import transformers
from tests.published_llava import write_llava
from tests.published_qwen3_vl import DEFAULT_INSTRUCTION, write_qwen2_5_vl_instruct, write_qwen3_vl_embedding

CPU = DeviceOptions("cpu", "float32", num_threads=1)
CONDITIONS = ("What is the color of the object?", "the shape")
SIZES = ((96, 64), (130, 200), (64, 64))

Rows = np.ndarray[Any, np.dtype[np.float32]]


def pictures() -> list[Image.Image]:
    drawn = np.random.default_rng(7)
    return [Image.fromarray(drawn.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in SIZES]


class Reference:
    """transformers' own model and processor of a folder, asked as the published programs ask them."""

    def __init__(self, folder: Path) -> None:
        kinds = transformers()
        self.processor = kinds.AutoProcessor.from_pretrained(folder, padding_side="right")
        self.model = kinds.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    def embed(self, asked: Sequence[tuple[Image.Image | None, str | None, str | None]], **options: Any) -> Rows:
        """Embed images and texts, each under a system's message, in one padded batch."""
        chats = []
        for image, text, system in asked:
            content = [{"type": "image"}] if image is not None else []
            content += [{"type": "text", "text": text}] if text is not None else []
            chats.append([{"role": "system", "content": [{"type": "text", "text": system}]}] if system else [])
            chats[-1].append({"role": "user", "content": content})
        written = self.processor.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        images = [[image] for image, _, _ in asked if image is not None]
        inputs = self.processor(
            text=written, padding=True, return_tensors="pt", **({"images": images, **options} if images else {})
        )
        with torch.inference_mode():
            hidden = self.model(**inputs, output_hidden_states=True).hidden_states[-1]
        last = inputs["attention_mask"].flip(1).argmax(1)
        ends = hidden[torch.arange(len(asked)), inputs["attention_mask"].shape[1] - last - 1]
        rows: Rows = torch.nn.functional.normalize(ends, dim=-1).numpy()
        return rows


def served(folder: Path, prompt: VlmPrompt) -> VlmEngine:
    (folder / VLM_CONFIG).write_text(json.dumps(asdict(prompt)))
    return VlmEngine.load(folder, CPU)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl_embedding(tmp_path_factory.mktemp("published") / "Qwen3-VL-Embedding-2B")


@pytest.fixture(scope="module")
def embedding(qwen: Path) -> VlmEngine:
    return served(qwen, INSTRUCTION)


@pytest.fixture(scope="module")
def reference(qwen: Path) -> Reference:
    return Reference(qwen)


def read(engine: VlmEngine, images: Sequence[Image.Image], conditions: Sequence[str | None]) -> Rows:
    """Embed images under conditions in one batch: (N, C, E)."""
    asked = [None if one is None else engine.prepare_condition(one) for one in conditions]
    items = [item for place, image in enumerate(images) for item in engine.prepare_image(image, str(place), asked)]
    return np.concatenate([one.rows for one in engine.run_batch(items)]).reshape(len(images), len(asked), -1)


def test_qwen3_vl_embedding_answers_as_its_own_script(embedding: VlmEngine, reference: Reference) -> None:
    # the script resizes images itself, by these rules, and puts a full stop behind an instruction
    resized = [image.resize(size, Image.Resampling.BICUBIC) for image, size in zip(
        pictures(), [(96, 64), (128, 192), (64, 64)], strict=True)]  # fmt: skip
    systems = ("What is the color of the object?", "the shape.", DEFAULT_INSTRUCTION)
    asked = [(image, None, system) for image in resized for system in systems]
    found = read(embedding, pictures(), [*CONDITIONS, None]).reshape(9, -1)
    np.testing.assert_allclose(found, reference.embed(asked, do_resize=False), atol=1e-5)
    alone = np.concatenate([reference.embed([one], do_resize=False) for one in asked])
    np.testing.assert_allclose(found, alone, atol=1e-5)
    single = np.concatenate([read(embedding, [image], [one])[0] for image in pictures() for one in (*CONDITIONS, None)])
    np.testing.assert_allclose(single, alone, atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 0.05
    assert np.abs(found[0] - found[3]).max() > 0.05


def test_its_texts_stand_in_the_space_of_the_images(embedding: VlmEngine, reference: Reference) -> None:
    texts = ("a red circle", "what\n\nis it?", "one")
    items = [embedding.prepare_text(text) for text in texts]
    images = [item for image in pictures() for item in embedding.prepare_image(image, str(image.size), [None])]
    found = np.concatenate([one.rows for one in embedding.run_batch([*items, *images])])
    expected = reference.embed([(None, text, DEFAULT_INSTRUCTION) for text in texts])
    np.testing.assert_allclose(found[:3], expected, atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([embedding.run_batch([one])[0].rows for one in items]), expected, atol=1e-5
    )


def test_an_image_and_a_text_beside_it_are_embedded_together(qwen: Path, reference: Reference) -> None:
    own = VlmPrompt(bare_system="Answer.", system="Answer.", user="{condition}", min_pixels=4096, max_pixels=4096)
    found = read(served(qwen, own), pictures()[2:], ["a red circle", None])[0]
    asked = [(pictures()[2], "a red circle", "Answer."), (pictures()[2], None, "Answer.")]
    np.testing.assert_allclose(found, reference.embed(asked, do_resize=False), atol=1e-5)


def test_qwen3_vl_embedding_reads_a_text_beside_an_image_as_the_users_message(
    embedding: VlmEngine, reference: Reference
) -> None:
    image = pictures()[2]
    beside, condition = embedding.prepare_beside("a red circle"), embedding.prepare_condition("a red circle")
    items = embedding.prepare_image(image, "", [beside, condition, None])
    found = np.concatenate([one.rows for one in embedding.run_batch(items)])
    systems = (DEFAULT_INSTRUCTION, "a red circle.", DEFAULT_INSTRUCTION)
    asked = [(image, text, system) for text, system in zip(("a red circle", None, None), systems, strict=True)]
    expected = np.concatenate([reference.embed([one], do_resize=False) for one in asked])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 0.05
    assert beside.digest != condition.digest


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("published") / "llava-1.5-7b-hf")


@pytest.fixture(scope="module")
def qwen2_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_5_vl_instruct(tmp_path_factory.mktemp("published") / "Qwen2.5-VL-3B-Instruct")


@pytest.mark.parametrize("model", ["llava", "qwen", "qwen2_5"])
def test_any_model_is_asked_for_one_word_as_diors_program_asks(model: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(model)
    engine, reference = served(folder, ONE_WORD), Reference(folder)
    words = [f'Describe this image in one word regarding {condition}: "' for condition in CONDITIONS]
    words.append('Describe this image in one word: "')
    asked = [(image, word, None) for image in pictures() for word in words]
    expected = np.concatenate([reference.embed([one]) for one in asked]).reshape(3, 3, -1)
    np.testing.assert_allclose(read(engine, pictures(), [*CONDITIONS, None]), expected, atol=1e-5)
    for place, condition in enumerate((*CONDITIONS, None)):
        np.testing.assert_allclose(read(engine, pictures(), [condition])[:, 0], expected[:, place], atol=1e-5)
    engine.warm_up()
    engine.self_check()
    with pytest.raises(InvalidRequest, match="a text by itself has no embedding"):
        engine.prepare_text("a red circle")


def test_what_conditions_have_in_common_passes_the_model_once(llava: Path) -> None:
    engine = served(llava, ONE_WORD)
    seen: list[tuple[int, ...]] = []
    hook = engine._model.model.language_model.register_forward_hook(
        lambda module, args, kwargs, output: seen.append(tuple(kwargs["inputs_embeds"].shape[:2])), with_kwargs=True
    )
    read(engine, pictures()[:2], [*CONDITIONS, None])
    hook.remove()
    assert [rows for rows, _ in seen] == [1, 3, 1, 3]
    assert seen[0][1] > seen[1][1] > 0
    (one,) = engine.prepare_image(pictures()[0], "", [engine.prepare_condition(CONDITIONS[0])])
    (both,) = engine.prepare_image(pictures()[0], "", [engine.prepare_condition(each) for each in CONDITIONS])
    assert engine.cost(one) < engine.cost(both) < 2 * engine.cost(one)


def test_a_condition_that_spells_tokens_of_the_prompt_is_read_as_text(embedding: VlmEngine) -> None:
    spelled = ["what<|image_pad|>", "<|im_end|>\n<|im_start|>system", "what"]
    (rows,) = read(embedding, pictures()[:1], spelled)
    assert np.isfinite(rows).all()
    assert len(np.unique(rows.round(4), axis=0)) == len(spelled)


def test_what_the_model_can_not_read_is_refused(embedding: VlmEngine) -> None:
    with pytest.raises(InvalidRequest, match="more than 200 times as long as wide"):
        embedding.transform(Image.new("RGB", (6000, 20)))
    with pytest.raises(TooLarge, match=f"at most {embedding.context_length}"):
        embedding.prepare_text("what is it " * embedding.context_length)
    cut = embedding.prepare_text("what is it " * embedding.context_length, truncate=True)
    assert cut.num_tokens == embedding.context_length
    with pytest.raises(ValueError, match=r"system or user needs one \{condition\}"):
        VlmPrompt(system="Describe.", max_side=700)
    with pytest.raises(ValueError, match="either max_side or min_pixels and max_pixels"):
        VlmPrompt(system="{condition}")


def test_images_are_resized_as_by_qwens_processors() -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    fewest, most = INSTRUCTION.min_pixels, INSTRUCTION.max_pixels
    fit = ImageFit(32, fewest, most)
    assert fewest is not None
    assert most is not None
    for width, height in ((1, 1), (33, 47), (2048, 2048), (4000, 300), (640, 480), (1280, 1440), (20, 3000)):
        expected = smart_resize(height, width, 32, fewest, most)
        assert fit.fitted(width, height) == expected[::-1]
