"""Hard negatives: of every kind, the same each time, never the caption, from any text in bounded work."""

import json
import os
import pickle
import re
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import (
    KINDS,
    MAX_CACHED,
    MAX_CACHED_CHARACTERS,
    HardNegatives,
    Kind,
    installed_hard_negatives,
)
from services.score.negatives.inflection import article
from services.score.negatives.lexicon import FirstOf, Vocabulary
from services.score.negatives.swaps import normalised
from services.score.negatives.wordnet import WordNet, find_wordnet
from services.score.negatives.wordnet_lexicon import WordNetLexicon
from starters.score.data.scene_captions import Facts, Group, sentence
from tests.score.captions import HOSTILE, aro_negatives, captions, sugarcrepe_captions
from tests.score.tiny_wordnet import animals, write_wordnet

pytestmark = pytest.mark.process

ANNOTATOR, VOCABULARY = TextBlobAnnotator(), Vocabulary()
SMALL = HardNegatives(ANNOTATOR, VOCABULARY)
SCENE = "two small red circles left of a large blue square on a striped gray background"
PHOTOGRAPH = "The small blue van is parked in front of a fence."
kinds = st.lists(st.sampled_from(KINDS), unique=True)


@pytest.mark.parametrize("caption", [SCENE, PHOTOGRAPH, "a small red circle left of two blue squares"])
def test_captions_have_negatives_of_every_kind(caption: str) -> None:
    for seed in range(20):
        made = SMALL.make(caption, KINDS, seed)
        assert all(made.values()), made
        assert len({normalised(text) for text in (caption, *made.values()) if text}) >= 4


def test_seeds_draw_different_texts() -> None:
    for kind in KINDS:
        texts = {SMALL.make(SCENE, [kind], seed)[kind] for seed in range(30)}
        assert len(texts) >= (2 if kind in ("relation", "negate") else 8), kind


@settings(deadline=None)
@given(captions, kinds, st.integers(0, 2**63 - 1))
def test_a_negative_is_another_text(caption: str, asked: list[Kind], seed: int) -> None:
    made = SMALL.make(caption, asked, seed)
    assert list(made) == asked
    for text in made.values():
        if text is not None:
            assert normalised(text) not in ("", normalised(caption))


@settings(deadline=None)
@given(captions, kinds, st.integers(0, 100))
def test_a_kinds_text_does_not_depend_on_what_else_is_asked(caption: str, asked: list[Kind], seed: int) -> None:
    everything = SMALL.make(caption, KINDS, seed)
    fresh = HardNegatives(ANNOTATOR, VOCABULARY)
    assert fresh.make(caption, asked, seed) == {kind: everything[kind] for kind in asked}


def test_texts_are_the_same_in_every_process() -> None:
    asked = [SCENE, PHOTOGRAPH, "A dog \ud800 on a mat", "A man is riding a horse next to an old umbrella."]
    program = f"""
import json
from services.score.negatives.hard_negatives import installed_hard_negatives
from services.score.negatives.hard_negatives import KINDS
made = installed_hard_negatives()
print(json.dumps([made.make(caption, KINDS, seed) for caption in {asked!r} for seed in (0, 7)]))
"""
    outputs = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(json.loads(done.stdout))
    here = installed_hard_negatives()
    assert outputs[0] == outputs[1] == [here.make(caption, KINDS, seed) for caption in asked for seed in (0, 7)]


@pytest.mark.parametrize("caption", HOSTILE.values(), ids=HOSTILE)
def test_any_text_has_negatives_or_none(caption: str) -> None:
    for seed in range(3):
        for text in SMALL.make(caption, KINDS, seed).values():
            assert text is None or normalised(text) not in ("", normalised(caption))


def test_what_is_past_the_limit_of_a_long_caption_is_kept() -> None:
    caption = SCENE + " and so on" * 2_000 + ", the end"
    for text in SMALL.make(caption, KINDS, 0).values():
        assert text is not None and text.endswith(", the end")
        assert abs(len(text) - len(caption)) < 100


def test_what_is_kept_of_captions_fits_256_megabytes() -> None:
    # words that no other caption has, each a thing of its own
    texts = ["".join(chr(0x20000 + 200 * i + k) * 6 + "," for k in range(200)) for i in range(20)]
    negatives = HardNegatives(ANNOTATOR, VOCABULARY)
    negatives.make(texts[0][:MAX_CACHED_CHARACTERS], KINDS, 1)
    tracemalloc.start()
    try:
        for text in texts[1:]:
            negatives.make(text[:MAX_CACHED_CHARACTERS], KINDS, 1)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 10_000 < kept / len(texts[1:]) < 256_000_000 / MAX_CACHED


def test_a_caption_without_counterpart_has_none() -> None:
    assert SMALL.make("dogs", KINDS, 0) == dict.fromkeys(KINDS)
    assert SMALL.make("a dog and a cat", ["relation"], 0) == {"relation": None}
    assert SMALL.make("", [], 0) == {}


def test_a_copy_in_another_process_makes_the_same() -> None:
    copy = pickle.loads(pickle.dumps(SMALL))  # noqa: S301
    assert copy.make(SCENE, KINDS, 3) == SMALL.make(SCENE, KINDS, 3)
    assert copy.sources == SMALL.sources


def test_it_is_said_what_the_negatives_are_made_with() -> None:
    installed = installed_hard_negatives()
    wordnet = find_wordnet()
    assert installed.sources["wordnet"] == (None if wordnet is None else str(wordnet.source))
    assert str(installed.sources["tagger"]).startswith(("textblob", "spacy"))


