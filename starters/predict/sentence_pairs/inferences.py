"""Everyday inferences: two short sentences, and whether the first implies, excludes or leaves open the second.

They are about qualities, kinds of things, what people are and do, numbers, places, times, relations, denials, parts of
a whole, and the same in other words; about half are filled in from words and sentences that were written by hand, in
`handwritten/texts/`. The three labels are equally likely for each. Pairs of words are held out by rule, by a digest of
the step between them, and other pairs by one of their hypothesis.
"""

import random
from collections.abc import Callable

from services.predict.data.rows import Row, TeacherOutput
from starters.predict.drawing import capitalised
from starters.predict.everyday.problems import is_held_out as is_held
from starters.predict.inferences import INFERENCES
from starters.predict.sentence_pairs.counts import draw_number
from starters.predict.sentence_pairs.denials import draw_denial, draw_share
from starters.predict.sentence_pairs.frames import SentencePair, draw_action, draw_kind, draw_person_kind, draw_quality
from starters.predict.sentence_pairs.handwritten.amounts import draw_number_of_doers, draw_part
from starters.predict.sentence_pairs.handwritten.between import draw_tie
from starters.predict.sentence_pairs.handwritten.captions import draw_caption
from starters.predict.sentence_pairs.handwritten.doings import draw_doing, draw_opposite
from starters.predict.sentence_pairs.handwritten.groups import draw_grouped
from starters.predict.sentence_pairs.handwritten.moments import draw_moment
from starters.predict.sentence_pairs.handwritten.nesting import draw_nesting
from starters.predict.sentence_pairs.handwritten.reasoning import draw_reasoning
from starters.predict.sentence_pairs.handwritten.stories import draw_story
from starters.predict.sentence_pairs.pairs import draw_open, draw_pair
from starters.predict.sentence_pairs.paraphrases import draw_paraphrase
from starters.predict.sentence_pairs.places import draw_converse, draw_place
from starters.predict.sentence_pairs.relations import draw_relation
from starters.predict.sentence_pairs.taxonomies import Relation
from starters.predict.sentence_pairs.times import draw_time
from starters.predict.sentence_pairs.words import draw_words

Draws = tuple[tuple[Callable[[Relation, random.Random], SentencePair | None], int], ...]
DRAWS: Draws = (
    (draw_quality, 5),
    (draw_kind, 4),
    (draw_person_kind, 2),
    (draw_action, 3),
    (draw_number, 3),
    (draw_place, 3),
    (draw_converse, 1),
    (draw_time, 3),
    (draw_relation, 3),
    (draw_denial, 3),
    (draw_share, 1),
    (draw_paraphrase, 3),
    (draw_pair, 2),
    (draw_open, 2),
    (draw_grouped, 14),
    (draw_story, 7),
    (draw_caption, 6),
    (draw_doing, 5),
    (draw_opposite, 3),
    (draw_tie, 4),
    (draw_nesting, 4),
    (draw_moment, 4),
    (draw_part, 3),
    (draw_number_of_doers, 1),
    (draw_reasoning, 2),
)
_LABELS: tuple[Relation, ...] = ("entailment", "neutral", "contradiction")
_ENDS = {
    "entailment": ("So it is true", "So it follows"),
    "neutral": ("So it may be true or not", "So it is left open"),
    "contradiction": ("So it is false", "So it cannot be true"),
}
HELD_OUT_SHARE = 12
LOWER_CASE_RATE = 0.05


def draw_everyday_inference(generator: random.Random, *, is_held_out: bool = False) -> Row:
    """Draw an inference whose pair of sentences is held out, or one that is not."""
    return _drawn(DRAWS, generator, is_held_out=is_held_out)


def draw_word_inference(generator: random.Random, *, is_held_out: bool = False) -> Row:
    """Draw an inference from one word to another, which is held out by the same rule."""
    return _drawn(((draw_words, 1),), generator, is_held_out=is_held_out)


def _drawn(some: Draws, generator: random.Random, *, is_held_out: bool) -> Row:
    draws, weights = zip(*some, strict=True)
    while True:
        draw, label = generator.choices(draws, weights)[0], generator.choice(_LABELS)
        drawn = draw(label, generator)
        if drawn is None:
            continue
        key = drawn.step or (drawn.reason if drawn.reason.startswith("what is ") else drawn.hypothesis)
        if is_held(key, HELD_OUT_SHARE) == is_held_out:
            return _row(drawn, generator)


def _row(drawn: SentencePair, generator: random.Random) -> Row:
    end = "" if generator.random() < 0.05 else "."
    premise, hypothesis = f"{capitalised(drawn.premise)}{end}", f"{capitalised(drawn.hypothesis)}{end}"
    if generator.random() < LOWER_CASE_RATE:
        premise, hypothesis = premise.lower(), hypothesis.lower()
    text = INFERENCES.input_text({"premise": " ".join(premise.split()), "hypothesis": " ".join(hypothesis.split())})
    if not drawn.reason:
        return Row(text, drawn.label)
    rationale = f"{capitalised(drawn.reason)}. {generator.choice(_ENDS[drawn.label])}."
    return Row(text, drawn.label, TeacherOutput(f"{rationale} So the answer is {drawn.label}.", rationale, drawn.label))
