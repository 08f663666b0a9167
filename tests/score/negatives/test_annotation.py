"""A caption is read as words with tags and phrases, by TextBlob's lexicon or by spaCy; joined again it is the same."""

import importlib.util
import json
import pickle
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings

from services.score.negatives.annotation import (
    MAX_CHARACTERS,
    MAX_WORDS,
    Annotator,
    SpacyAnnotator,
    TextBlobAnnotator,
    best_annotator,
    split_words,
    verb_phrases,
)
from services.score.negatives.tagging import Tagger, textblob_lexicon
from tests.score.captions import GOLDEN_FILE, HOSTILE, captions

pytestmark = pytest.mark.process

SPACY_MODEL = "en_core_web_sm"
GOLDEN = [doc for doc in json.loads(GOLDEN_FILE.read_text())["docs"] if doc["text"].endswith(".")]


@pytest.fixture(scope="module", params=["textblob", "spacy"])
def annotator(request: pytest.FixtureRequest) -> Annotator:
    if request.param == "textblob":
        return TextBlobAnnotator()
    if importlib.util.find_spec(SPACY_MODEL) is None:
        pytest.skip(f"spaCy's {SPACY_MODEL} is not installed")
    return SpacyAnnotator()


@pytest.mark.parametrize("caption", HOSTILE.values(), ids=HOSTILE)
def test_any_caption_is_read_and_joined_again_is_the_same(annotator: Annotator, caption: str) -> None:
    read = annotator.annotate(caption)
    assert read.replaced({}) == caption
    assert sum(map(len, read.words)) <= MAX_CHARACTERS
    assert len(read.words) <= MAX_WORDS
    assert len(read.words) == len(read.spaces) == len(read.tags) == len(read.kinds)


@settings(deadline=None)
@given(captions)
def test_spans_are_in_order_and_apart(caption: str) -> None:
    read = TEXTBLOB.annotate(caption)
    assert read.replaced({}) == caption
    for spans in (read.noun_chunks, read.verb_phrases):
        assert all(0 <= start < end <= len(read.words) for start, end in spans)
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    for place, word in enumerate(read.words):
        assert read.text((place, place + 1)) == word


TEXTBLOB = TextBlobAnnotator()


@pytest.mark.parametrize("doc", GOLDEN, ids=lambda doc: doc["text"])
def test_plain_captions_are_read_as_by_hand(annotator: Annotator, doc: dict[str, list[str]]) -> None:
    read = annotator.annotate(str(doc["text"]))
    assert list(read.words) == doc["words"]
    # a model may take a lower-case noun for a name
    assert [tag.replace("NNP", "NN") for tag in read.tags] == doc["tags"]
    chunks = [read.text(chunk) for chunk in read.noun_chunks]
    assert [chunk for chunk in chunks if len(chunk.split()) > 2] == doc["noun_phrases_gt2"]


def test_a_generated_scene_is_read(annotator: Annotator) -> None:
    read = annotator.annotate("two small red circles above a large blue square on a striped gray background")
    chunks = [read.text(chunk) for chunk in read.noun_chunks]
    assert chunks == ["two small red circles", "a large blue square", "a striped gray background"]
    adjectives = [word for word, kind in zip(read.words, read.kinds, strict=True) if kind == "ADJ"]
    assert {"small", "red", "large", "blue", "gray"} <= set(adjectives)


