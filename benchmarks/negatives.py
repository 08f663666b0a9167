"""Hard negatives a second on one core: by kind, for new captions and for known ones, and by alternatives.

python -m benchmarks.negatives [--captions 2000] [--rounds 5]

The captions are COCO's where ARO's file is in `shared/data`, generated scenes otherwise. Times are processor times, so
that other work on the machine matters little. Three states: with a new corpus every word is looked up in WordNet; then
words are known but captions are new; then captions are known too (the second epoch). The alternatives: the
tagger of TextBlob's own package, spaCy's small English model (which the released code of FSC-CLIP uses), and WordNet
through NLTK with the lookups of the released code, each where it is installed. NLTK finds its data by NLTK_DATA.
"""

import argparse
import csv
import importlib.util
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from services.score.negatives.annotation import Annotator, SpacyAnnotator, TextBlobAnnotator
from services.score.negatives.hard_negatives import KINDS, HardNegatives, Kind
from services.score.negatives.lexicon import FirstOf, Lexicon, Vocabulary
from services.score.negatives.wordnet import find_wordnet
from services.score.negatives.wordnet_lexicon import WordNetLexicon
from starters.score.data.scene_captions import Facts, Group, sentence
from tests.published_data import FOLDER

PAPER: tuple[Kind, ...] = ("negclip", "replace", "bigram_shuffle")
ASKED: dict[str, tuple[Kind, ...]] = {
    **{kind: (kind,) for kind in KINDS},
    "the paper's three": PAPER,
    "all four": KINDS,
}
ARO = FOLDER / "aro" / "valid_neg_clip.tsv"


def coco_captions(num: int) -> list[str]:
    with ARO.open(newline="", encoding="utf-8") as file:
        return [row["title"] for row in csv.DictReader(file, delimiter="\t")][:num]


def scenes(num: int) -> list[str]:
    draw = random.Random(0)
    colors, shapes, relations = ("red", "blue", "green", "pink"), ("circle", "square", "star"), ("left of", "above")

    def group() -> Group:
        return Group(draw.randint(1, 3), draw.choice(("small", "large")), draw.choice(colors), draw.choice(shapes))

    return [sentence(Facts((group(), group()), draw.choice(relations), texture="striped")) for _ in range(num)]


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of `work`, on one core."""
    began = time.process_time()
    work()
    return time.process_time() - began


def make_all(negatives: HardNegatives, captions: Sequence[str], kinds: Sequence[Kind], seed: int) -> None:
    for caption in captions:
        negatives.make(caption, kinds, seed)


def by_kind(annotator: Annotator, lexicon: Lexicon, captions: Sequence[str], rounds: int) -> dict[str, Any]:
    """Measure captions a second: new ones whose words are known, and known ones."""
    figures: dict[str, Any] = {}
    for name, kinds in ASKED.items():
        new, known = [], []
        for number in range(rounds):
            negatives = HardNegatives(annotator, lexicon)
            new.append(len(captions) / seconds(partial(make_all, negatives, captions, kinds, number)))
            known.append(len(captions) / seconds(partial(make_all, negatives, captions, kinds, rounds + number)))
        figures[name] = {"new_captions_per_s": summary(new), "known_captions_per_s": summary(known)}
    return figures


def first_sight(annotator: Annotator, captions: Sequence[str]) -> dict[str, float | None]:
    """Measure captions a second where no word has been looked up before, with WordNet and without it."""
    wordnet = find_wordnet()
    lexicons: dict[str, Lexicon | None] = {
        "vocabulary_captions_per_s": Vocabulary(),
        "wordnet_captions_per_s": FirstOf((Vocabulary(), WordNetLexicon(wordnet))) if wordnet else None,
    }
    figures: dict[str, float | None] = {}
    for name, lexicon in lexicons.items():
        figures[name] = None
        if lexicon is not None:
            spent = seconds(partial(make_all, HardNegatives(annotator, lexicon), captions, KINDS, 0))
            figures[name] = round(len(captions) / spent, 1)
    return figures


def taggers(captions: Sequence[str], ours: Annotator) -> dict[str, float | None]:
    """Measure captions a second that are tagged, and with our annotator also parsed for phrases."""
    from textblob.en import tag

    figures: dict[str, float | None] = {
        "ours": len(captions) / seconds(lambda: [ours.annotate(caption) for caption in captions]),
        "textblob": len(captions) / seconds(lambda: [tag(caption) for caption in captions]),
        "spacy": None,
    }
    if importlib.util.find_spec("spacy") and importlib.util.find_spec("en_core_web_sm"):
        spacy, some = SpacyAnnotator(), captions[:300]
        figures["spacy"] = len(some) / seconds(lambda: [spacy.annotate(caption) for caption in some])
    return {name: None if value is None else round(value, 1) for name, value in figures.items()}


def lookups(annotator: Annotator, captions: Sequence[str], num: int) -> dict[str, float | None]:
    """Measure new words a second: our WordNet reader, and NLTK's with the released code's lookups."""
    read = [annotator.annotate(caption) for caption in captions]
    pairs = ((word, tag) for one in read for word, tag in zip(one.lowered, one.tags, strict=True))
    words = [pair for pair in dict.fromkeys(pairs) if pair[1] in ("NN", "NNS", "JJ", "VBG", "VBZ", "VBN")][:num]
    figures: dict[str, float | None] = {"ours": None, "nltk": None}
    if wordnet := find_wordnet():
        lexicon = WordNetLexicon(wordnet)
        figures["ours"] = round(len(words) / seconds(lambda: [lexicon.candidates(*word) for word in words]), 1)
    if nltk := nltk_wordnet():
        figures["nltk"] = round(len(words) / seconds(lambda: list(nltk_candidates(nltk, words))), 1)
    return figures


def nltk_wordnet() -> Any | None:
    """Load NLTK's reader; None without its data."""
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError:
        return None
    return wordnet


