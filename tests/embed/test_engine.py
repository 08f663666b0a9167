"""The engine: what shares a batch, a pass or a token never shows in an answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from services.core.batching.batcher import CollatingEngine
from services.core.errors import InvalidField, TooLarge
from services.embed import focallens
from services.embed.model.focallens_engine import (
    FOCALLENS_WEIGHTS,
    MAX_READOUTS_AT_ONCE,
    FocalLensEngine,
    load_focallens,
)
from services.embed.model.image_engine import SELF_CHECK_TOLERANCE
from services.embed.model.items import Embeddings, ImageItem, ImageState, Item, StateItem
from services.embed.model.stacking_engine import MAX_REMEMBERED_CONDITIONS
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text
from services.nn.devices import DeviceOptions
from tests.embed.tiny import CONTEXT_LENGTH, EMBEDDING_WIDTH, IMAGE_SIZE, NUM_PATCHES, write_tiny_checkpoint

CPU = DeviceOptions(device="cpu", dtype="float32")
# A number of a state is rounded to 11 bits, an embedding read from it differs in its fourth digit.
STATE_TOLERANCE = 1e-3
STARTER = Path(focallens.__file__).parent / "starter" / "focallens-shapes"


@pytest.fixture(scope="module", params=[("readout", 0), ("full", 0), ("readout", 1), ("full", 1)])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FocalLensEngine:
    visibility, condition_layer = request.param
    directory = tmp_path_factory.mktemp("checkpoint")
    write_tiny_checkpoint(directory, visibility=visibility, condition_layer=condition_layer)
    return FocalLensEngine.load(directory, CPU)


@pytest.fixture(scope="module", params=[("readout", 0), ("readout", 1), ("full", 1)])
def keeping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FocalLensEngine:
    """An engine that has something to keep of an image."""
    visibility, condition_layer = request.param
    directory = tmp_path_factory.mktemp("checkpoint")
    write_tiny_checkpoint(directory, visibility=visibility, condition_layer=condition_layer)
    return FocalLensEngine.load(directory, CPU)


@pytest.fixture(scope="module")
def readout_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("readout"))


@pytest.fixture(scope="module")
def readout(readout_directory: Path) -> FocalLensEngine:
    return FocalLensEngine.load(readout_directory, CPU)


def picture(seed: int, size: tuple[int, int] = (40, 50)) -> Image.Image:
    colors = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(colors).resize(size)


def items_of(engine: FocalLensEngine, seed: int, conditions: Sequence[str | None]) -> list[ImageItem]:
    texts = [None if condition is None else engine.prepare_text(condition) for condition in conditions]
    return engine.prepare_image(picture(seed), f"image-{seed}", texts)


def embed(engine: FocalLensEngine, seed: int, conditions: Sequence[str | None]) -> Embeddings:
    return np.concatenate([reading.rows for reading in engine.run_batch(items_of(engine, seed, conditions))])


def encoded(engine: FocalLensEngine, seed: int, conditions: Sequence[str | None]) -> tuple[Embeddings, ImageState]:
    """The rows of an image and its state, from one pass."""
    texts = [None if condition is None else engine.prepare_text(condition) for condition in conditions]
    items = engine.prepare_image(picture(seed), f"image-{seed}", texts, keeps_state=True)
    first, *others = engine.run_batch(items)
    assert first.state is not None
    assert all(other.state is None for other in others)
    return np.concatenate([first.rows, *(other.rows for other in others)]), first.state


def from_state(engine: FocalLensEngine, seed: int, state: ImageState, conditions: Sequence[str | None]) -> StateItem:
    texts = tuple(None if condition is None else engine.prepare_text(condition) for condition in conditions)
    return StateItem(f"image-{seed}", state, texts)


def assert_close(actual: Embeddings, expected: Embeddings, tolerance: float = 1e-5) -> None:
    difference = np.abs(actual - expected)
    assert difference.max() <= tolerance, f"max {difference.max():.3g}, mean {difference.mean():.3g}"


@pytest.mark.slow
def test_a_mixed_batch_answers_each_item_as_if_it_were_alone(engine: FocalLensEngine) -> None:
    color, shape = "what color is it?", "which shape?"
    batch: list[Item] = [
        engine.prepare_text("a red square"),
        *items_of(engine, 1, [color, None, shape]),
        *items_of(engine, 2, [None]),
        *items_of(engine, 1, [shape]),
        engine.prepare_text("a blue circle"),
        *items_of(engine, 3, [shape, color]),
    ]
    together = engine.run_batch(batch)
    assert len(together) == len(batch)
    for item, rows in zip(batch, together, strict=True):
        assert_close(rows.rows, engine.run_batch([item])[0].rows)


def test_an_image_read_from_its_state_answers_as_from_its_pixels(keeping: FocalLensEngine) -> None:
    _, state = encoded(keeping, 1, ["an old condition", "another"])
    assert (state.shape, state.dtype) == ((keeping.state_bytes,), np.dtype(np.uint8))
    conditions = ["what color is it?", None, "which shape?", "what color is it?"]
    (read,) = keeping.run_batch([from_state(keeping, 1, state, conditions)])
    assert read.state is None
    fresh = embed(keeping, 1, conditions)
    assert_close(read.rows, fresh, STATE_TOLERANCE)
    assert_close(np.linalg.norm(read.rows, axis=1), np.ones(4, np.float32))
    assert np.abs(fresh - embed(keeping, 2, conditions)).max() > 10 * STATE_TOLERANCE
    assert np.abs(fresh[0] - fresh[1]).max() > 10 * STATE_TOLERANCE


def test_images_states_and_texts_share_batches_without_showing_it(keeping: FocalLensEngine) -> None:
    states = {seed: encoded(keeping, seed, [None])[1] for seed in (1, 2, 3)}
    batch: list[Item] = [
        from_state(keeping, 2, states[2], ["which shape?", None]),
        *items_of(keeping, 4, ["which shape?"]),
        keeping.prepare_text("a red square"),
        from_state(keeping, 1, states[1], ["what color is it?"]),
        *items_of(keeping, 1, ["what color is it?", None]),
        from_state(keeping, 2, states[2], ["what color is it?", "which shape?"]),
        from_state(keeping, 3, states[3], [None]),
    ]
    for item, reading in zip(batch, keeping.run_batch(batch), strict=True):
        assert_close(reading.rows, keeping.run_batch([item])[0].rows)


def test_a_state_is_returned_to_whom_asked_for_it_alone_and_costs_the_rows_nothing(engine: FocalLensEngine) -> None:
    text = engine.prepare_text("which shape?")
    asking = engine.prepare_image(picture(1), "image-1", [text], keeps_state=True)
    others = [*items_of(engine, 2, ["which shape?"]), *items_of(engine, 1, ["which shape?"])]
    asked, *unasked = engine.run_batch([*asking, *others])
    assert (asked.state is None) == (engine.state_bytes is None)
    assert all(reading.state is None for reading in unasked)
    for reading, plain in zip(
        [asked, *unasked], engine.run_batch(items_of(engine, 1, ["which shape?"]) + others), strict=True
    ):
        assert_close(reading.rows, plain.rows)


def test_a_state_is_the_same_whatever_shared_its_batch(keeping: FocalLensEngine) -> None:
    _, alone = encoded(keeping, 1, [None])
    batch = [
        item
        for seed in (3, 1, 2)
        for item in keeping.prepare_image(picture(seed), f"image-{seed}", [None], keeps_state=True)
    ]
    together = keeping.run_batch(batch)[1].state
    assert together is not None
    numbers = [state.view(np.float16).astype(np.float32) for state in (alone, together)]
    np.testing.assert_allclose(numbers[0], numbers[1], rtol=2e-3, atol=1e-5)


def test_its_batches_can_be_collated_ahead_and_answer_the_same(engine: FocalLensEngine) -> None:
    assert isinstance(engine, CollatingEngine)
    batch: list[Item] = [engine.prepare_text("a red square"), *items_of(engine, 1, ["color", None])]
    for ahead, at_once in zip(engine.run_collated(engine.collate(batch)), engine.run_batch(batch), strict=True):
        np.testing.assert_array_equal(ahead.rows, at_once.rows)


def test_images_of_few_and_of_many_conditions_answer_as_each_alone(readout: FocalLensEngine) -> None:
    asked: dict[int, list[str | None]] = {
        1: ["color"], 2: [f"number {number}" for number in range(9)], 3: [None, "shape"], 4: ["shape", None],
    }  # fmt: skip
    batch = [item for seed, conditions in asked.items() for item in items_of(readout, seed, conditions)]
    for reading, (seed, conditions) in zip(readout.run_batch(batch), asked.items(), strict=True):
        assert_close(reading.rows, np.concatenate([embed(readout, seed, [condition]) for condition in conditions]))


def test_embeddings_are_float32_unit_vectors_in_the_order_of_conditions(engine: FocalLensEngine) -> None:
    conditions = ["what color is it?", None, "which shape?"]
    rows = embed(engine, 1, conditions)
    assert rows.shape == (3, EMBEDDING_WIDTH)
    assert rows.dtype == np.float32
    assert_close(np.linalg.norm(rows, axis=1), np.ones(3, np.float32))
    for condition, row in zip(conditions, rows, strict=True):
        assert_close(embed(engine, 1, [condition])[0], row)


def test_conditions_and_images_both_change_the_embedding(engine: FocalLensEngine) -> None:
    rows = np.concatenate([embed(engine, seed, [None, "what color is it?", "which shape?"]) for seed in (1, 2)])
    similarities = rows @ rows.T - 2 * np.eye(len(rows))
    assert similarities.max() < 0.9999


@pytest.mark.slow
def test_the_engine_answers_what_the_model_computes(readout_directory: Path) -> None:
    checkpoint = load_focallens(readout_directory)
    pixels = torch.tensor(checkpoint.transform(picture(5)))[None]
    conditions = checkpoint.model.encode_conditions(checkpoint.tokenizer(["which shape?"]))
    expected = checkpoint.model.encode_images(checkpoint.transform.normalise(pixels), conditions).numpy()
    loaded = FocalLensEngine.load(readout_directory, CPU)
    assert_close(embed(loaded, 5, ["which shape?"]), expected)
    text = checkpoint.model.encode_texts(checkpoint.tokenizer(["a red square"])).numpy()
    assert_close(loaded.run_batch([loaded.prepare_text("a red square")])[0].rows, text)


class CountingModel(torch.nn.Module):
    """A FocalLens model that notes how much of everything it was asked for."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.seen: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "seen"):
            return super().__getattr__(name)
        attribute = getattr(self.model, name)
        if not name.startswith("encode_"):
            return attribute

        def counted(tensor: torch.Tensor, *rest: Any, **options: Any) -> Any:
            self.seen.append((name, tensor.shape[0]))
            return attribute(tensor, *rest, **options)

        return counted


