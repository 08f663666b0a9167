"""WordNet is read where it lies: words in any form, their senses, what these point to and how often they were met."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.score.negatives.wordnet import FILES, WordNet, find_wordnet
from tests.score.tiny_wordnet import animals, write_archive, write_wordnet


@pytest.fixture(params=["folder", "archive"])
def wordnet(request: pytest.FixtureRequest, tmp_path: Path) -> WordNet:
    folder = write_wordnet(tmp_path / "wordnet", animals())
    return WordNet(folder if request.param == "folder" else write_archive(tmp_path / "wordnet.zip", folder))


@pytest.fixture(scope="module")
def installed() -> WordNet:
    found = find_wordnet()
    if found is None:
        pytest.skip("no WordNet is installed (Debian's wordnet-base, or NLTK's corpora/wordnet)")
    return found


def test_a_sense_has_its_words_in_order(wordnet: WordNet) -> None:
    assert [sense.lemmas for sense in wordnet.synsets("dog", "n")] == [("dog", "domestic_dog")]
    assert [sense.lemmas for sense in wordnet.synsets("dog", "v")] == [("chase", "dog")]


@pytest.mark.parametrize(
    ("word", "pos", "forms"),
    [
        ("dogs", "n", ["dog"]),
        ("Dogs", "n", ["dog"]),
        ("wolves", "n", ["wolf"]),
        ("puppies", "n", ["puppy"]),
        ("chasing", "v", ["chase"]),
        ("chased", "v", ["chase"]),
        ("regretted", "v", ["regret"]),
        ("bigger", "a", ["big"]),
        ("hugest", "a", ["huge"]),
        ("quickly", "r", ["quickly"]),
        ("unicorn", "n", []),
        ("", "n", []),
        ("s", "n", []),
        (" 1 This", "n", []),
        ("\ud800", "n", []),
    ],
)
def test_a_word_in_any_form_has_its_dictionary_form(wordnet: WordNet, word: str, pos: str, forms: list[str]) -> None:
    assert wordnet.base_forms(word, pos) == forms  # type: ignore[arg-type]


def test_senses_point_to_others(wordnet: WordNet) -> None:
    (dog,) = wordnet.synsets("dog", "n")
    (canine,) = wordnet.related(dog, "@")
    assert canine.lemmas == ("canine",)
    assert {kind.lemmas[0] for kind in wordnet.related(canine, "~")} == {"dog", "wolf", "cur"}
    (big,) = wordnet.synsets("big", "a")
    assert [(other.lemmas[place]) for other, place in wordnet.related_lemmas(big, "!")] == ["small"]
    assert not list(wordnet.related_lemmas(big, "!", place=1)), "the opposite is big's, not large's"


def test_words_are_counted_by_sense_also_those_of_satellites(wordnet: WordNet) -> None:
    (noun,), (verb,), (huge,) = (wordnet.synsets(*asked) for asked in (("dog", "n"), ("dog", "v"), ("huge", "a")))
    assert [wordnet.count(noun, place) for place in range(2)] == [40, 0]
    assert [wordnet.count(verb, place) for place in range(2)] == [4, 1]
    assert huge.is_satellite and huge.lemmas == ("huge", "vast")
    assert [wordnet.count(huge, place) for place in range(2)] == [3, 1]
    assert wordnet.met_lemmas >= {"dog", "huge"} and "lynx" not in wordnet.met_lemmas


def test_a_sense_has_its_gloss_and_a_lemma_its_irregular_forms(wordnet: WordNet) -> None:
    (cur,) = wordnet.synsets("cur", "n")
    assert wordnet.gloss(cur) == "an offensive word for a dog"
    assert wordnet.irregular_forms("regret", "v") == ("regretted", "regretting")


def test_a_copy_in_another_process_reads_the_same_files(wordnet: WordNet) -> None:
    copy = pickle.loads(pickle.dumps(wordnet))  # noqa: S301
    assert copy.source == wordnet.source
    assert copy.synsets("wolves", "n") == wordnet.synsets("wolves", "n")


def test_a_named_folder_must_hold_a_database(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "wordnet.zip", tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError):
            find_wordnet(place)


def test_nltks_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_wordnet(tmp_path / "corpora" / "wordnet", animals())
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    found = find_wordnet()
    assert found is not None and found.source == folder


def lemmas_of(wordnet: WordNet, name: str) -> Iterator[str]:
    with (wordnet.source / f"index.{name}").open() as lines:
        yield from (line.split()[0] for line in lines if not line.startswith(" "))


def test_every_word_of_the_installed_index_is_found_by_halving(installed: WordNet) -> None:
    if installed.source.suffix == ".zip":
        pytest.skip("the installed WordNet is an archive")
    for pos, name in FILES.items():
        for place, lemma in enumerate(lemmas_of(installed, name)):
            if place % 50 == 0 or place < 20:
                assert installed.synsets_of_lemma(lemma, pos), lemma


def test_the_installed_database_says_what_is_printed_of_it(installed: WordNet) -> None:
    """The senses of `car` and `small`, whose order, counts and neighbours do not differ between WordNet 3.0 and 3.1."""
    cars = installed.synsets("cars", "n")
    assert [sense.lemmas[0] for sense in cars] == ["car", "car", "car", "car", "cable_car"]
    assert cars[0].lemmas == ("car", "auto", "automobile", "machine", "motorcar")
    assert installed.count(cars[0], 0) == 71
    assert [parent.lemmas[0] for parent in installed.related(cars[0], "@")] == ["motor_vehicle"]
    assert {"bus", "cab", "jeep"} <= {kind.lemmas[0] for kind in installed.related(cars[0], "~")}
    antonyms = {
        other.lemmas[p] for one in installed.synsets("small", "a") for other, p in installed.related_lemmas(one, "!")
    }
    assert {"large", "big"} <= antonyms
    assert installed.base_forms("ridden", "v") == ["ride"]
