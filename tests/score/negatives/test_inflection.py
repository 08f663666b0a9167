"""Words take the form of what they replace."""

import pytest

from services.score.negatives.inflection import article, cased_like, inflected, present_form


@pytest.mark.parametrize(
    ("lemma", "tag", "form"),
    [
        ("dog", "NN", "dog"),
        ("dog", "NNS", "dogs"),
        ("bus", "NNS", "buses"),
        ("bench", "NNS", "benches"),
        ("city", "NNS", "cities"),
        ("toy", "NNS", "toys"),
        ("woman", "NNS", "women"),
        ("fireman", "NNS", "firemen"),
        ("human", "NNS", "humans"),
        ("sheep", "NNS", "sheep"),
        ("fire engine", "NNS", "fire engines"),
        ("ride", "VBG", "riding"),
        ("run", "VBG", "running"),
        ("lie", "VBG", "lying"),
        ("see", "VBG", "seeing"),
        ("open", "VBG", "opening"),
        ("cook", "VBG", "cooking"),
        ("play", "VBD", "played"),
        ("carry", "VBD", "carried"),
        ("stop", "VBN", "stopped"),
        ("eat", "VBD", "ate"),
        ("eat", "VBN", "eaten"),
        ("go", "VBZ", "goes"),
        ("watch", "VBZ", "watches"),
        ("fly", "VBZ", "flies"),
        ("sit down", "VBG", "sitting down"),
        ("small", "JJ", "small"),
    ],
)
def test_a_dictionary_form_takes_the_form_of_a_tag(lemma: str, tag: str, form: str) -> None:
    assert inflected(lemma, tag) == form


@pytest.mark.parametrize(
    ("one", "many"), [("sits", "sit"), ("carries", "carry"), ("watches", "watch"), ("goes", "go"), ("rides", "ride")]
)
def test_a_verb_in_the_present_takes_its_other_number(one: str, many: str) -> None:
    assert present_form(one, is_third_person=False) == many
    assert present_form(many, is_third_person=True) == one


@pytest.mark.parametrize(
    ("right", "words"),
    [
        ("a", "dog house horse university unicorn unicycle uniform one one-way European user ukulele useful utensil"),
        ("an", "apple elephant umbrella hour honest heir uninteresting unimportant unusual ugly onion oven"),
    ],
)
def test_an_article_is_chosen_by_the_sound_that_follows(right: str, words: str) -> None:
    assert not {word for word in words.split() if article(word, "a") != right}


def test_an_article_keeps_its_capitals() -> None:
    assert article("apple", "A") == "An"
    assert article("dog", "An") == "A"
    assert article("dog", "AN") == "A"
    assert article("apple", "AN") == "AN"


@pytest.mark.parametrize(
    ("text", "model", "cased"),
    [
        ("far from", "next to", "far from"),
        ("far from", "Next to", "Far from"),
        ("far from", "Next To", "Far From"),
        ("far from", "NEXT TO", "FAR FROM"),
        ("two", "A", "Two"),
        ("", "A", ""),
    ],
)
def test_a_replacement_has_the_capitals_of_what_it_replaces(text: str, model: str, cased: str) -> None:
    assert cased_like(text, model) == cased
