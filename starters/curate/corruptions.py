"""Sentences spoilt by rule, as examples of what is nonsense and of what is not English.

Words are replaced by words of the same Penn tag, drawn as often as they occur in the sentences themselves, so that a
single word tells nothing. A generator with the same seed makes the same sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from random import Random
from typing import Literal

from services.score.negatives.agreement import agreeing_articles
from services.score.negatives.annotation import Annotation, Span
from services.score.negatives.inflection import cased_like, plural, present_form, verb_form
from services.score.negatives.swaps import exchange, negclip, normalised

Bias = Literal["plausibility", "grammar"]

# Tags whose words carry the meaning, and those of verb forms.
CONTENT_TAGS = frozenset(("NN", "NNS", "JJ", "VBG", "VBZ", "VBD", "VBN", "VBP", "VB", "CD", "RB"))
VERB_TAGS = frozenset(("VBZ", "VBP", "VB", "VBG"))
NUMBERS_OF_VERBS = {"is": "are", "are": "is", "was": "were", "were": "was", "has": "have", "have": "has"}
AUXILIARIES = frozenset((*NUMBERS_OF_VERBS, "be", "being", "do", "does", "having"))
# Attempts to draw a change that a sentence allows.
DRAWS = 8
MAX_REPLACED = 3

Change = Callable[[Annotation, Random], str | None]


class Words:
    """Words of each Penn tag, drawn by their number of occurrences."""

    def __init__(self, annotations: Iterable[Annotation]) -> None:
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for annotation in annotations:
            for word, tag in zip(annotation.lowered, annotation.tags, strict=True):
                counts[tag][word] += 1
        self._words = {tag: list(counted) for tag, counted in counts.items()}
        self._sums = {tag: list(accumulate(counted.values())) for tag, counted in counts.items()}

    def draw(self, tag: str, generator: Random) -> str:
        """Draw a word of a tag that occurs."""
        return generator.choices(self._words[tag], cum_weights=self._sums[tag])[0]


class Corruptions:
    """Makes a false sentence of a true one, of one bias or the other."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._changes: Mapping[Bias, tuple[Change, ...]] = {
            "plausibility": (self._replaced, self._replaced, _swapped, _nouns_swapped),
            "grammar": (
                *(_bigrams_swapped, _word_moved, _word_left_out, _word_said_twice),
                *(_other_number, _other_verb_form, self._word_put_in, self._function_word_replaced),
            ),
        }

    def make(self, annotation: Annotation, bias: Bias, generator: Random) -> str | None:
        """Draw a changed sentence; None if the sentence allows none of the changes drawn."""
        same = normalised(_text(annotation))
        for _ in range(DRAWS):
            text = generator.choice(self._changes[bias])(annotation, generator)
            if text is not None and normalised(text) != same:
                return text
        return None

    def _replaced(self, annotation: Annotation, generator: Random) -> str | None:
        """Replace one to three words; `a` and `an` agree."""
        places = [place for place, tag in enumerate(annotation.tags) if tag in CONTENT_TAGS]
        if not places:
            return None
        chosen = generator.sample(places, min(len(places), generator.randint(1, MAX_REPLACED)))
        edits: dict[Span, str] = {}
        for place in sorted(chosen):
            word = self._words.draw(annotation.tags[place], generator)
            edits[place, place + 1] = cased_like(word, annotation.words[place])
        return annotation.replaced(agreeing_articles(annotation, edits))

    def _word_put_in(self, annotation: Annotation, generator: Random) -> str | None:
        """Put a word of any tag that the sentence has behind one of its words."""
        places = _movable(annotation)
        if not places:
            return None
        place = generator.choice(places)
        word = self._words.draw(generator.choice(annotation.tags), generator)
        return annotation.replaced({(place, place + 1): f"{annotation.words[place]} {word}"})

    def _function_word_replaced(self, annotation: Annotation, generator: Random) -> str | None:
        """Replace a word that carries no meaning by a word of another tag."""
        places = [p for p, tag in enumerate(annotation.tags) if tag not in CONTENT_TAGS and tag[:1].isalpha()]
        if not places:
            return None
        place = generator.choice(places)
        word = self._words.draw(generator.choice(annotation.tags), generator)
        return annotation.replaced({(place, place + 1): cased_like(word, annotation.words[place])})


def _text(annotation: Annotation) -> str:
    return annotation.replaced({})