@pytest.fixture
def counted(readout_directory: Path) -> tuple[FocalLensEngine, CountingModel]:
    checkpoint = load_focallens(readout_directory)
    model: Any = CountingModel(checkpoint.model)
    tower = checkpoint.model.clip.token_embedding
    tower.register_forward_hook(lambda _, inputs, output: model.seen.append(("texts", len(inputs[0]))))
    counting = type(checkpoint)(model, checkpoint.tokenizer, checkpoint.transform)
    return FocalLensEngine(counting, torch.device("cpu"), torch.float32), model


def test_equal_images_conditions_and_texts_of_a_batch_are_encoded_once(
    counted: tuple[FocalLensEngine, CountingModel],
) -> None:
    engine, model = counted
    engine.run_batch(
        [
            *items_of(engine, 1, ["which shape?", "what color is it?"]),
            *items_of(engine, 1, ["WHICH  shape?"]),
            *items_of(engine, 2, ["which shape?", None]),
            engine.prepare_text("a red square"),
            engine.prepare_text("A red  square"),
        ]
    )
    assert sorted(model.seen) == [("encode_conditions", 2), ("encode_grid", 2), ("texts", 1)]


def test_one_pass_over_the_images_serves_all_their_conditions(counted: tuple[FocalLensEngine, CountingModel]) -> None:
    engine, model = counted
    conditions = [f"condition {number}" for number in range(100)]
    engine.run_batch([item for seed in (1, 2, 3) for item in items_of(engine, seed, conditions)])
    assert sorted(model.seen) == [("encode_conditions", 100), ("encode_grid", 3)]


