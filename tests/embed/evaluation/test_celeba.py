"""CelebA's files are read as they come, and its 29 attributes are scored by the exact chance level."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from services.core.text_files import BadFile
from services.embed.evaluation.celeba import evaluate_celeba, load_faces, scaled_mean_ap
from services.embed.evaluation.instructions import CELEBA_ATTRIBUTES
from tests.embed.evaluation.data_sets import write_celeba
from tests.embed.evaluation.embedders import MeanColor


@pytest.fixture
def celeba(tmp_path: Path) -> Path:
    return write_celeba(tmp_path)


def test_a_split_has_its_own_images_with_their_attributes_and_identities(celeba: Path) -> None:
    faces = load_faces(celeba)
    assert [path.name for path in faces.paths] == [f"{number:06d}.jpg" for number in range(3, 11)]
    assert list(faces.attributes) == list(CELEBA_ATTRIBUTES)
    assert len(faces.attributes) == 29
    assert faces.attributes["Smiling"].tolist() == [0, 1] * 4
    assert faces.attributes["Bald"].tolist() == [0] * 8
    assert faces.identities.tolist() == [2881, 2881, 2882, 2882, 2883, 2883, 2884, 2884]
    assert [path.name for path in load_faces(celeba, split="val").paths] == ["000002.jpg"]
    assert load_faces(celeba, split="train").attributes["Smiling"].tolist() == [0]
    assert len(load_faces(celeba, limit=3).paths) == 3


def test_images_told_apart_by_what_the_attribute_shows_score_100_and_constant_attributes_nothing(celeba: Path) -> None:
    embedder = MeanColor()
    attributes, identity = evaluate_celeba(embedder, load_faces(celeba), {"split": "test"})
    assert attributes.scores == pytest.approx({name: 100 for name in CELEBA_ATTRIBUTES if name != "Bald"})
    # the other image of the person is of the other colour: four of the other colour tie with it behind three
    assert identity.scores == pytest.approx({"CelebA-Identity": 100 / 7})
    assert identity.benchmark == "celeba-identity"
    assert attributes.settings == {"split": "test"}
    assert embedder.num_images == 8


def test_the_questions_are_those_of_the_dissertation(celeba: Path) -> None:
    embedder = MeanColor()
    evaluate_celeba(embedder, load_faces(celeba), {})
    assert len(embedder.asked) == 30
    assert embedder.asked[0] == "Does the person in the image have arched eyebrows?"
    assert embedder.asked[2] == "Is the person in the image bald?"
    assert embedder.asked[-1] == "Gender, age, eye color, hair color, face shape, facial hair of the person."


def test_images_without_an_attribute_are_queries_like_those_with_it() -> None:
    # two images with it lie together; of the four without it each lies nearer to those than to the others
    angles = np.deg2rad([0, 1, 100, -100, 45, -45])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    labels = np.array([1, 1, 0, 0, 0, 0])
    chance = (2 * expected(5, 1) + 4 * expected(5, 3)) / 6
    precisions = [1, 1, *(by_hand(embeddings, labels, query) for query in range(2, 6))]
    assert max(precisions[2:]) < 1
    assert scaled_mean_ap(embeddings, labels) == pytest.approx((np.mean(precisions) - chance) / (1 - chance), abs=1e-6)


def expected(n: int, m: int) -> float:
    """AP of a random ranking by its definition: the mean over where the relevant images can lie."""
    return float(np.mean([np.mean([(i + 1) / (r + 1) for i, r in enumerate(c)]) for c in combinations(range(n), m)]))


def by_hand(embeddings: NDArray[np.float32], labels: NDArray[np.int64], query: int) -> float:
    order = [i for i in np.argsort(-(embeddings @ embeddings[query])) if i != query]
    ranks = [rank for rank, i in enumerate(order, start=1) if labels[i] == labels[query]]
    return float(np.mean([(hit + 1) / rank for hit, rank in enumerate(ranks)]))


@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "list_eval_partition.txt", "identity_CelebA.txt"])
def test_a_missing_file_is_named_with_where_it_comes_from(celeba: Path, name: str) -> None:
    (celeba / name).unlink()
    with pytest.raises(BadFile, match=rf"{name} is missing.*mmlab.ie.cuhk.edu.hk"):
        load_faces(celeba)


def test_a_missing_image_is_named_before_any_is_embedded(celeba: Path) -> None:
    faces = load_faces(celeba)
    (celeba / "img_align_celeba" / "000005.jpg").unlink()
    embedder = MeanColor()
    with pytest.raises(BadFile, match=r"img_align_celeba/000005.jpg is missing"):
        evaluate_celeba(embedder, faces, {})
    assert embedder.num_images == 0
