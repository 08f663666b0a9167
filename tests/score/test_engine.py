"""The engine: what shares a batch or a pass never shows in an answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from services.core.batching.batcher import CollatingEngine
from services.core.errors import InvalidField, TooLarge
from services.nn.broken_model import BrokenModel
from services.nn.clip_model import OPEN_CLIP_WEIGHTS
from services.nn.clip_texts import Text
from services.nn.devices import DeviceOptions
from services.score import fsc_clip
from services.score.engine import MAX_REMEMBERED_CHARACTERS, ImageItem, Item, ScoreEngine
from services.score.fsc_clip import mean_local_similarity, patch_weights, token_cosines
from services.score.model import encoder
from services.score.model.checkpoint import FscClipCheckpoint, load_fsc_clip, save_fsc_clip
from services.score.model.dense_features import encode_images, encode_texts
from services.score.model.features import Features
from services.score.model.pairing import PairItem, Similarities
from tests.score.tiny import CONTEXT_LENGTH, EMBEDDING_WIDTH, IMAGE_SIZE, NUM_PATCHES, tiny_clip, write_tiny_checkpoint

CPU = DeviceOptions(device="cpu", dtype="float32")
# Tokens are rounded to 11 bits, which the cosine of two vectors hardly feels.
HALF_TOLERANCE = 5e-4
STARTER = Path(fsc_clip.__file__).parent / "starter" / "fsc-clip-scenes"
CAPTIONS = ("a red square", "a blue circle left of a red square", "it", "a photograph of two green triangles above it")
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "text tower of its own": {"custom_text": True},
    "convolutional stem": {"conv_stem": [8, 16]},
    "OpenAI's activation": {"quick_gelu": True},
    "mean of the patches": {"vision": {"pool_type": "avg"}},
}


@pytest.fixture(scope="module", params=MODELS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_fsc_clip(FscClipCheckpoint(tiny_clip(**MODELS[request.param]), 0.25), folder)
    return folder


@pytest.fixture(scope="module")
def engine(directory: Path) -> ScoreEngine:
    return ScoreEngine.load(directory, CPU)


@pytest.fixture(scope="module")
def plain_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def plain(plain_directory: Path) -> ScoreEngine:
    return ScoreEngine.load(plain_directory, CPU)


def picture(seed: int, size: tuple[int, int] = (40, 50)) -> Image.Image:
    colors = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(colors).resize(size)


def image(engine: ScoreEngine, seed: int) -> ImageItem:
    return engine.prepare_image(picture(seed), f"image-{seed}")


def compare(engine: ScoreEngine, seed: int, captions: Sequence[str]) -> Similarities:
    picture, *texts = engine.run_batch([image(engine, seed), *map(engine.prepare_caption, captions)])
    (similarities,) = engine.pairing.run_batch([PairItem(picture, texts, explains=True)])
    return similarities


def assert_same(one: Features, other: Features, tolerance: float = 1e-5) -> None:
    assert np.abs(one.pooled - other.pooled).max() <= tolerance
    assert one.tokens.shape == other.tokens.shape
    # two numbers on either side of a rounding
    assert np.abs(one.tokens.astype(np.float32) - other.tokens.astype(np.float32)).max() <= tolerance + 1e-3


@pytest.mark.slow
def test_every_pair_has_the_similarities_that_the_model_and_the_equations_give(
    directory: Path, engine: ScoreEngine
) -> None:
    model, tokenizer, transform = (lambda clip: (clip.model, clip.tokenizer, clip.transform))(
        load_fsc_clip(directory).clip
    )
    for seed in (1, 2):
        similarities = compare(engine, seed, CAPTIONS)
        pixels = transform.normalise(torch.tensor(transform(picture(seed)))[None])
        images = encode_images(model, pixels)
        for index, caption in enumerate(CAPTIONS):
            texts = encode_texts(model, tokenizer([caption]))
            local = mean_local_similarity(token_cosines(images.tokens, texts.tokens), texts.mask)
            assert abs(similarities.global_cosines[index] - float(images.pooled[0] @ texts.pooled[0])) < 1e-5
            assert abs(similarities.local_cosines[index] - float(local)) < HALF_TOLERANCE
            weights = patch_weights(images.tokens, texts.tokens)[0][texts.mask[0]]
            assert similarities.weights is not None
            np.testing.assert_allclose(similarities.weights[index], weights.numpy(), atol=10 * HALF_TOLERANCE)


def test_scores_mix_both_similarities_as_the_checkpoint_says(directory: Path, engine: ScoreEngine) -> None:
    similarities = compare(engine, 1, CAPTIONS)
    expected = 0.75 * similarities.global_cosines + 0.25 * similarities.local_cosines
    np.testing.assert_allclose(engine.mix(similarities), expected, atol=1e-7)
    assert engine.local_weight == 0.25
    assert engine.logit_scale == pytest.approx(float(load_fsc_clip(directory).clip.model.logit_scale.exp()), rel=1e-3)


def test_a_checkpoints_own_temperature_replaces_clips(tmp_path: Path) -> None:
    save_fsc_clip(FscClipCheckpoint(tiny_clip(), 0.25, 0.04), tmp_path)
    assert ScoreEngine.load(tmp_path, CPU).logit_scale == pytest.approx(25)


def test_a_mixed_batch_answers_each_item_as_if_it_were_alone(engine: ScoreEngine) -> None:
    texts = [engine.prepare_caption(caption) for caption in CAPTIONS]
    batch: list[Item] = [texts[1], image(engine, 1), texts[0], image(engine, 2), image(engine, 1), *texts[2:]]
    together = engine.run_batch(batch)
    for item, features in zip(batch, together, strict=True):
        assert_same(features, engine.run_batch([item])[0])


def test_images_and_captions_both_change_the_score(engine: ScoreEngine) -> None:
    scores = np.stack([engine.mix(compare(engine, seed, CAPTIONS)) for seed in (1, 2)])
    assert np.ptp(scores, axis=0).max() > 1e-3
    assert np.ptp(scores, axis=1).min() > 1e-3


def test_tokens_are_those_from_the_first_word_to_the_end_of_the_text(plain: ScoreEngine) -> None:
    texts = [plain.prepare_caption(caption) for caption in CAPTIONS]
    for text, features in zip(texts, plain.run_batch(texts), strict=True):
        assert features.tokens.shape == (text.num_tokens - 1, EMBEDDING_WIDTH)
        assert len(plain.pieces(text)) == text.num_tokens - 1
        np.testing.assert_allclose(np.linalg.norm(features.tokens.astype(np.float32), axis=1), 1, atol=1e-3)


def test_patches_keep_their_lengths_beside_each_other(plain: ScoreEngine, plain_directory: Path) -> None:
    clip = load_fsc_clip(plain_directory).clip
    pixels = clip.transform.normalise(torch.tensor(clip.transform(picture(1)))[None])
    expected = encode_images(clip.model, pixels).tokens[0].norm(dim=-1)
    (features,) = plain.run_batch([image(plain, 1)])
    assert features.tokens.shape == (NUM_PATCHES, EMBEDDING_WIDTH)
    lengths = np.linalg.norm(features.tokens.astype(np.float32), axis=1)
    np.testing.assert_allclose(lengths, (expected / expected.max()).numpy(), atol=1e-3)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the towers' passes and their batch sizes."""
    seen: list[tuple[str, int]] = []

    def counted(name: str) -> None:
        encode = getattr(encoder, name)

        def encode_counted(model: Any, inputs: torch.Tensor, *others: torch.Tensor) -> Any:
            seen.append((name, len(inputs)))
            return encode(model, inputs, *others)

        monkeypatch.setattr(encoder, name, encode_counted)

    counted("encode_images")
    counted("encode_cut")
    return seen