def test_a_condition_that_recurs_does_not_pass_its_tower_again(
    counted: tuple[FocalLensEngine, CountingModel],
) -> None:
    engine, model = counted
    first = embed(engine, 1, ["which shape?"])
    model.seen.clear()
    assert_close(embed(engine, 1, ["which shape?"]), first)
    assert model.seen == [("encode_grid", 1)]


def test_conditions_long_unused_are_forgotten_and_encoded_again(
    counted: tuple[FocalLensEngine, CountingModel],
) -> None:
    engine, model = counted
    first = embed(engine, 1, ["which shape?"])
    embed(engine, 1, [f"condition {number}" for number in range(MAX_REMEMBERED_CONDITIONS)])
    model.seen.clear()
    assert_close(embed(engine, 1, ["which shape?"]), first)
    assert ("encode_conditions", 1) in model.seen


@pytest.mark.slow
def test_a_condition_in_use_outlives_many_others(counted: tuple[FocalLensEngine, CountingModel]) -> None:
    engine, model = counted
    for number in range(2 * MAX_REMEMBERED_CONDITIONS):
        embed(engine, 1, ["which shape?", f"condition {number}"])
    model.seen.clear()
    embed(engine, 1, ["which shape?"])
    assert model.seen == [("encode_grid", 1)]


