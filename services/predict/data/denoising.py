"""Unlabelled texts for a first training: a student learns to restore a text that it is given with words missing.

A stand-in for the pretraining of a T5, of the texts of the other generated tasks without their labels and reasons: runs
of words are replaced by one sign each, and the target is the original text.
"""

import random
from collections.abc import Callable, Sequence

from services.predict.data.rows import Row, TeacherOutput
from services.predict.tasks import EOS, Task

DENOISING = Task("denoising", ("text",), "\n")

MISSING = "_"
MISSING_RATE = 0.25  # of words


def denoising_of(draws: Sequence[Callable[[random.Random], Row]]) -> Callable[[random.Random], Row]:
    """Make a function that draws a row about a text of one of these kinds, each as likely.

    What a teacher wrote about the text stays as the row's rationale: this task does not teach it, but a tokenizer that
    is learnt from the rows knows its words.
    """

    def draw(generator: random.Random) -> Row:
        row = generator.choice(draws)(generator)
        text = row.input.replace(EOS, " ")
        written = row.output.text if row.output else ""
        return Row(with_gaps(text, generator), text, TeacherOutput(written, written, text))

    return draw


def with_gaps(text: str, generator: random.Random) -> str:
    """The text with MISSING in place of words, each of which goes with MISSING_RATE; neighbours go together."""
    kept: list[str] = []
    for word in text.split(" "):
        is_missing = generator.random() < MISSING_RATE
        if not is_missing or kept[-1:] != [MISSING]:
            kept.append(MISSING if is_missing else word)
    return " ".join(kept)