def test_equal_images_and_captions_of_a_batch_are_encoded_once(
    plain: ScoreEngine, passes: list[tuple[str, int]]
) -> None:
    captions = ("a red square", "A red  square", "a blue circle", "a red square")
    batch: list[Item] = [image(plain, 1), *map(plain.prepare_caption, captions), image(plain, 2), image(plain, 1)]
    features = plain.run_batch(batch)
    assert passes == [("encode_images", 2), ("encode_cut", 2)]
    assert features[1] is features[2] is features[4]
    assert features[0] is features[6]


def test_its_batches_can_be_collated_ahead_and_answer_the_same(engine: ScoreEngine) -> None:
    assert isinstance(engine, CollatingEngine)
    batch: list[Item] = [engine.prepare_caption("a red square"), image(engine, 1)]
    for ahead, at_once in zip(engine.run_collated(engine.collate(batch)), engine.run_batch(batch), strict=True):
        np.testing.assert_array_equal(ahead.pooled, at_once.pooled)
        np.testing.assert_array_equal(ahead.tokens, at_once.tokens)


def test_in_bfloat16_the_packaged_checkpoint_gives_nearly_the_same_cosines() -> None:
    single, half = (ScoreEngine.load(STARTER, DeviceOptions("cpu", dtype)) for dtype in ("float32", "bfloat16"))
    for seed in range(8):
        expected, found = (compare(engine, seed, CAPTIONS) for engine in (single, half))
        assert np.abs(single.mix(expected) - half.mix(found)).max() < 0.01


