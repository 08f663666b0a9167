"""Replacements of a word have its form, differ from it, and are not offensive."""

import pickle
from pathlib import Path

import pytest

from services.score.negatives.inflection import inflected
from services.score.negatives.lexicon import ADJECTIVES, NOUNS, NUMBERS, VERBS, FirstOf, Vocabulary
from services.score.negatives.wordnet import WordNet, find_wordnet
from services.score.negatives.wordnet_lexicon import MAX_CANDIDATES, WordNetLexicon
from tests.score.tiny_wordnet import Sense, animals, below, write_wordnet


@pytest.fixture
def lexicon(tmp_path: Path) -> WordNetLexicon:
    return WordNetLexicon(WordNet(write_wordnet(tmp_path, animals())))


@pytest.fixture(scope="module")
def installed() -> WordNetLexicon:
    found = find_wordnet()
    if found is None:
        pytest.skip("no WordNet is installed (Debian's wordnet-base, or NLTK's corpora/wordnet)")
    return WordNetLexicon(found)


def texts(lexicon: Vocabulary | WordNetLexicon | FirstOf, word: str, tag: str) -> set[str]:
    return {text for text, _ in lexicon.candidates(word, tag)}


@pytest.mark.parametrize(
    ("groups", "tag"), [(ADJECTIVES, "JJ"), (NUMBERS, "CD"), (NOUNS, "NN"), (NOUNS, "NNS"), (VERBS, "VBG")]
)
def test_words_of_a_group_replace_each_other_and_synonyms_do_not(groups: tuple[str, ...], tag: str) -> None:
    vocabulary = Vocabulary()
    for group in groups:
        meanings = [{inflected(word, tag) for word in meaning.split()} for meaning in group.split("|")]
        for meaning in meanings:
            for word in meaning:
                found = vocabulary.candidates(word, tag)
                assert {text for text, _ in found} >= set().union(*meanings) - meaning
                assert not meaning & {text for text, _ in found}, f"{word} means the same"
                assert len({text for text, _ in found}) == len(found)
                assert all(weight > 0 for _, weight in found)


def test_the_vocabulary_knows_scenes() -> None:
    vocabulary = Vocabulary()
    assert {"large", "big", "huge"} == texts(vocabulary, "small", "JJ")
    assert {"blue", "lime", "navy", "cyan"} <= texts(vocabulary, "red", "JJ")
    assert "grey" not in texts(vocabulary, "gray", "JJ")
    assert {"squares", "crosses", "hearts"} <= texts(vocabulary, "circles", "NNS")
    assert {"dotted", "checkered", "plain"} <= texts(vocabulary, "striped", "JJ")
    assert texts(vocabulary, "three", "CD") >= {"two", "four"}
    assert not texts(vocabulary, "zeugma", "NN")


def test_the_first_lexicon_that_knows_a_word_speaks(lexicon: WordNetLexicon) -> None:
    both = FirstOf((Vocabulary(), lexicon))
    assert both.candidates("big", "JJ") == Vocabulary().candidates("big", "JJ")
    assert both.candidates("quickly", "RB") == lexicon.candidates("quickly", "RB")
    assert not both.candidates("zeugma", "NN")


def test_cousins_are_weighted_by_how_often_they_were_met(lexicon: WordNetLexicon) -> None:
    weights = dict(lexicon.candidates("dog", "NN"))
    assert set(weights) == {"wolf", "cat", "lynx", "true cat"}, "kinds of other kinds of animals"
    assert weights["cat"] == 18 * weights["wolf"] / 3
    assert weights["lynx"] == weights["true cat"] < weights["wolf"], "in no text"
    assert texts(lexicon, "dogs", "NNS") == {"wolves", "cats", "lynxes", "true cats"}


def test_what_a_word_also_is_does_not_replace_it(lexicon: WordNetLexicon) -> None:
    assert not texts(lexicon, "dog", "NN") & {"domestic dog", "canine", "animal", "beast", "puppy"}


def test_names_and_words_that_insult_replace_nothing(lexicon: WordNetLexicon) -> None:
    found = texts(lexicon, "dog", "NN")
    assert "cur" not in found
    assert not {text for text in found if text != text.lower()}


def test_opposites_replace_adjectives_also_those_of_what_they_resemble(lexicon: WordNetLexicon) -> None:
    assert texts(lexicon, "big", "JJ") == {"small"}
    assert texts(lexicon, "huge", "JJ") == {"small"}
    assert texts(lexicon, "quickly", "RB") == {"slowly"}


def test_verbs_take_the_form_of_the_verb_that_they_replace(lexicon: WordNetLexicon) -> None:
    assert texts(lexicon, "chasing", "VBG") == {"trotting", "jogging", "regretting"}
    assert texts(lexicon, "chases", "VBZ") == {"trots", "jogs", "regrets"}


def test_verbs_just_below_the_most_general_ones_exclude_nothing(lexicon: WordNetLexicon) -> None:
    assert not lexicon.candidates("hesitates", "VBZ")


def test_words_of_no_text_are_used_only_where_others_are_few(tmp_path: Path) -> None:
    usual = ("panther", "leopard", "jaguar", "cheetah", "civet")
    senses = animals() | {name: Sense(name, pointers=below("feline"), counts=(2,)) for name in usual}
    found = texts(WordNetLexicon(WordNet(write_wordnet(tmp_path, senses))), "dog", "NN")
    assert found == {"wolf", "cat", *usual}


def test_a_noun_that_is_a_plural_stands_for_plurals_as_it_is(tmp_path: Path) -> None:
    senses = animals() | {name: Sense(name, pointers=below("feline"), counts=(2,)) for name in ("receipt", "receipts")}
    lexicon = WordNetLexicon(WordNet(write_wordnet(tmp_path, senses)))
    assert "receipts" not in texts(lexicon, "dog", "NN")
    assert "receipts" in texts(lexicon, "dogs", "NNS") and "receiptses" not in texts(lexicon, "dogs", "NNS")


@pytest.mark.parametrize("tag", ["NNP", "DT", "IN", "CD", "."])
def test_other_words_are_not_replaced(lexicon: WordNetLexicon, tag: str) -> None:
    assert not lexicon.candidates("dog", tag)


def test_a_copy_in_another_process_says_the_same(lexicon: WordNetLexicon) -> None:
    copy = pickle.loads(pickle.dumps(lexicon))  # noqa: S301
    assert copy.candidates("dog", "NN") == lexicon.candidates("dog", "NN")


@pytest.mark.parametrize(
    ("word", "tag", "expected"),
    [
        ("bench", "NN", {"chair", "bed"}),
        ("women", "NNS", {"men"}),
        ("happy", "JJ", {"unhappy"}),
        ("standing", "VBG", {"sitting", "lying"}),
        ("slowly", "RB", {"quickly"}),
        ("bedroom", "NN", {"kitchen", "bathroom"}),
        ("teddy bear", "NN", {"doll", "balloon"}),
        ("has", "VBZ", {"lacks"}),
    ],
)
def test_the_installed_wordnet_replaces_everyday_words(
    installed: WordNetLexicon, word: str, tag: str, expected: set[str]
) -> None:
    found = installed.candidates(word, tag)
    assert expected <= {text for text, _ in found[:40]}
    assert len(found) <= MAX_CANDIDATES
    assert [weight for _, weight in found] == sorted((weight for _, weight in found), reverse=True)
