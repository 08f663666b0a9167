"""Labels of the words of two sentences, from which it follows whether the first implies the second.

`side` is the sentence that a word is in; `group`, what kind of word it is, such as a color; `parent`, its nearest wider
word, and `wide`, the word itself if it is wider than others; `relation`, how it stands to the nearest word of the other
sentence; `denial`, whether the sentence that ends denies something; `label`, the answer.
"""

import re
from collections.abc import Iterator

from services.predict.data.rows import Row
from services.predict.written_numbers import SLOTS
from starters.predict.inferences import INFERENCES
from starters.predict.sentence_pairs.lexicon import (
    RELATIONS,
    as_wide,
    entries_of,
    group_names,
    group_of,
    nearest_wider,
    relation_of,
    wide_words,
)
from starters.predict.spans import Probe, Word, WordLabel, words_of

_DENIALS = re.compile(
    r"\b(?:not|no|never|nobody|none|neither|cannot|nothing|without|nowhere|unable|no one)\b|n't\b", re.IGNORECASE
)


def probes() -> tuple[Probe, ...]:
    """Return what is read from the words; the lexicon's files are read first."""
    return (
        Probe("side", 1, ("told", "said")),
        Probe("group", 1, ("number", *group_names())),
        Probe("parent", 1, wide_words()),
        Probe("wide", 1, wide_words()),
        Probe("relation", 3, RELATIONS),
        Probe("denial", 2, ("affirmed", "denied")),
        Probe("label", 4, INFERENCES.labels or ()),
    )


def label_words(example: Row) -> Iterator[WordLabel]:
    """Label the words of a pair of sentences whose numbers are slots."""
    text = example.input
    middle = text.index(INFERENCES.separator)
    after = middle + len(INFERENCES.separator)
    sentences = list(words_of(text, 0, middle)), list(words_of(text, after))
    entries = tuple(map(entries_of, sentences))
    for number, side in enumerate(("told", "said")):
        words, others = sentences[number], sentences[1 - number]
        for word in words:
            yield WordLabel(word.start, word.end, "side", side)
        covered = {place for entry in entries[number] for place in range(entry.start, entry.end)}
        for entry in entries[number]:
            told = {"group": group_of(entry), "parent": nearest_wider(entry), "wide": as_wide(entry)}
            told["relation"] = relation_of(entry, entries[1 - number])
            for probe, value in told.items():
                if value is not None:
                    yield WordLabel(entry.start, entry.end, probe, value)
        yield from _plain([word for word in words if word.start not in covered], others)
    yield WordLabel(middle, after, "denial", _denial(text[:middle]))
    yield WordLabel(len(text), len(text), "denial", _denial(text[after:]))
    yield WordLabel(len(text), len(text), "label", example.label)
    if text.endswith("."):
        yield WordLabel(len(text) - 1, len(text), "label", example.label)


def _plain(words: list[Word], others: list[Word]) -> Iterator[WordLabel]:
    """Label words that the lexicon lacks, and numbers."""
    texts = {word.text for word in others}
    slots = [word.text for word in others if word.text in SLOTS]
    for word in words:
        relation = "same" if word.text in texts else "alone"
        if word.text in SLOTS:
            yield WordLabel(word.start, word.end, "group", "number")
            if slots and relation == "alone":
                relation = "greater" if word.text > slots[0] else "smaller"
        yield WordLabel(word.start, word.end, "relation", relation)


def _denial(sentence: str) -> str:
    return "denied" if _DENIALS.search(sentence) else "affirmed"
