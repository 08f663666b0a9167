"""What may stand in place of a word so that a caption is no longer true of its picture."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from services.score.negatives.inflection import inflected
from services.score.negatives.vocabulary import ADJECTIVES, NOUNS, NUMBERS, VERBS

Candidates = Sequence[tuple[str, float]]  # texts in the form of the word asked about, and positive weights


class Lexicon(Protocol):
    """Replacements of words."""

    def candidates(self, word: str, tag: str) -> Candidates:
        """What may replace a lower-case word of a Penn tag, in the same form; nothing where nothing is known."""
        ...


class Vocabulary:
    """The small vocabulary of `vocabulary.py`: words of a group replace each other, synonyms do not."""

    FORMS = (
        (ADJECTIVES, ("JJ", "JJR", "JJS")),
        (NUMBERS, ("CD",)),
        (NOUNS, ("NN", "NNS")),
        (VERBS, ("VB", "VBP", "VBZ", "VBG", "VBD", "VBN")),
    )
    # the first of several synonyms is the usual word
    SYNONYM_WEIGHT = 0.25

    def __init__(self) -> None:
        self._candidates: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for groups, tags in self.FORMS:
            for group in groups:
                meanings = [meaning.split() for meaning in group.split("|")]
                for tag in tags:
                    self._enter([[inflected(word, tag) for word in words] for words in meanings], tag)

    def candidates(self, word: str, tag: str) -> Candidates:
        return self._candidates.get((word, tag), ())

    def _enter(self, meanings: Sequence[Sequence[str]], tag: str) -> None:
        for own in meanings:
            for word in own:
                entry = self._candidates.setdefault((word, tag), [])
                known = {text for text, _ in entry}
                for words in meanings:
                    if words is not own:
                        weights = (1.0, *(self.SYNONYM_WEIGHT for _ in words[1:]))
                        entry.extend(
                            (t, w) for t, w in zip(words, weights, strict=True) if t != word and t not in known
                        )


class FirstOf:
    """Several lexicons: what the first says that knows a word."""

    def __init__(self, lexicons: Iterable[Lexicon]) -> None:
        self._lexicons = tuple(lexicons)

    def candidates(self, word: str, tag: str) -> Candidates:
        return next((found for lexicon in self._lexicons if (found := lexicon.candidates(word, tag))), ())
