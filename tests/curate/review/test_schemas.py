"""Words in which captions differ."""

import pytest

from services.curate.review.schemas import word_difference
from services.jobs.sugarcrepe import published_pairs
from tests.curate.review.reviews import PAIRS
from tests.published_data import published


def marked(first: str, second: str) -> tuple[list[str], list[str]]:
    both = word_difference(first, second)
    return ([text for text, is_marked in both[0] if is_marked], [text for text, is_marked in both[1] if is_marked])


@pytest.mark.parametrize(
    ("first", "second", "differing"),
    [
        ("A red hat.", "A blue hat.", (["red"], ["blue"])),
        ("A hat.", "A hat and a coat.", ([], ["and a coat"])),
        ("The cat", "the cat", ([], [])),
        ("A red hat, a blue coat", "A blue hat, a red coat", (["red", "blue"], ["blue", "red"])),
        ("It doesn't well-fit.", "It does well-fit.", (["doesn't"], ["does"])),
        ("", "new", ([], ["new"])),
        ("ein großer Hut", "ein kleiner Hut", (["großer"], ["kleiner"])),
    ],
)
def test_words_are_marked_that_the_other_lacks(first: str, second: str, differing: tuple[list[str], list[str]]) -> None:
    assert marked(first, second) == differing


def test_the_runs_of_a_caption_join_to_the_whole() -> None:
    for pair in [*PAIRS, PAIRS[0].model_copy(update={"caption": "  two  spaces\n"})]:
        first, second = word_difference(pair.caption, pair.negative_caption)
        assert "".join(text for text, _ in first) == pair.caption
        assert "".join(text for text, _ in second) == pair.negative_caption


def test_pairs_of_the_authors_are_marked_and_whole() -> None:
    for pair in published_pairs(published("sugar-crepe/unrefined"))[::40]:
        both = word_difference(pair.caption, pair.negative_caption)
        assert tuple("".join(text for text, _ in runs) for runs in both) == (pair.caption, pair.negative_caption)
        assert any(is_marked for runs in both for _, is_marked in runs)