def nltk_candidates(wordnet: Any, words: Sequence[tuple[str, str]]) -> Iterator[dict[str, int]]:
    """Look up antonyms and cousin co-hyponyms with their counts, cached by sense and word as in the released code."""
    count = cache(lambda lemma: lemma.count())

    @cache
    def cousins(sense: Any) -> list[Any]:
        grandparents = [up for parent in sense.hypernyms() for up in parent.hypernyms()]
        found = [kind for one in grandparents for uncle in one.hyponyms() for kind in uncle.hyponyms()]
        return [lemma for kind in found if kind != sense for lemma in kind.lemmas()]

    for word, tag in words:
        pos = {"N": "n", "V": "v", "J": "a"}[tag[0]]
        weights: dict[str, int] = {}
        for sense in wordnet.synsets(word, pos=pos):
            antonyms = [other for lemma in sense.lemmas() for other in lemma.antonyms()]
            for lemma in (*antonyms, *cousins(sense)):
                weights[lemma.name()] = weights.get(lemma.name(), 0) + max(count(lemma), 1)
        yield weights


def measure(num_captions: int, rounds: int) -> dict[str, Any]:
    captions = coco_captions(num_captions) if ARO.exists() else scenes(num_captions)
    began = time.process_time()
    annotator = TextBlobAnnotator()
    loaded_s = time.process_time() - began
    began = time.process_time()
    wordnet = find_wordnet()
    opened_s = time.process_time() - began
    lexicon: Lexicon = Vocabulary() if wordnet is None else FirstOf((Vocabulary(), WordNetLexicon(wordnet)))
    result = {
        "captions": len(captions),
        "source": "coco" if ARO.exists() else "scenes",
        "wordnet": wordnet is not None,
        "tagger_loaded_s": round(loaded_s, 3),
        "wordnet_opened_s": round(opened_s, 5),
        "first_sight": first_sight(annotator, captions),
    }
    make_all(HardNegatives(annotator, lexicon), captions, KINDS, 0)
    result["kinds"] = by_kind(annotator, lexicon, captions, rounds)
    result["resident_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result["tagged_captions_per_s"] = taggers(captions, annotator)
    result["looked_up_words_per_s"] = lookups(annotator, captions, 500)
    return result


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['captions']} captions ({result['source']}), captions a second on one core")
    for title in ("hard negatives", "new captions", "known captions"):
        table.add_column(title, justify="left" if title == "hard negatives" else "right")
    for name, figures in result["kinds"].items():
        medians = (figures[f"{state}_captions_per_s"]["median"] for state in ("new", "known"))
        table.add_row(name, *(f"{value:,.0f}" for value in medians))
    console = Console(width=110)
    console.print(table)
    first = result["first_sight"]
    console.print(f"all four at the first sight of every word: {first['wordnet_captions_per_s']} captions/s")
    console.print(f"tagging, captions/s: {result['tagged_captions_per_s']}")
    console.print(f"words looked up in WordNet for the first time, words/s: {result['looked_up_words_per_s']}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--captions", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    result = measure(arguments.captions, arguments.rounds)
    show(result)
    record("negatives", result)


if __name__ == "__main__":
    main()