def _swapped(annotation: Annotation, generator: Random) -> str | None:
    """Exchange two phrases or words of one kind, as NegCLIP does."""
    edits = negclip(annotation, generator)
    return annotation.replaced(agreeing_articles(annotation, edits)) if edits else None


def _nouns_swapped(annotation: Annotation, generator: Random) -> str | None:
    """Exchange two noun phrases."""
    if len(annotation.noun_chunks) < 2:
        return None
    edits = exchange(annotation, *generator.sample(annotation.noun_chunks, 2))
    return annotation.replaced(agreeing_articles(annotation, edits))


def _movable(annotation: Annotation) -> list[int]:
    return [place for place, kind in enumerate(annotation.kinds) if kind != "PUNCT"]


def _order(annotation: Annotation, places: Iterable[int]) -> str:
    """Write the words, other than marks, in another order; marks and spaces stay, and a capital at the beginning."""
    moved = {(to, to + 1): annotation.words[p] for to, p in zip(_movable(annotation), places, strict=True)}
    first, text = annotation.words[0], annotation.replaced(moved)
    return cased_like(text, first) if first[:1].isupper() else text


def _bigrams_swapped(annotation: Annotation, generator: Random) -> str | None:
    """Exchange two adjacent runs of one or two words, up to three times."""
    places = _movable(annotation)
    if len(places) < 4:
        return None
    for _ in range(generator.randint(1, 3)):
        size = generator.randint(1, 2)
        start = generator.randrange(len(places) - 2 * size + 1)
        run = places[start : start + 2 * size]
        places[start : start + 2 * size] = run[size:] + run[:size]
    return _order(annotation, places)


def _word_moved(annotation: Annotation, generator: Random) -> str | None:
    places = _movable(annotation)
    if len(places) < 3:
        return None
    moved = places.pop(generator.randrange(len(places)))
    places.insert(generator.randrange(len(places) + 1), moved)
    return _order(annotation, places)


def _word_left_out(annotation: Annotation, generator: Random) -> str | None:
    """Leave out a word other than a property, without which a sentence is as good."""
    places = [p for p, tag in enumerate(annotation.tags) if tag[:1].isalpha() and tag not in ("JJ", "RB", "CD")]
    if len(places) < 3:
        return None
    place = generator.choice(places)
    return " ".join(annotation.replaced({(place, place + 1): ""}).split())


def _word_said_twice(annotation: Annotation, generator: Random) -> str | None:
    places = _movable(annotation)
    if not places:
        return None
    place = generator.choice(places)
    word = annotation.words[place]
    return annotation.replaced({(place, place + 1): f"{word} {word.lower()}"})


def _other_number(annotation: Annotation, generator: Random) -> str | None:
    """Give a noun after `a` or a number, or a verb behind it, the other number."""
    edits: list[dict[Span, str]] = []
    for place, (word, tag) in enumerate(zip(annotation.lowered, annotation.tags, strict=True)):
        span = (place, place + 1)
        if word in NUMBERS_OF_VERBS:
            edits.append({span: NUMBERS_OF_VERBS[word]})
        elif tag == "NN" and annotation.lowered[place - 1] in ("a", "an", "one", "this"):
            edits.append({span: plural(word)})
        elif tag == "NNS" and place and annotation.tags[place - 1] == "CD":
            edits.append({span: word.removesuffix("s")})
        elif tag in ("VBZ", "VBP"):
            edits.append({span: present_form(word, is_third_person=tag == "VBP")})
    return annotation.replaced(generator.choice(edits)) if edits else None


def _other_verb_form(annotation: Annotation, generator: Random) -> str | None:
    """Give a verb a form of another tag: `is sitting` becomes `is sits`."""
    tags = enumerate(annotation.tags)
    places = [place for place, tag in tags if tag in VERB_TAGS and annotation.lowered[place] not in AUXILIARIES]
    if not places:
        return None
    place = generator.choice(places)
    word, tag = annotation.lowered[place], annotation.tags[place]
    if tag == "VBG":
        stem = word.removesuffix("ing")
        text = generator.choice((stem, verb_form(stem, "VBZ")))
    else:
        text = verb_form(present_form(word, is_third_person=False) if tag == "VBZ" else word, "VBG")
    return annotation.replaced({(place, place + 1): cased_like(text, annotation.words[place])})