@pytest.mark.parametrize(
    ("caption", "tags"),
    [
        ("A man rides a horse", "DT NN VBZ DT NN"),
        ("two rides in a park", "CD NNS IN DT NN"),
        ("a sink next to a stop sign", "DT NN RB IN DT NN NN"),
        ("the bears stand in the dark", "DT NNS VBP IN DT NN"),
        ("Two kids laugh, ice cream on their faces", "CD NNS VBP , NN NN IN PRP$ NNS"),
        ("they smile at a horse", "PRP VBP IN DT NN"),
        ("a dog left of a cat", "DT NN RB IN DT NN"),
        ("a cat on the left", "DT NN IN DT NN"),
        ("A MAN IN A RED HAT", "DT NN IN DT JJ NN"),
        ("Statues of Elephants Near The Old Bridge", "NNS IN NNS IN DT JJ NN"),
        ("a living room", "DT NN NN"),
        ("people are skiing down a hill", "NNS VBP VBG IN DT NN"),
        ("It isn't the dog’s bowl.", "PRP VBZ RB DT NN POS NN ."),
        ("a frobnicator (quorbed) zorply", "DT NN ( VBN ) RB"),
    ],
)
def test_neighbours_tell_what_a_word_is(caption: str, tags: str) -> None:
    assert " ".join(TEXTBLOB.annotate(caption).tags) == tags


@pytest.mark.parametrize(
    ("caption", "chunks"),
    [
        ("a black and white picture of a very tall tree", ["a black and white picture", "a very tall tree"]),
        ("a horse-drawn cart's wheel", ["a horse-drawn cart's wheel"]),
        ("A squinting tennis player, seated", ["A squinting tennis player"]),
        ("a grass covered field", ["a grass covered field"]),
        ("a man wearing a hat", ["a man", "a hat"]),
        ("it is very red", []),
    ],
)
def test_noun_chunks_hold_what_belongs_to_a_noun(caption: str, chunks: list[str]) -> None:
    read = TEXTBLOB.annotate(caption)
    assert [read.text(chunk) for chunk in read.noun_chunks] == chunks


@pytest.mark.parametrize(
    ("kinds", "spans"),
    [
        ("NOUN AUX VERB ADP", ((1, 3),)),
        ("VERB", ((0, 1),)),
        ("AUX ADV", ()),
        ("VERB VERB ADV VERB", ((0, 1), (1, 4))),
        ("VERB ADV AUX AUX VERB VERB", ((0, 6),)),
        ("AUX ADV VERB", ((1, 3),)),
    ],
)
def test_of_verb_phrases_that_overlap_the_longest_counts(kinds: str, spans: tuple[tuple[int, int], ...]) -> None:
    assert verb_phrases(kinds.split()) == spans


def test_words_past_the_limits_stay_as_they_are() -> None:
    caption = "word " * (MAX_WORDS + 10) + "dog"
    _, words, _, rest = split_words(caption)
    assert len(words) == MAX_WORDS
    assert caption.endswith(rest) and rest.endswith("dog")
    # a word that the limit cuts through is not read at all
    _, words, _, rest = split_words("dog " + "x" * MAX_CHARACTERS)
    assert words == ["dog"]
    assert len(rest) == MAX_CHARACTERS + 1


def test_the_lexicon_is_the_one_that_textblob_tags_with() -> None:
    words = ["the", "parked", "man", "walks", "quickly", "behind", "seven", "green", "buildings"]
    program = f"from textblob.en import parser; print(dict(parser.find_tags({words!r})))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    lexicon = textblob_lexicon()
    assert {word: lexicon[word] for word in words} == eval(done.stdout)
    assert len(lexicon) > 90_000


def test_a_tagger_needs_no_more_than_its_lexicon() -> None:
    assert Tagger({}).tags(["a", "circle", "3", "!"])[1:] == ["NN", "CD", "."]


def test_an_annotator_can_be_sent_to_another_process(annotator: Annotator) -> None:
    copy = pickle.loads(pickle.dumps(annotator))  # noqa: S301
    assert copy.annotate("a dog").tags == annotator.annotate("a dog").tags


def test_spacy_is_used_where_its_model_is_installed() -> None:
    is_installed = importlib.util.find_spec("spacy") and importlib.util.find_spec(SPACY_MODEL)
    assert isinstance(best_annotator(), SpacyAnnotator if is_installed else TextBlobAnnotator)
