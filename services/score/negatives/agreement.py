"""Changes in a caption that follow from replacing a word: `a` or `an` before it, and the number of its verb."""

from collections.abc import Mapping

from services.score.negatives.annotation import Annotation, Span
from services.score.negatives.inflection import article, present_form
from services.score.negatives.relations import RELATIVES

_NUMBER_FORMS = {"is": "are", "was": "were", "has": "have", "does": "do"}
_NUMBER_FORMS |= {plural: singular for singular, plural in _NUMBER_FORMS.items()}

# nouns of quantity that make a thing plural: `a couple of dogs`
QUANTITIES = frozenset(("couple", "pair", "lot", "lots", "number", "bunch", "variety"))


def agreeing_articles(annotation: Annotation, edits: Mapping[Span, str]) -> dict[Span, str]:
    """Return the edits, and corrections of `a` or `an` before each to match its new first word."""
    agreeing = dict(edits)
    for (start, _), text in edits.items():
        before = start - 1
        if start and annotation.lowered[before] in ("a", "an") and not any(s <= before < e for s, e in edits):
            right = article(text, annotation.words[before])
            if right.lower() != annotation.lowered[before]:
                agreeing[before, start] = right
    return agreeing


def agreeing_verb(annotation: Annotation, subject: Span) -> dict[Span, str]:
    """Return the other number of a subject's verb, which stands after it, or before it as in `there are`."""
    after, before = subject[1], subject[0] - 1
    while after < len(annotation.words) and _is_company(annotation, after):
        after += 1
    if before > 0 and annotation.lowered[before - 1] == "there" and annotation.lowered[before] in _NUMBER_FORMS:
        return {(before, before + 1): _NUMBER_FORMS[annotation.lowered[before]]}
    if after < len(annotation.words):
        word, tag = annotation.lowered[after], annotation.tags[after]
        if word in _NUMBER_FORMS:
            return {(after, after + 1): _NUMBER_FORMS[word]}
        if tag in ("VBZ", "VBP", "VB"):
            return {(after, after + 1): present_form(word, is_third_person=tag != "VBZ")}
    return {}


def _is_company(annotation: Annotation, place: int) -> bool:
    return annotation.kinds[place] == "ADV" or annotation.lowered[place] in RELATIVES


def is_plural(annotation: Annotation, thing: Span) -> bool:
    """Tell the number of a thing by the head of its first chunk: `two cups of tea` is plural."""
    of = next((place for place in range(*thing) if annotation.lowered[place] == "of"), thing[1])
    head = thing[1] - 1 if annotation.lowered[of - 1] in QUANTITIES else of - 1
    return annotation.tags[head] in ("NNS", "NNPS")
