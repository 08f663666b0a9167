"""Hard negatives of where things are: a relation becomes its opposite, or its two things change places."""

from random import Random

from services.score.negatives.agreement import agreeing_verb, is_plural
from services.score.negatives.annotation import Annotation, Span
from services.score.negatives.inflection import cased_like
from services.score.negatives.relations import OPPOSITES, Reading, Relation
from services.score.negatives.swaps import exchange


def turn(reading: Reading, generator: Random) -> dict[Span, str] | None:
    """What stands elsewhere in the caption turned round, by span; None where nothing is in relation to anything.

    Of the clearest relations one is drawn, then whether its phrase or its things are turned where both can be.
    """
    annotation = reading.annotation
    relations = [one for one in reading.relations if one.phrase or _exchanged(annotation, one)]
    clearest = [one for one in relations if one.rank == min(other.rank for other in relations)]
    if not clearest:
        return None
    relation = clearest[generator.randrange(len(clearest))]
    exchanged = _exchanged(annotation, relation)
    if relation.phrase is None or (exchanged and generator.random() < 0.5):
        return exchanged
    opposites = OPPOSITES[relation.phrase.text]
    text = opposites[generator.randrange(len(opposites))]
    return {relation.phrase.span: cased_like(text, annotation.text(relation.phrase.span))}


def _exchanged(annotation: Annotation, relation: Relation) -> dict[Span, str] | None:
    """Each thing with the other's text; the verb between them agrees with the new subject."""
    if not relation.can_be_exchanged or relation.subject is None or relation.object is None:
        return None
    if annotation.text(relation.subject).lower() == annotation.text(relation.object).lower():
        return None
    edits = exchange(annotation, relation.subject, relation.object)
    if is_plural(annotation, relation.subject) != is_plural(annotation, relation.object):
        edits |= agreeing_verb(annotation, relation.subject)
    return edits