def test_an_item_costs_the_tokens_that_a_tower_sees(plain: ScoreEngine) -> None:
    assert plain.cost(image(plain, 1)) == NUM_PATCHES + 1
    assert plain.cost(plain.prepare_caption("a red square")) == len(["start", "a", "red", "square", "end"])


def test_a_caption_over_the_context_length_is_refused_naming_limit_and_value(plain: ScoreEngine) -> None:
    with pytest.raises(TooLarge, match=f"{CONTEXT_LENGTH + 1} tokens.* {CONTEXT_LENGTH}"):
        plain.prepare_caption("red " * (CONTEXT_LENGTH - 1))
    with pytest.raises(InvalidField):
        plain.prepare_caption(" ")


def test_a_cut_caption_scores_as_its_beginning(plain: ScoreEngine) -> None:
    cut = plain.prepare_caption("red " * 100, truncate=True)
    beginning = plain.prepare_caption("red " * (CONTEXT_LENGTH - 2))
    assert cut.digest == beginning.digest
    assert cut.num_tokens == CONTEXT_LENGTH


def test_a_caption_is_tokenised_once_however_often_it_comes_unless_it_is_very_long(plain: ScoreEngine) -> None:
    assert plain.prepare_caption("a rare caption") is plain.prepare_caption("a rare caption")
    first, second = (plain.prepare_caption("rare " * MAX_REMEMBERED_CHARACTERS, truncate=True) for _ in range(2))
    assert first is not second
    assert first.digest == second.digest


def test_it_says_what_it_takes(plain: ScoreEngine) -> None:
    assert plain.image_size == (IMAGE_SIZE, IMAGE_SIZE)
    assert plain.grid == (IMAGE_SIZE // 8, IMAGE_SIZE // 8)
    assert plain.context_length == CONTEXT_LENGTH
    assert plain.embedding_width == EMBEDDING_WIDTH
    assert plain.dtype_name == "float32"


def test_half_precision_scores_nearly_the_same(plain: ScoreEngine, plain_directory: Path) -> None:
    half = ScoreEngine.load(plain_directory, DeviceOptions(device="cpu", dtype="bfloat16"))
    assert half.dtype_name == "bfloat16"
    difference = half.mix(compare(half, 1, CAPTIONS)) - plain.mix(compare(plain, 1, CAPTIONS))
    assert 0 < np.abs(difference).max() < 0.05


def test_a_sound_model_warms_up_and_passes_its_check(engine: ScoreEngine) -> None:
    engine.warm_up()
    engine.self_check()


def test_a_model_that_answers_no_numbers_does_not_pass(plain_directory: Path, tmp_path: Path) -> None:
    broken = ScoreEngine.load(_changed(plain_directory, tmp_path, "text_projection", float("nan")), CPU)
    with pytest.raises(BrokenModel, match="not finite"):
        broken.self_check()


def test_a_model_that_answers_nothing_but_zeros_does_not_pass(plain_directory: Path, tmp_path: Path) -> None:
    broken = ScoreEngine.load(_changed(plain_directory, tmp_path, "text_projection", 0.0), CPU)
    with pytest.raises(BrokenModel, match="two different inputs have the same output"):
        broken.self_check()


class Forgetful(ScoreEngine):
    """Answers every caption of a batch with the pooled features of the first."""

    def run_collated(self, batch: Any) -> list[Features]:
        features = super().run_collated(batch)
        captions = [place for place, item in enumerate(batch.items) if isinstance(item, Text)]
        for place in captions:
            features[place] = Features(features[captions[0]].pooled, features[place].tokens)
        return features


def test_a_model_whose_answers_depend_on_what_shares_the_batch_does_not_pass(plain_directory: Path) -> None:
    broken = Forgetful(load_fsc_clip(plain_directory), torch.device("cpu"), torch.float32)
    with pytest.raises(BrokenModel, match="the other items of its batch"):
        broken.self_check()


def _changed(directory: Path, copy: Path, name: str, value: float) -> Path:
    save_fsc_clip(load_fsc_clip(directory), copy)
    weights = load_file(copy / OPEN_CLIP_WEIGHTS)
    weights[name].fill_(value)
    save_file(weights, copy / OPEN_CLIP_WEIGHTS)
    return copy