def test_more_readouts_than_one_slice_holds_keep_their_order(readout: FocalLensEngine) -> None:
    conditions = [f"condition {number}" for number in range(MAX_READOUTS_AT_ONCE + 3)]
    rows = embed(readout, 1, conditions)
    for index in (0, MAX_READOUTS_AT_ONCE - 1, MAX_READOUTS_AT_ONCE, MAX_READOUTS_AT_ONCE + 2):
        assert_close(rows[index], embed(readout, 1, [conditions[index]])[0])


def test_a_last_slice_with_as_many_readouts_as_images_is_of_the_last_image(readout: FocalLensEngine) -> None:
    conditions = [f"condition {number}" for number in range(MAX_READOUTS_AT_ONCE // 2 + 1)]
    batch = [item for seed in (1, 2) for item in items_of(readout, seed, conditions)]
    for seed, reading in zip((1, 2), readout.run_batch(batch), strict=True):
        assert_close(reading.rows[-2:], embed(readout, seed, conditions[-2:]))


def test_more_readouts_than_one_slice_holds_leave_the_same_state(readout: FocalLensEngine) -> None:
    conditions = [f"condition {number}" for number in range(MAX_READOUTS_AT_ONCE + 3)]
    rows, state = encoded(readout, 1, conditions)
    assert_close(rows, embed(readout, 1, conditions))
    np.testing.assert_array_equal(state, encoded(readout, 1, ["one"])[1])
    (read,) = readout.run_batch([from_state(readout, 1, state, conditions)])
    assert_close(read.rows, rows, STATE_TOLERANCE)


def test_reading_a_state_costs_less_than_its_image_and_grows_with_the_conditions(keeping: FocalLensEngine) -> None:
    _, state = encoded(keeping, 1, [None])

    def cost(*conditions: str | None) -> int:
        cost = keeping.cost(from_state(keeping, 1, state, conditions))
        assert cost < sum(keeping.cost(item) for item in items_of(keeping, 1, conditions))
        return cost

    # of two blocks, those behind the condition's layer are passed, in `full` by all tokens
    num_layers_passed = {"readout": 2 if len(state) > 2048 * 2 - 1 else 1, "full": 1}[keeping.visibility]
    num_tokens = {"readout": 2, "full": NUM_PATCHES + 2}[keeping.visibility]
    assert cost("a", "b", None) - cost("a") == 2 * num_tokens * num_layers_passed // 2
    assert cost("a") > num_tokens * num_layers_passed // 2


def test_cost_counts_one_pass_for_all_conditions_in_readout_and_a_pass_each_in_full(engine: FocalLensEngine) -> None:
    cost = sum(engine.cost(item) for item in items_of(engine, 1, ["a", "b", None]))
    passes = {"readout": NUM_PATCHES + 2 * 3, "full": 3 * (NUM_PATCHES + 2)}
    assert cost == passes[engine.visibility]
    assert engine.cost(engine.prepare_text("a red square")) == len(["start", "a", "red", "square", "end"])


def test_a_text_over_the_context_length_is_refused_naming_limit_and_value(readout: FocalLensEngine) -> None:
    with pytest.raises(TooLarge, match=rf"{CONTEXT_LENGTH + 2} tokens.*at most {CONTEXT_LENGTH}"):
        readout.prepare_text("red " * CONTEXT_LENGTH)
    assert readout.prepare_text("red " * (CONTEXT_LENGTH - 2)).num_tokens == CONTEXT_LENGTH


def test_a_text_cut_on_request_equals_its_beginning(readout: FocalLensEngine) -> None:
    cut = readout.prepare_text("red " * 30_000, truncate=True)
    assert cut.num_tokens == CONTEXT_LENGTH
    whole = readout.prepare_text("red " * (CONTEXT_LENGTH - 2))
    assert cut.digest == whole.digest


def test_a_text_far_too_long_is_refused_before_the_tokenizer_sees_it(readout_directory: Path) -> None:
    class NoTokenizer:
        context_length = CONTEXT_LENGTH

        def num_tokens(self, text: str) -> int:
            raise AssertionError("tokenised")

    checkpoint = load_focallens(readout_directory)
    tokenizer: Any = NoTokenizer()
    engine = FocalLensEngine(
        type(checkpoint)(checkpoint.model, tokenizer, checkpoint.transform), torch.device("cpu"), torch.float32
    )
    with pytest.raises(TooLarge, match="1000000 characters"):
        engine.prepare_text("a" * 1_000_000)


def test_spaces_do_not_count_towards_the_length_of_a_text(readout: FocalLensEngine) -> None:
    padded = readout.prepare_text(" " * 100_000 + "a red square" + "\n" * 100_000)
    assert padded.digest == readout.prepare_text("a red square").digest


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u00a0\u200b"])
def test_an_empty_text_is_refused(readout: FocalLensEngine, text: str) -> None:
    with pytest.raises(InvalidField, match="empty"):
        readout.prepare_text(text)


def test_texts_that_differ_in_tokens_differ_in_digest(readout: FocalLensEngine) -> None:
    texts: list[Text] = [readout.prepare_text(text) for text in ("red square", "square red", "red")]
    assert len({text.digest for text in texts}) == 3


def poisoned(directory: Path, target: Path, name: str, value: float) -> Path:
    """A copy of a checkpoint with one weight matrix overwritten."""
    target.mkdir()
    for file in directory.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(target / FOCALLENS_WEIGHTS)
    weights[name].fill_(value)
    save_file(weights, target / FOCALLENS_WEIGHTS)
    return target


def test_numbers_that_are_not_finite_are_an_error_and_never_an_answer(readout_directory: Path, tmp_path: Path) -> None:
    engine = FocalLensEngine.load(poisoned(readout_directory, tmp_path / "nan", "clip.visual.proj", float("nan")), CPU)
    with pytest.raises(BrokenModel, match="not finite"):
        embed(engine, 1, [None])
    with pytest.raises(BrokenModel):
        engine.self_check()


def test_a_model_that_answers_zero_fails_its_self_check(readout_directory: Path, tmp_path: Path) -> None:
    engine = FocalLensEngine.load(poisoned(readout_directory, tmp_path / "zero", "clip.visual.proj", 0.0), CPU)
    with pytest.raises(BrokenModel, match="two different inputs have the same output"):
        engine.self_check()


def test_a_state_with_a_number_beyond_half_precision_is_not_kept(readout_directory: Path, tmp_path: Path) -> None:
    block = "clip.visual.transformer.resblocks.0"
    large = poisoned(readout_directory, tmp_path / "large", f"{block}.attn.in_proj_weight", 60_000.0)
    engine = FocalLensEngine.load(poisoned(large, tmp_path / "larger", f"{block}.ln_1.bias", 1.0), CPU)
    (reading,) = engine.run_batch(engine.prepare_image(picture(1), "image", [None], keeps_state=True))
    assert reading.state is None
    assert np.isfinite(reading.rows).all()


def test_a_sound_checkpoint_warms_up_and_passes_its_self_check(engine: FocalLensEngine) -> None:
    engine.warm_up()
    engine.self_check()


def test_a_model_whose_states_say_something_else_than_its_pixels_fails_its_self_check(readout_directory: Path) -> None:
    class MisreadingModel(CountingModel):
        def read_states(self, states: torch.Tensor, *asked: Any) -> torch.Tensor:
            rows: torch.Tensor = self.model.read_states(states, *asked)
            return rows.flip(1)

    checkpoint = load_focallens(readout_directory)
    misreading: Any = MisreadingModel(checkpoint.model)
    engine = FocalLensEngine(
        type(checkpoint)(misreading, checkpoint.tokenizer, checkpoint.transform), torch.device("cpu"), torch.float32
    )
    with pytest.raises(BrokenModel, match="state"):
        engine.self_check()


@pytest.mark.slow
def test_half_precision_answers_unit_vectors_near_those_of_full_precision(readout_directory: Path) -> None:
    half = FocalLensEngine.load(readout_directory, DeviceOptions(device="cpu", dtype="bfloat16"))
    half.self_check()
    assert half.dtype_name == "bfloat16"
    conditions = [None, "what color is it?"]
    rows = embed(half, 1, conditions)
    assert_close(np.linalg.norm(rows, axis=1), np.ones(2, np.float32))
    full = FocalLensEngine.load(readout_directory, CPU)
    assert_close(rows, embed(full, 1, conditions), tolerance=0.1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.slow
def test_states_of_half_precision_are_those_of_the_forward_pass(
    readout_directory: Path, dtype: Literal["bfloat16", "float16"]
) -> None:
    half = FocalLensEngine.load(readout_directory, DeviceOptions(device="cpu", dtype=dtype))
    half.self_check()
    conditions = [None, "what color is it?"]
    rows, state = encoded(half, 1, conditions)
    assert len(state) == half.state_bytes
    (read,) = half.run_batch([from_state(half, 1, state, conditions)])
    assert_close(read.rows, rows, tolerance=SELF_CHECK_TOLERANCE[getattr(torch, dtype)])
    assert_close(read.rows, embed(FocalLensEngine.load(readout_directory, CPU), 1, conditions), tolerance=0.1)


def test_the_packaged_checkpoint_reads_the_same_from_states_and_pixels() -> None:
    engine = FocalLensEngine.load(STARTER, CPU)
    assert engine.state_bytes == 2 * 2 * 4 * 36 * 128  # bytes of a number, keys and values, blocks, patches, width
    for seed in range(8):
        _, state = encoded(engine, seed, [None])
        conditions = ["What is the color of the object in the image?", "What is the shape of the object?", None]
        (read,) = engine.run_batch([from_state(engine, seed, state, conditions)])
        cosines = (read.rows * embed(engine, seed, conditions)).sum(axis=1)
        assert cosines.min() > 1 - 1e-6, f"cosines {cosines}"


def test_in_bfloat16_the_packaged_checkpoint_gives_nearly_the_same_embeddings() -> None:
    single, half = (FocalLensEngine.load(STARTER, DeviceOptions("cpu", dtype)) for dtype in ("float32", "bfloat16"))
    conditions = [None, "What is the color of the object in the image?", "What is the shape of the object?"]
    for seed in range(8):
        cosines = (embed(single, seed, conditions) * embed(half, seed, conditions)).sum(axis=1)
        assert cosines.min() > 0.999, f"cosines {cosines}"


def test_a_missing_device_is_named(readout_directory: Path) -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has the device that the test needs to be missing")
    with pytest.raises(ValueError, match="'mps'"):
        FocalLensEngine.load(readout_directory, DeviceOptions(device="mps"))


def test_images_of_any_shape_become_the_size_of_the_model(readout: FocalLensEngine) -> None:
    for size in ((1, 1), (3, 200), (200, 3), (IMAGE_SIZE, IMAGE_SIZE)):
        (item,) = readout.prepare_image(picture(1, size), "image", [None])
        assert item.pixels.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
        readout.run_batch([item])
