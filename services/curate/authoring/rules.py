"""Hard negatives by rules, as in ARO and CREPE, for comparison with those that a language model writes.

REPLACE and SWAP are the score service's own. NEGATE denies a verb or a thing, in the clause itself or as CREPE does.
SHUFFLE, after ARO, is one of its four orders: nouns and adjectives among themselves, all other words among themselves,
the words within each three, or the threes.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

from services.curate.authoring.candidates import Candidate, Outcome
from services.jobs.sugarcrepe import PairKind
from services.score.negatives.agreement import MEASURES
from services.score.negatives.annotation import Annotation, Annotator, best_annotator
from services.score.negatives.hard_negatives import HardNegatives, Kind, installed_hard_negatives
from services.score.negatives.inflection import cased_like
from services.score.negatives.prompting.checks import compared_words, dressed_like, is_swap, replacement
from services.score.negatives.relations import PICTURES, TIMES, Reading
from services.score.negatives.swaps import deny, inside_sentence, is_joined, normalised
from services.score.negatives.tagging import ACTS

T = TypeVar("T")
Negation = Literal["plain", "crepe"]

# Attempts to draw a negative of the wanted type.
DRAWS = 12
MADE_BY = "rules"

# The type of a replaced or swapped word, by the coarse kind of its tag.
_CATEGORY = {"NOUN": "obj", "PROPN": "obj", "ADJ": "att", "NUM": "att", "DET": "att", "VERB": "rel", "ADP": "rel"}
_DRAWN_AS: dict[str, Kind] = {"replace": "replace", "swap": "negclip"}
_BEFORE_NOUN = ("DET", "ADJ", "NUM")


class Rules:
    """Makes hard negatives by rules; the same candidate and seed give the same text."""

    def __init__(self, negatives: HardNegatives, annotator: Annotator, negation: Negation = "plain") -> None:
        self._negatives = negatives
        self._annotator = annotator
        self._negation = negation

    def make(self, candidate: Candidate, seed: int = 0) -> Outcome:
        """Make the negative of a candidate; its reason is `no_counterpart` if the rules have none."""
        caption, kind = candidate.caption.text, candidate.kind
        generator = _generator(candidate, seed)
        annotation = self._annotator.annotate(caption)
        if kind == "negate" and self._negation == "crepe":
            text = denied_as_in_crepe(annotation, generator)
        elif kind == "negate":
            denied = deny(annotation, generator)
            text = annotation.replaced(denied) if denied else None
        elif kind == "shuffle":
            text = shuffled(annotation, generator)
        else:
            text = self._drawn(caption, annotation, kind, generator)
        if text is None or normalised(text) == normalised(caption):
            return Outcome(candidate, "", MADE_BY, "no_counterpart")
        return Outcome(candidate, dressed_like(text, caption), MADE_BY)

    def _drawn(self, caption: str, annotation: Annotation, kind: PairKind, generator: Random) -> str | None:
        form, category = kind.split("_")
        if form not in _DRAWN_AS:
            return None
        kinds_of = dict(zip(annotation.lowered, annotation.kinds, strict=True))
        fixed = _fixed_words(annotation) | _unsure_nouns(annotation) if form == "swap" else frozenset[str]()
        for _ in range(DRAWS):
            drawn = _DRAWN_AS[form]
            text = self._negatives.make(caption, [drawn], generator.getrandbits(62))[drawn]
            changed = _changed_words(form, caption, text) if text is not None else []
            kinds = [kinds_of.get(word, "") for word in changed]
            # two dogs in the place of a dog are no other object, and `two` alone would give them away
            is_counted = form == "replace" and bool(kinds) and kinds[0] in ("DET", "NUM") and len(kinds) > 1
            is_listed = form == "swap" and text is not None and _is_listing(annotation, text)
            if is_counted or is_listed or not fixed.isdisjoint(changed):
                continue
            if category in map(_CATEGORY.get, kinds[-1:]):
                return text
        return None


def installed_rules(wordnet: Path | None = None, negation: Negation = "plain") -> Rules:
    """Load the tagger and the words of this machine. Raises ModuleNotFoundError and FileNotFoundError."""
    return Rules(installed_hard_negatives(wordnet), best_annotator(), negation)


def denied_as_in_crepe(annotation: Annotation, generator: Random) -> str | None:
    """Put `not` before a preposition, or `something` in the place of a thing, whose absence a sentence then states.

    "Books on a shelf." becomes "Books not on a shelf." or "Books on something. There is no shelf.", and nothing else is
    adapted, as in CREPE's examples (Table 4.1). None if there is neither a preposition nor a thing.
    """
    kinds, texts = annotation.kinds, list[str]()
    for place, kind in enumerate(kinds):
        following = kinds[place + 1] if place + 1 < len(kinds) else ""
        if kind == "ADP" and place and following:
            texts.append(annotation.replaced({(place, place + 1): f"not {annotation.words[place]}"}))
        if kind == "NOUN" and following != "NOUN":
            start = place
            while start and kinds[start - 1] in (*_BEFORE_NOUN, "NOUN"):
                start -= 1
            thing = annotation.text((start + (kinds[start] == "DET"), place + 1))
            something = cased_like("something", annotation.words[start])
            rest = annotation.replaced({(start, place + 1): something}).rstrip(" .")
            texts.append(f"{rest}. There is no {thing.lower()}.")
    return texts[generator.randrange(len(texts))] if texts else None


def shuffled(annotation: Annotation, generator: Random) -> str | None:
    """Put the words in another order; None if there are too few to have one.

    Marks and spaces stay where they are, as does a capital at the beginning; a contraction is one word.
    """
    places = [
        place
        for place, (word, kind) in enumerate(zip(annotation.words, annotation.kinds, strict=True))
        if kind != "PUNCT" and any(map(str.isalnum, word)) and not is_joined(annotation, place)
    ]
    is_thing = [annotation.kinds[place] in ("NOUN", "PROPN", "ADJ") for place in places]
    orders: list[Callable[[], list[int]]] = [
        lambda: _among(places, is_thing, generator),
        lambda: _among(places, [not one for one in is_thing], generator),
        lambda: list(chain.from_iterable(_sampled(three, generator) for three in _threes(places))),
        lambda: list(chain.from_iterable(_sampled(_threes(places), generator))),
    ]
    for order in _sampled(orders, generator):
        text = _ordered(annotation, places, order())
        if normalised(text) != normalised(annotation.replaced({})):
            return text
    return None


def _ordered(annotation: Annotation, places: Sequence[int], order: Sequence[int]) -> str:
    """Write the words of `order` at the places, each with the second half of its contraction."""
    spans = {}
    for place in places:
        end = place + 1
        while is_joined(annotation, end):
            end += 1
        spans[place] = (place, end)
    first = places[0] if places else 0
    texts = {place: annotation.text(span) for place, span in spans.items()}
    if order[:1] != [first] and annotation.words[first][:1].isupper() and annotation.starts_sentence(first):
        texts[order[0]] = texts[order[0]][:1].upper() + texts[order[0]][1:]
        texts[first] = inside_sentence(annotation, spans[first])
    return annotation.replaced({spans[to]: texts[place] for to, place in zip(places, order, strict=True)})


def _among(places: Sequence[int], is_moved: Sequence[bool], generator: Random) -> list[int]:
    """Shuffle the places that are moved among themselves."""
    moved = iter(_sampled([place for place, moves in zip(places, is_moved, strict=True) if moves], generator))
    return [next(moved) if moves else place for place, moves in zip(places, is_moved, strict=True)]


def _threes(places: Sequence[int]) -> list[Sequence[int]]:
    return [places[start : start + 3] for start in range(0, len(places), 3)]


def _sampled(items: Sequence[T], generator: Random) -> list[T]:
    return generator.sample(items, len(items))


def _unsure_nouns(annotation: Annotation) -> frozenset[str]:
    """Return the words tagged as nouns that are often verbs in captions, unless a word before says that they are nouns.

    Exchanged with a noun, such a word makes a phrase of a verb: "laugh cream".
    """
    kinds = annotation.kinds
    return frozenset(
        word
        for place, word in enumerate(annotation.lowered)
        if kinds[place] == "NOUN" and word in ACTS and (place == 0 or kinds[place - 1] not in _BEFORE_NOUN)
    )


def _changed_words(form: str, caption: str, text: str) -> Sequence[str]:
    """Return the caption's words that are replaced or, the first one last, those at places that a swap changes."""
    ours, theirs = compared_words(caption), compared_words(text)
    if form == "replace":
        found = replacement(ours, theirs)
        return found[0] if found else ()
    if not is_swap(ours, theirs):
        return ()
    places = [i for i in range(len(ours)) if ours[i] != theirs[i]]
    return [ours[place] for place in reversed(places)]


def _is_listing(annotation: Annotation, text: str) -> bool:
    """Whether a swap changes only the order in a list, such as `black and white` or `small wooden`: it remains true."""
    places = [place for place, word in enumerate(annotation.words) if any(map(str.isalnum, word))]
    differing = [
        place
        for place, ours, theirs in zip(
            places, compared_words(annotation.replaced({})), compared_words(text), strict=False
        )
        if ours != theirs
    ]
    between = range(differing[0] + 1, differing[-1]) if differing else range(0)
    return all(annotation.kinds[place] in ("CCONJ", "PUNCT", "ADJ") for place in between)


def _fixed_words(annotation: Annotation) -> frozenset[str]:
    """Return the words that make no sense in another place: of phrases such as `in front of`, and of quantities."""
    phrases = {annotation.lowered[p] for phrase in Reading(annotation).phrases for p in range(*phrase.span)}
    return frozenset(phrases) | MEASURES | PICTURES | TIMES


def _generator(candidate: Candidate, seed: int) -> Random:
    text = f"{seed} {candidate.kind} {candidate.draw} {candidate.caption.text}".encode("utf-8", "surrogatepass")
    return Random(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest()))
