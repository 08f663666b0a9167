"""Types of hard negatives that a language model writes (SugarCrepe, appendix C.3.1), and what each type promises.

    replace   caption = A x B, negative = A y B            x, y of 1 to MAX_PHRASE_WORDS words
    swap      caption = A x B y C, negative = A y B x C    x ≠ y
    add       the caption's words in order, with 1 to MAX_ADDED_WORDS others between or around them

Words are compared without case, punctuation, and the difference of `a` and `an`; in a replacement and a swap also
without what may have to agree with a changed word: the number of `is` and `has`, and pronouns, because `a man with his
dog` becomes `a woman with her dog`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, get_args

from services.score.negatives.annotation import split_words
from services.score.negatives.inflection import article

# The form, and the category of the concept that is replaced, swapped or added.
WrittenKind = Literal["replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att"]
WRITTEN_KINDS: tuple[WrittenKind, ...] = get_args(WrittenKind)

Form = Literal["replace", "swap", "add"]

# Why an answer makes no hard negative.
Problem = Literal[
    "truncated",  # the endpoint's limit of tokens ended it
    "unreadable",  # not in the form that was asked for
    "nothing_to_change",  # the model finds no concept of this category, or no two to swap
    "not_in_caption",  # none of its concepts occurs in the caption
    "same_concept",  # the new concept is the old one
    "unchanged",  # the caption itself, but for case, marks and articles
    "too_long",
    "wrong_article",  # `a` before a vowel's sound, or `an` before another
    "not_a_replacement",  # not one phrase replaced by another and the rest unchanged
    "not_a_swap",  # not two phrases exchanged and the rest unchanged
    "not_an_addition",  # not the caption's own words with others between them
    "another_place",  # a replacement, but not of the chosen concept
]


FORM_OF: Mapping[WrittenKind, Form] = {
    **{"replace_obj": "replace", "replace_att": "replace", "replace_rel": "replace"},
    **{"swap_obj": "swap", "swap_att": "swap"},
    **{"add_obj": "add", "add_att": "add"},
}


MAX_PHRASE_WORDS = 5
MAX_ADDED_WORDS = 8
# CLIP reads 77 tokens, of which a word takes one or more.
MAX_WORDS = 60

_SAME = {"an": "a"}
_AGREEING = {
    **{"are": "is", "were": "was", "have": "has", "do": "does"},
    **dict.fromkeys(("he", "she", "they", "him", "her", "them", "his", "hers", "their", "theirs", "its"), "it"),
    **dict.fromkeys(("himself", "herself", "themselves"), "itself"),
}
_END_MARKS = (".", "!", "?")
# Marks between an article and its word.
_OPENING = frozenset('"“„‘«([')


def problem_of(kind: WrittenKind, caption: str, negative: str, chosen: str | None = None) -> Problem | None:
    """Return the first promise that a negative breaks, or None.

    `chosen` is the concept to be replaced, where it is known: some of its words must be among those replaced.
    """
    ours, theirs = compared_words(caption), compared_words(negative)
    if ours == theirs:
        return "unchanged"
    if len(theirs) > MAX_WORDS or "\n" in negative.strip():
        return "too_long"
    form = FORM_OF[kind]
    if form == "add" and not is_addition(ours, theirs):
        return "not_an_addition"
    if form == "swap" and not is_swap(ours, theirs):
        return "not_a_swap"
    if form == "replace":
        replaced = replacement(ours, theirs)
        if replaced is None:
            return "not_a_replacement"
        if chosen is not None and not set(compared_words(chosen)) & set(replaced[0]):
            return "another_place"
    return "wrong_article" if has_wrong_article(caption, negative) else None


def compared_words(text: str) -> list[str]:
    """Split into words as they are compared, without punctuation."""
    words = (word.casefold() for word in split_words(text)[1])
    return [_SAME.get(word, word) for word in words if any(map(str.isalnum, word))]


def replacement(ours: Sequence[str], theirs: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the phrase replaced and the new one; None if more than one short phrase differs, or one is empty."""
    one, other = _without_agreement(ours), _without_agreement(theirs)
    shorter = min(len(one), len(other))
    start = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    end = next((i for i in range(shorter - start) if one[-1 - i] != other[-1 - i]), shorter - start)
    old, new = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    return (old, new) if 0 < len(old) <= MAX_PHRASE_WORDS and 0 < len(new) <= MAX_PHRASE_WORDS else None


def is_swap(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether two different phrases have changed places and all other words have kept theirs."""
    ours, theirs = _without_agreement(ours), _without_agreement(theirs)
    if sorted(ours) != sorted(theirs) or ours == theirs:
        return False
    start = next(i for i in range(len(ours)) if ours[i] != theirs[i])
    end = next(i for i in range(len(ours)) if ours[-1 - i] != theirs[-1 - i])
    middle, swapped = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    length = len(middle)
    return any(
        middle[:first] == swapped[length - first :]
        and middle[length - second :] == swapped[:second]
        and middle[first : length - second] == swapped[second : length - first]
        for first in range(1, min(MAX_PHRASE_WORDS, length - 1) + 1)
        for second in range(1, min(MAX_PHRASE_WORDS, length - first) + 1)
    )


def is_addition(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether all of our words occur among theirs in the same order, beside a few others."""
    remaining = iter(theirs)
    return all(word in remaining for word in ours) and 0 < len(theirs) - len(ours) <= MAX_ADDED_WORDS


def _without_agreement(words: Sequence[str]) -> list[str]:
    return [_AGREEING.get(word, word) for word in words]


def has_wrong_article(caption: str, negative: str) -> bool:
    """Whether the negative has an `a` or `an` that does not fit the next word, and that is not the caption's own."""
    return bool(set(_wrong_articles(negative)) - set(_wrong_articles(caption)))


def _wrong_articles(text: str) -> list[tuple[str, str]]:
    words = [word.casefold() for word in split_words(text)[1] if word not in _OPENING]
    return [
        (word, following)
        for word, following in pairwise(words)
        if word in ("a", "an") and following[0].isalpha() and article(following, word) != word
    ]


def dressed_like(negative: str, caption: str) -> str:
    """Write a negative with the caption's first capital, end mark and single spaces.

    A model that ends all of its sentences with a full stop would otherwise tell the false captions by it.
    """
    text, model = " ".join(negative.split()), caption.strip()
    bare = text.rstrip("".join(_END_MARKS) + " ")
    ending = model[len(model.rstrip("".join(_END_MARKS) + " ")) :].strip()
    text = bare + ending
    first = text.split(" ", 1)[0]
    if model[:1].isupper():
        return text[:1].upper() + text[1:]
    is_name = (
        first.startswith(("I'", "I’")) or first == "I" or first[1:] != first[1:].lower() or first in model.split(" ")
    )
    return text if is_name else text[:1].lower() + text[1:]
