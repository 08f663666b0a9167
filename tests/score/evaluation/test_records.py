"""Records: matching images and captions have the same place, and only a strictly best choice is right."""

from pathlib import Path

import numpy as np
import pytest

from services.core.text_files import BadFile
from services.jobs.published_data import Source
from services.score.evaluation.records import (
    Record,
    Scores,
    Task,
    category_index,
    image_is_right,
    outcomes,
    percent,
    text_is_right,
)

SOURCE = Source("pets", "https://example.org/pets")
A, B = Path("a.jpg"), Path("b.jpg")


def scores(*rows: list[float]) -> Scores:
    """One order."""
    return np.array([rows])


@pytest.mark.parametrize(
    ("images", "captions", "kind"),
    [
        ((A,), ("a dog", "a cat", "a cow"), "image-to-text"),
        ((A, B), ("a dog",), "text-to-image"),
        ((A, B), ("a dog", "a cat"), "group"),
    ],
)
def test_the_kind_of_a_record_is_its_shape(images: tuple[Path, ...], captions: tuple[str, ...], kind: str) -> None:
    assert Record("0", images, captions).kind == kind


@pytest.mark.parametrize(
    ("images", "captions", "message"),
    [
        ((A,), ("a dog",), "nothing to choose from"),
        ((), ("a dog", "a cat"), "0 images and 2 captions"),
        ((A, B), ("a dog", "a cat", "a cow"), "2 images and 3 captions: give one of either, or equal numbers of both"),
    ],
)
def test_a_record_without_a_choice_is_refused(
    images: tuple[Path, ...], captions: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Record("0", images, captions)


def test_the_first_caption_has_to_be_strictly_better_than_all_others() -> None:
    right = [scores([3, 2, 1]), scores([3, 3, 1]), scores([3, 1, 4]), scores([-1, -2, -3])]
    assert outcomes(right).both.tolist() == [1, 0, 0, 1]


def test_of_several_true_captions_each_has_to_be_strictly_better_than_the_false_one() -> None:
    right = [scores([3, 2, 1]), scores([2, 3, 1]), scores([3, 1, 1]), scores([3, 1, 2]), scores([1, 2, float("nan")])]
    assert outcomes(right, num_true=2).both.tolist() == [1, 1, 0, 0, 0]
    in_two_orders = np.array([[[3, 2, 1]], [[3, 1, 2]]])
    assert outcomes([in_two_orders], num_true=2).text.tolist() == [0.5]


def test_true_captions_need_a_false_one_and_one_image() -> None:
    for record in (Record("0", (A,), ("a dog", "a puppy")), Record("0", (A, B), ("a dog", "a cat"))):
        with pytest.raises(ValueError, match="pets needs one image and a false caption beside 2 true ones"):
            Task("pets", "pets", (record,), SOURCE, num_true=2)


def test_the_first_image_has_to_be_strictly_better_than_all_others() -> None:
    right = [scores([3], [2]), scores([3], [3]), scores([2], [3])]
    assert outcomes(right).both.tolist() == [1, 0, 0]


def test_what_could_not_be_scored_is_wrong() -> None:
    assert outcomes([scores([np.nan, 1]), scores([1, np.nan])]).both.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("table", "text", "image"),
    [
        (([2, 1], [0, 3]), True, True),
        # the second image prefers the first caption
        (([2, 1], [4, 3]), False, False),
        # every image finds its caption, but the first caption finds the second image
        (([2, 1], [3, 4]), True, False),
        (([2, 3], [1, 4]), False, True),
        # ties, of an image between captions and of a caption between images
        (([2, 2], [0, 3]), False, True),
        (([2, 1], [2, 3]), True, False),
    ],
)
def test_a_group_is_right_where_all_images_find_their_captions_and_all_captions_their_images(
    table: tuple[list[float], list[float]], text: bool, image: bool
) -> None:
    found = outcomes([scores(*table)])
    assert (text_is_right(scores(*table)).tolist(), image_is_right(scores(*table)).tolist()) == ([text], [image])
    assert (*found.text, *found.image, *found.both) == (text, image, text and image)


def test_groups_may_be_larger_than_two() -> None:
    right = np.eye(3)
    assert outcomes([right[None]]).both.tolist() == [1]
    right[1, 2] = 1
    assert outcomes([right[None]]).both.tolist() == [0]


def test_orders_count_by_their_share_and_a_group_must_be_right_in_the_same_one() -> None:
    assert outcomes([np.array([[[1.0, 0.0]], [[0.0, 1.0]]])]).both.tolist() == [0.5]
    only_text, only_image = [[2.0, 1.0], [3.0, 4.0]], [[2.0, 3.0], [1.0, 4.0]]
    found = outcomes([np.array([only_text, only_image])])
    assert (*found.text, *found.image, *found.both) == (0.5, 0.5, 0)


def test_a_task_may_average_over_categories_of_unequal_size() -> None:
    kinds = ("on", "on", "on", "under")
    records = tuple(Record(str(place), (A,), ("x", "y"), kind) for place, kind in enumerate(kinds))
    right = np.array([1.0, 1.0, 1.0, 0.0])
    plain = Task("VG_Relation", "aro", records, SOURCE)
    assert percent(right, category_index(plain)) == 75
    by_category = Task("VG_Relation", "aro", records, SOURCE, by_category=True)
    assert percent(right, category_index(by_category)) == 50
    # drawn anew, a category may be left without records
    assert percent(right[3:], category_index(by_category)[3:]) == 0


def test_a_task_of_several_kinds_of_nothing_or_of_one_id_twice_is_refused_by_name() -> None:
    text, image = Record("0", (A,), ("x", "y")), Record("1", (A, B), ("x",))
    with pytest.raises(ValueError, match=r"pets has records of several kinds: image-to-text, text-to-image"):
        Task("pets", "mine", (text, image), SOURCE)
    with pytest.raises(ValueError, match=r"pets has no records"):
        Task("pets", "mine", (), SOURCE)
    with pytest.raises(ValueError, match=r"pets holds '0' twice"):
        Task("pets", "mine", (text, text), SOURCE)


def test_a_missing_image_is_named_with_its_source(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    record = Record("0", (tmp_path / "a.jpg", tmp_path / "b.jpg"), ("a dog",))
    with pytest.raises(BadFile, match=r"b.jpg is missing. It belongs to pets, available from https://example.org"):
        Task("pets", "mine", (record,), SOURCE).check_images()
