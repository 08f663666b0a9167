"""Changes in a caption that follow from replacing a word: `a` or `an` before it, and the number of its verb."""

from collections.abc import Mapping

from services.score.negatives.annotation import Annotation, Span
from services.score.negatives.inflection import article, present_form
from services.score.negatives.relations import RELATIVES
from services.score.negatives.tagging import OPENING_TAGS

_NUMBER_FORMS = {"is": "are", "was": "were", "has": "have", "does": "do"}
_NUMBER_FORMS |= {plural: singular for singular, plural in _NUMBER_FORMS.items()}

# nouns of quantity that make a thing plural: `a couple of dogs`
QUANTITIES = frozenset(("couple", "pair", "lot", "lots", "number", "bunch", "variety"))
# nouns that with `of` tell how much or what part of a thing there is, and that no particular noun excludes
_MEASURES_TEXT = """
group herd flock crowd team pack row line stack pile heap set series collection assortment array trio piece slice chunk
bit strip body stretch patch sheet pairs groups rows lines stacks piles sets pieces slices kind kinds type types sort
sorts part parts side sides edge end middle center top bottom front back rest half amount
"""
MEASURES = QUANTITIES | frozenset(_MEASURES_TEXT.split())


def agreeing_articles(annotation: Annotation, edits: Mapping[Span, str]) -> dict[Span, str]:
    """Return the edits, and corrections of `a` or `an` before each to match its new first word.

    Between an article and its word there may be quotation marks and brackets.
    """
    agreeing = dict(edits)
    for (start, _), text in edits.items():
        before = start - 1
        while before > 0 and annotation.tags[before] in OPENING_TAGS:
            before -= 1
        if before >= 0 and annotation.lowered[before] in ("a", "an") and not any(s <= before < e for s, e in edits):
            right = article(text, annotation.words[before])
            if right.lower() != annotation.lowered[before]:
                agreeing[before, before + 1] = right
    return agreeing


def agreeing_verb(annotation: Annotation, subject: Span) -> dict[Span, str]:
    """Return the other number of a subject's verb, which stands after it, or before it as in `there are`.

    A thing behind a verb or a preposition is no subject: the verb after it has another one.
    """
    after, before = subject[1], subject[0] - 1
    while after < len(annotation.words) and _is_company(annotation, after):
        after += 1
    if before > 0 and annotation.lowered[before - 1] == "there" and annotation.lowered[before] in _NUMBER_FORMS:
        return {(before, before + 1): _NUMBER_FORMS[annotation.lowered[before]]}
    is_subject = before < 0 or annotation.kinds[before] not in ("VERB", "ADP")
    if is_subject and after < len(annotation.words):
        word, tag = annotation.lowered[after], annotation.tags[after]
        if word in _NUMBER_FORMS:
            return {(after, after + 1): _NUMBER_FORMS[word]}
        if tag in ("VBZ", "VBP", "VB"):
            return {(after, after + 1): present_form(word, is_third_person=tag != "VBZ")}
    return {}


def agreeing_swap(annotation: Annotation, edits: Mapping[Span, str]) -> dict[Span, str]:
    """Return the edits of a swap, and the other number of the verb if things of both numbers change places."""
    first, last = min(edits), max(edits)
    if len(edits) != 2 or is_plural(annotation, first) == is_plural(annotation, last):
        return dict(edits)
    verb = {span: text for span, text in agreeing_verb(annotation, first).items() if span[1] <= last[0]}
    return {**edits, **verb}


def _is_company(annotation: Annotation, place: int) -> bool:
    return annotation.kinds[place] == "ADV" or annotation.lowered[place] in RELATIVES


def is_plural(annotation: Annotation, thing: Span) -> bool:
    """Tell the number of a thing by the head of its first chunk: `two cups of tea` is plural."""
    of = next((place for place in range(*thing) if annotation.lowered[place] == "of"), thing[1])
    head = thing[1] - 1 if annotation.lowered[of - 1] in QUANTITIES else of - 1
    return annotation.tags[head] in ("NNS", "NNPS")
