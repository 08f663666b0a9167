"""Pairs: many captions at once answer as each alone, by the paper's equations."""

import numpy as np
import torch

from services.score.fsc_clip import mean_local_similarity, patch_weights, token_cosines
from services.score.model.features import Features
from services.score.model.pairing import MAX_NUMBERS_AT_ONCE, PairEngine, PairItem, Similarities

WIDTH, NUM_PATCHES = 24, 16
# of the captions of five images
LENGTHS = [(3, 1), (12, 7, 1), (2,), (5, 5, 5), (1,)]


def features(num_tokens: int, seed: int, width: int = WIDTH) -> Features:
    draw = np.random.default_rng(seed)
    pooled = draw.standard_normal(width).astype(np.float32)
    tokens = draw.standard_normal((num_tokens, width)).astype(np.float32)
    tokens /= np.linalg.norm(tokens, axis=1).max()
    return Features(pooled / np.linalg.norm(pooled), tokens.astype(np.float16))


def image(seed: int = 0, width: int = WIDTH) -> Features:
    return features(NUM_PATCHES, 1000 + seed, width)


def captions(*lengths: int, width: int = WIDTH) -> list[Features]:
    return [features(length, seed, width) for seed, length in enumerate(lengths)]


def compare(item: PairItem) -> Similarities:
    (similarities,) = PairEngine(torch.device("cpu")).run_batch([item])
    return similarities


def test_captions_of_any_lengths_answer_by_the_equations_one_by_one() -> None:
    picture, texts = image(), captions(3, 1, 12, 7, 1)
    together = compare(PairItem(picture, texts, explains=True))
    patches = torch.tensor(picture.tokens)[None]
    assert together.weights is not None
    for index, text in enumerate(texts):
        words = torch.tensor(text.tokens)[None]
        cosines = token_cosines(patches, words)
        expected = mean_local_similarity(cosines, torch.ones_like(cosines, dtype=torch.bool))
        assert abs(together.local_cosines[index] - float(expected)) < 1e-6
        assert abs(together.global_cosines[index] - float(text.pooled @ picture.pooled)) < 1e-6
        np.testing.assert_allclose(together.weights[index], patch_weights(patches, words)[0].numpy(), atol=1e-6)


def test_captions_of_more_tokens_than_one_slice_holds_keep_their_order() -> None:
    width = 512
    texts = captions(*[77] * (2 * MAX_NUMBERS_AT_ONCE // (77 * width) + 1), width=width)
    picture = image(width=width)
    together = compare(PairItem(picture, texts, explains=True))
    assert together.weights is not None
    for index in (0, len(texts) // 2 - 1, len(texts) // 2, len(texts) - 1):
        alone = compare(PairItem(picture, [texts[index]], explains=True))
        assert abs(together.local_cosines[index] - alone.local_cosines[0]) < 1e-6
        assert alone.weights is not None
        np.testing.assert_allclose(together.weights[index], alone.weights[0], atol=1e-5)


def test_items_of_a_batch_are_answered_each_for_its_own_image() -> None:
    items = [PairItem(image(1), captions(2, 3)), PairItem(image(2), captions(3, 2, 9), explains=True)]
    together = PairEngine(torch.device("cpu")).run_batch(items)
    for item, one in zip(items, together, strict=True):
        alone = compare(item)
        np.testing.assert_array_equal(one.local_cosines, alone.local_cosines)
        np.testing.assert_array_equal(one.global_cosines, alone.global_cosines)
        assert (one.weights is None) == (not item.explains)


def test_many_images_compared_at_once_answer_as_each_alone() -> None:
    items = [PairItem(image(seed), captions(*lengths), explains=seed != 1) for seed, lengths in enumerate(LENGTHS)]
    together = PairEngine(torch.device("cpu"), max_numbers=2 * WIDTH * WIDTH).run_batch(items)
    for item, one in zip(items, together, strict=True):
        alone = compare(item)
        np.testing.assert_allclose(one.local_cosines, alone.local_cosines, atol=1e-6)
        np.testing.assert_array_equal(one.global_cosines, alone.global_cosines)
        assert (one.weights is None) == (alone.weights is None) == (not item.explains)
        for own, expected in zip(one.weights or (), alone.weights or (), strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-6)


def test_every_token_has_a_patch_that_it_attends_to_most_and_one_least() -> None:
    weights = compare(PairItem(image(), captions(5, 8), explains=True)).weights
    assert weights is not None
    assert [one.shape for one in weights] == [(5, NUM_PATCHES), (8, NUM_PATCHES)]
    for one in weights:
        np.testing.assert_array_equal(one.max(axis=1), 1)
        np.testing.assert_array_equal(one.min(axis=1), 0)


def test_an_image_of_equal_patches_is_attended_to_everywhere_and_still_compared() -> None:
    plain = image()
    alike = Features(plain.pooled, np.repeat(plain.tokens[:1], NUM_PATCHES, axis=0))
    (text,) = captions(4)
    similarities = compare(PairItem(alike, [text], explains=True))
    assert similarities.weights is not None
    np.testing.assert_array_equal(similarities.weights[0], 1)
    words = text.tokens.astype(np.float32)
    patch = alike.tokens[0].astype(np.float32)
    cosines = words @ patch / np.linalg.norm(words, axis=1) / np.linalg.norm(patch)
    assert abs(similarities.local_cosines[0] - cosines.mean()) < 1e-6


def test_a_pair_costs_the_tokens_of_its_captions() -> None:
    assert PairEngine(torch.device("cpu")).cost(PairItem(image(), captions(3, 4, 5))) == 12


def test_features_are_themselves_again_from_their_bytes() -> None:
    before = image()
    after = Features.from_bytes(before.to_bytes(), WIDTH)
    np.testing.assert_array_equal(after.pooled, before.pooled)
    np.testing.assert_array_equal(after.tokens, before.tokens)
    assert (after.pooled.dtype, after.tokens.dtype) == (np.dtype("<f4"), np.dtype("<f2"))
