"""Checks of hard negatives: what each type promises."""

import pytest

from services.jobs.sugarcrepe import published_pairs
from services.score.negatives.prompting.checks import WRITTEN_KINDS, Problem, WrittenKind, dressed_like, problem_of
from tests.published_data import published

CAPTION = "A man in a red hat holds an apple next to his dog."


@pytest.mark.parametrize(
    ("kind", "negative"),
    [
        ("replace_obj", "A man in a red coat holds an apple next to his dog."),
        ("replace_obj", "A woman in a red hat holds an apple next to her dog."),
        ("replace_obj", "A man in a red hat holds a bunch of grapes next to his dog."),
        ("replace_att", "a man in an orange hat holds an apple next to his dog"),
        ("replace_rel", "A man in a red hat holds an apple far from his dog."),
        ("swap_obj", "A dog in a red hat holds an apple next to his man."),
        ("swap_obj", "A man in an apple holds a red hat next to his dog."),
        ("add_obj", "A man in a red hat holds an apple and a pear next to his dog."),
        ("add_att", "A man in a red hat holds a rotten apple next to his dog."),
    ],
)
def test_a_negative_that_keeps_its_promise_has_no_problem(kind: WrittenKind, negative: str) -> None:
    assert problem_of(kind, CAPTION, negative) is None


@pytest.mark.parametrize(
    ("kind", "negative", "problem"),
    [
        *((kind, "a man in a red hat holds a apple next to his dog", "unchanged") for kind in WRITTEN_KINDS),
        ("replace_att", "A man in a orange hat holds an apple next to his dog.", "wrong_article"),
        ("replace_att", "A man in a “orange” hat holds an apple next to his dog.", "wrong_article"),
        ("replace_obj", "A man in a red coat holds an apple next to his cat.", "not_a_replacement"),
        ("replace_obj", "A man in a red hat holds next to his dog.", "not_a_replacement"),
        ("replace_obj", "A man in a red hat holds an apple and a pear next to his dog.", "not_a_replacement"),
        ("replace_obj", "I'm sorry, but I can't help with that.", "not_a_replacement"),
        ("swap_obj", "A man in a red coat holds an apple next to his dog.", "not_a_swap"),
        ("swap_obj", "A dog in a red man holds an apple next to his hat.", "not_a_swap"),  # three words in a ring
        ("swap_att", "A man in a hat red holds an apple next to his dog .", None),
        ("add_obj", "A man in a blue hat holds an apple next to his dog.", "not_an_addition"),
        ("add_obj", "A man holds an apple and a pear next to his dog.", "not_an_addition"),
        ("add_obj", CAPTION[:-1] + " and" + " one more" * 5, "not_an_addition"),
        ("add_obj", CAPTION + "\nI hope that this helps!", "too_long"),
    ],
)
def test_a_broken_promise_is_named(kind: WrittenKind, negative: str, problem: Problem | None) -> None:
    assert problem_of(kind, CAPTION, negative) == problem


def test_a_replacement_must_be_of_the_chosen_concept() -> None:
    negative = "A man in a red coat holds an apple next to his dog."
    assert problem_of("replace_obj", CAPTION, negative, "red hat") is None
    assert problem_of("replace_obj", CAPTION, negative, "dog") == "another_place"


def test_an_article_that_the_caption_itself_has_wrong_is_no_fault_of_the_negative() -> None:
    assert problem_of("replace_obj", "a apple near a cat", "a apple near a dog") is None


@pytest.mark.parametrize(
    ("negative", "caption", "dressed"),
    [
        ("A dog sits.", "a cat sits", "a dog sits"),
        ("a dog  sits", "A cat sits.", "A dog sits."),
        ("A dog sits!", "A cat sits. ", "A dog sits."),
        ("I see a dog", "a cat is seen", "I see a dog"),
        ("Santa and a dog", "a dog and Santa", "Santa and a dog"),
        ("TV near a dog.", "a dog near TV", "TV near a dog"),
    ],
)
def test_a_negative_is_written_as_its_caption_is(negative: str, caption: str, dressed: str) -> None:
    assert dressed_like(negative, caption) == dressed


def test_most_of_the_published_negatives_pass_and_none_of_another_type_does() -> None:
    """SugarCrepe's own, which ChatGPT was free to phrase: the checks ask for more, in swaps for much more."""
    pairs = published_pairs(published("sugar-crepe/unrefined"))
    shares = {}
    for kind in WRITTEN_KINDS:
        own = [pair for pair in pairs if pair.kind == kind]
        problems = [problem_of(kind, p.caption, dressed_like(p.negative_caption, p.caption)) for p in own]
        shares[kind] = round(problems.count(None) / len(own), 3)
    assert shares == {
        **{"replace_obj": 0.927, "replace_att": 0.947, "replace_rel": 0.88},
        **{"swap_obj": 0.712, "swap_att": 0.576, "add_obj": 0.686, "add_att": 0.922},
    }
    replaced = [pair for pair in pairs if pair.kind == "replace_att"]
    as_swaps = [problem_of("swap_att", pair.caption, pair.negative_caption) for pair in replaced]
    assert as_swaps.count(None) < 0.01 * len(replaced)
