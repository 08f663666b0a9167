"""MMVP-VLM is read as it is published, and a pair is right only where both of its texts choose their image."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.core.text_files import BadFile
from services.embed.evaluation.embedders import NoTextSide
from services.embed.evaluation.mmvp import are_right, evaluate_mmvp, load_mmvp
from tests.embed.evaluation.data_sets import write_mmvp
from tests.embed.evaluation.embedders import ColorWords, MeanColor

GOLDENS = Path(__file__).parents[2] / "goldens"
OFFICIAL = json.loads((GOLDENS / "retrieval_metrics.json").read_text())["mmvp"]
LOGITS = np.load(GOLDENS / "retrieval_metrics.npz")["mmvp/logits"]


@pytest.fixture
def mmvp(tmp_path: Path) -> Path:
    return write_mmvp(tmp_path)


def test_pairs_are_right_as_in_the_authors_script() -> None:
    scores = [100 * right.mean() for right in np.split(are_right(LOGITS), 9)]
    assert scores == pytest.approx(OFFICIAL["official_text_to_image_pair_acc_per_category"])
    assert np.mean(scores) == pytest.approx(OFFICIAL["official_avg"])


def test_a_tie_of_either_text_makes_a_pair_wrong() -> None:
    right = np.array([[2.0, 0.0], [1.0, 1.0]])
    ties = [right, right.copy(), right.copy()]
    ties[1][1, 0] = ties[1][0, 0]
    ties[2][0, 1] = ties[2][1, 1]
    assert are_right(np.stack(ties)).tolist() == [True, False, False]


def test_pairs_come_in_the_order_of_the_file_with_the_images_of_their_folder(mmvp: Path) -> None:
    patterns = load_mmvp(mmvp)
    assert [len(pairs) for pairs in patterns.values()] == [15] * 9
    first, last = patterns["Orientation"][0], patterns["Camera"][-1]
    assert first.images == (
        mmvp / "MLLM_VLM Images" / "Orientation" / "1.jpg",
        mmvp / "MLLM_VLM Images" / "Orientation" / "2.jpg",
    )
    assert first.statements == ('a red thing, "large"', "a blue thing")
    assert last.images[1] == mmvp / "MLLM_VLM Images" / "Camera" / "270.jpg"


def test_an_embedder_of_colours_is_right_where_the_images_differ_in_colour(mmvp: Path) -> None:
    embedder = ColorWords()
    scores = evaluate_mmvp(embedder, load_mmvp(mmvp))
    assert scores == {
        "Orientation": 100,
        "Presence": 100,
        "State": pytest.approx(100 * 14 / 15),
        "Quantity": 100,
        "Spatial": 100,
        "Color": 0,
        "Structural": 100,
        "Text": 100,
        "Camera": 100,
    }
    assert embedder.read[:2] == ['a photo of a red thing, "large"', "a photo of a blue thing"]


def test_each_pattern_is_asked_its_own_instruction(mmvp: Path) -> None:
    embedder = ColorWords()
    evaluate_mmvp(embedder, load_mmvp(mmvp))
    assert embedder.asked == [
        "Describe the orientation, position, or the direction of the object.",
        "Focus on the presence of objects in the image.",
        "Focus on the specific state or the condition of the objects in the image.",
        "Focus on the quantity of the objects in the image.",
        "Describe the spatial relationship and the positions of the objects in the image.",
        "Focus on the color of the objects in the image.",
        "Describe the state of the objects in the image.",
        "Focus on the texts on the objects in the image.",
        "Describe the perspective and view from which the photo is taken.",
    ]


def test_missing_files_are_named_before_any_image_is_embedded(mmvp: Path) -> None:
    patterns = load_mmvp(mmvp)
    patterns["Camera"][-1].images[1].unlink()
    embedder = ColorWords()
    with pytest.raises(BadFile, match=r"Camera/270.jpg is missing. It belongs to MMVP-VLM"):
        evaluate_mmvp(embedder, patterns)
    assert embedder.num_images == 0
    questions = mmvp / "Questions.csv"
    questions.write_text("\n".join(questions.read_text().splitlines()[:-1]))
    with pytest.raises(BadFile, match=r"Questions.csv holds 269 statements, not 270"):
        load_mmvp(mmvp)
    questions.unlink()
    with pytest.raises(BadFile, match=r"Questions.csv is missing"):
        load_mmvp(mmvp)


def test_a_model_without_texts_is_told_apart(mmvp: Path) -> None:
    with pytest.raises(NoTextSide):
        evaluate_mmvp(MeanColor(), load_mmvp(mmvp))
