"""Sentence pairs of one word each, a first lesson: whether what is red is blue, or what is a poodle is a dog."""

import random

from starters.predict.sentence_pairs.frames import Frame, SentencePair, draw_by_frames
from starters.predict.sentence_pairs.taxonomies import SUBJECTS, Relation, quality_groups, taxonomy

QUALITY_RATE = 0.5
DENIAL_RATE = 0.4
_NAMED = ("jobs", "people", "kinds", "kinds", "kinds")
_SAID = ("activities", "activities", "places", "places", "cities", "positions", "days", "months", "hours")
_PLAIN = (Frame("it is {x}", "it is {x}"),)
_NAMING = (Frame("it is {ax}", "it is {ax}"),)
_DENIED = (Frame("it is {x}", "it is {x}", "it is not {x}", "it is not {x}"),)
_DENIED_NAMING = (Frame("it is {ax}", "it is {ax}", "it is not {ax}", "it is not {ax}"),)


def draw_words(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw two words of one taxonomy, or for "neutral" also qualities of two groups; None if none were found."""
    is_denied = generator.random() < DENIAL_RATE
    subject = ("it", "it")
    if generator.random() < QUALITY_RATE:
        groups = quality_groups(generator.choice(tuple(SUBJECTS)))
        group = generator.choice(groups)
        if label == "neutral" and generator.random() < 0.7:
            other = generator.choice([one for one in groups if one is not group])
            told, said = generator.choice(group.words), generator.choice(other.words)
            no = " not" if is_denied and generator.random() < 0.5 else ""
            return SentencePair(f"it is {told}", f"it is{no} {said}", label, f"what is {told} may be {said} or not")
        return draw_by_frames(group, _DENIED if is_denied else _PLAIN, subject, label, generator)
    if generator.random() < 0.5:
        frames = _DENIED_NAMING if is_denied else _NAMING
        return draw_by_frames(taxonomy(generator.choice(_NAMED)), frames, subject, label, generator)
    frames = _DENIED if is_denied else _PLAIN
    return draw_by_frames(taxonomy(generator.choice(_SAID)), frames, subject, label, generator)
