"""Separation of outcomes into pairs and rejected ones."""

from services.curate.authoring.candidates import Candidate, Outcome, separated
from services.curate.data.captions import Caption

DOG = Caption("1", "a.jpg", "A dog on a sofa.", "A sleeping dog")
ALSO_DOG = Caption("2", "a.jpg", "A dog near a cat.")
ELSEWHERE = Caption("3", "b.jpg", "A dog on a sofa.")


def outcome(caption: Caption, text: str, draw: int = 0) -> Outcome:
    return Outcome(Candidate(caption, "replace_obj", draw), text, "a model")


def reasons(*outcomes: Outcome) -> list[str]:
    return [one.reason for one in separated(outcomes)[1]]


def test_the_second_of_two_equal_negatives_of_a_caption_is_rejected() -> None:
    twice = (
        outcome(DOG, "A cat on a sofa."),
        outcome(DOG, "a cat on a sofa.", 1),
        outcome(ELSEWHERE, "A cat on a sofa."),
    )
    assert reasons(*twice) == ["repeated"]
    assert [pair.filename for pair in separated(twice)[0]] == ["a.jpg", "b.jpg"]


def test_a_negative_that_is_another_true_caption_of_the_image_is_rejected() -> None:
    others = (
        outcome(ALSO_DOG, "A dog on a pillow"),
        outcome(DOG, "a dog near a cat"),
        outcome(DOG, "A sleeping dog!", 1),
    )
    assert reasons(*others) == ["true_caption", "true_caption"]
    # of another image it may be false
    assert reasons(outcome(ELSEWHERE, "A dog near a cat."), outcome(ALSO_DOG, "A dog near a mat.")) == []


def test_the_id_of_a_pair_changes_with_its_texts_alone() -> None:
    (one,), _ = separated([outcome(DOG, "A cat on a sofa.")])
    (same,), _ = separated([outcome(DOG, "A cat on a sofa."), outcome(DOG, "A cat on a sofa.", 1)])
    (other,), _ = separated([outcome(DOG, "A cow on a sofa.")])
    assert one == same and one.id != other.id and one.id.startswith("1-replace_obj-")
