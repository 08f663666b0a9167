"""Parsing of models' replies, in the many forms that they have."""

import pytest

from services.score.negatives.prompting.writer import Unreadable, concepts_of, one_text


@pytest.mark.parametrize(
    "reply",
    [
        'Concepts: ["red hat", "dog"]',
        '**Concepts:** ["red hat", "dog"]',
        '- concepts: ["red hat", "dog", "dog"]',
        "Concepts: ['red hat', 'dog']",
        "Concepts: red hat, dog",
        '["red hat", "dog"]',
        'Sure!\n\nConcepts: ["red hat", "dog"]\n',
    ],
)
def test_a_list_of_concepts_is_read_in_every_usual_form(reply: str) -> None:
    assert concepts_of(reply) == ["red hat", "dog"]


def test_an_empty_list_is_not_the_same_as_none() -> None:
    assert concepts_of("Concepts: []") == []
    for reply in ("", "I can't do that.", "There are none:\n[]\n", 'Concepts: [1, {"a": 2}]', "Concepts:"):
        with pytest.raises(Unreadable):
            concepts_of(reply)


@pytest.mark.parametrize(
    "reply", ["New sentence: A dog.", 'New sentence: "A dog."', "**New sentence**: A dog.", "A dog.", "\n“A dog.”\n"]
)
def test_one_text_may_lack_its_label_and_have_quotation_marks(reply: str) -> None:
    assert one_text(reply, "new sentence") == "A dog."


@pytest.mark.parametrize("reply", ["", "Here it is.\nA dog.", "Chosen: dog", "New sentence:"])
def test_a_reply_without_the_text_is_unreadable(reply: str) -> None:
    with pytest.raises(Unreadable):
        one_text(reply, "new sentence")