def test_the_capital_of_the_sentence_and_articles_are_kept_right() -> None:
    texts = {
        SMALL.make("An old red helmet is on a yellow toilet in the dirt.", ["negclip"], s)["negclip"] for s in range(60)
    }
    assert "A yellow toilet is on an old red helmet in the dirt." in texts
    assert not any(text and (re.search(r"\b(a [aeo]|an [^aeo])", text.lower()) or text[0] == "a") for text in texts)


def test_the_verb_agrees_where_one_thing_and_several_change_places() -> None:
    caption = "Two small dogs are sleeping on a big bed."
    texts = {SMALL.make(caption, ["negclip"], seed)["negclip"] for seed in range(60)}
    assert "A big bed is sleeping on two small dogs." in texts
    assert not any(text and text.startswith("A big bed are") for text in texts)


SCENES = [
    Facts((Group(1, "small", "red", "circle"), Group(2, "large", "blue", "square")), relation="left of"),
    Facts((Group(2, None, "lime", "star"), Group(1, None, "orange", "ring")), relation="below", background="gray"),
    Facts((Group(3, "large", "navy", "cross"), Group(3, "small", "pink", "heart")), relation="above", texture="dotted"),
]


@pytest.mark.parametrize("style", [0, 1])
@pytest.mark.parametrize("said", SCENES, ids=sentence)
def test_a_scenes_relation_is_turned_into_a_false_one(said: Facts, style: int) -> None:
    opposites = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert said.relation is not None
    turned = Facts(said.groups, opposites[said.relation], said.place, said.texture, said.background)
    exchanged = Facts(said.groups[::-1], said.relation, said.place, said.texture, said.background)
    made = {SMALL.make(sentence(said, style), ["relation"], seed)["relation"] for seed in range(20)}
    assert made == {sentence(turned, style), sentence(exchanged, style)}


def test_attributes_and_things_of_scenes_are_swapped() -> None:
    caption = "a small red circle above a large blue square"
    made = {SMALL.make(caption, ["negclip"], seed)["negclip"] for seed in range(60)}
    assert made >= {
        "a small blue circle above a large red square",
        "a large red circle above a small blue square",
        "a small red square above a large blue circle",
        "a large blue square above a small red circle",
    }


@pytest.fixture(scope="module")
def with_wordnet() -> HardNegatives:
    found = find_wordnet()
    if found is None:
        pytest.skip("no WordNet is installed (Debian's wordnet-base, or NLTK's corpora/wordnet)")
    return HardNegatives(ANNOTATOR, FirstOf((VOCABULARY, WordNetLexicon(found))))


def share(negatives: HardNegatives, texts: list[str], kind: Kind) -> float:
    made = [negatives.make(text, [kind], 0)[kind] for text in texts]
    return sum(text is not None for text in made) / len(texts)


@pytest.mark.parametrize("source", ["aro", "sugarcrepe"])
def test_nearly_all_captions_of_photographs_have_negatives(source: str) -> None:
    texts = (list(aro_negatives()) if source == "aro" else sugarcrepe_captions())[::10]
    assert share(SMALL, texts, "negclip") > 0.97
    assert share(SMALL, texts, "bigram_shuffle") > 0.999
    assert share(SMALL, texts, "relation") > 0.72
    assert share(SMALL, texts, "replace") > 0.95


def test_wordnet_adds_replacements(with_wordnet: HardNegatives) -> None:
    texts = list(aro_negatives())[::100]
    assert share(with_wordnet, texts, "replace") > 0.98
    assert share(with_wordnet, texts, "replace") >= share(SMALL, texts, "replace")


def test_a_wordnet_in_a_named_folder_is_used(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_wordnet(tmp_path_factory.mktemp("wordnet"), animals())
    named = installed_hard_negatives(folder)
    assert named.sources["wordnet"] == str(folder)
    assert WordNet(folder).synsets("wolf", "n")
    made = {named.make("the wolf near the huge rock", ["replace"], seed)["replace"] for seed in range(40)}
    assert "the dog near the huge rock" in made


ARTICLE = re.compile(r"\b(an?) ([a-z]+)", re.IGNORECASE)


def wrong_articles(text: str) -> set[str]:
    found = ARTICLE.finditer(text)
    return {match[0].lower() for match in found if article(match[2], "a") != match[1].lower()}


def test_articles_agree_in_captions_of_photographs() -> None:
    for caption in list(aro_negatives())[::5]:
        made = SMALL.make(caption, ["negclip", "replace", "relation"], 1)
        for kind, text in made.items():
            # "a a" and the like, where a letter or a slip was tagged as a noun
            slips = {found for found in wrong_articles(text or "") if found.split()[1] in ("a", "an")}
            assert wrong_articles(text or "") <= wrong_articles(caption) | slips, (kind, text)


def test_what_aros_authors_swapped_is_among_the_swaps() -> None:
    """Their negatives were drawn by the same method with another tagger: most can be drawn here as well."""

    def plain(text: str) -> str:
        return " ".join(re.sub(r"[^a-z0-9 ]", "", text.lower()).replace(" an ", " a ").split())

    reached = total = 0
    for caption, theirs in list(aro_negatives().items())[::80]:
        ours = {plain(SMALL.make(caption, ["negclip"], seed)["negclip"] or "") for seed in range(40)}
        reached += sum(plain(text) in ours for text in theirs)
        total += len(theirs)
    assert reached / total > 0.8


def test_a_denial_puts_no_in_the_place_of_an_article_or_not_behind_a_verb() -> None:
    made = {SMALL.make("A cat is on a mat", ("negate",), seed)["negate"] for seed in range(20)}
    assert made == {"No cat is on a mat", "A cat is not on a mat", "A cat is on no mat"}
    assert SMALL.make("dogs under blankets", ("negate",), 0) == {"negate": None}
