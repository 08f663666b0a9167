"""Unlabelled texts for pretraining: a student learns to restore a text from which words are missing.

This replaces the pretraining of a T5. It uses the texts of the other generated tasks without labels and rationales:
each run of missing words is replaced by one sign, and the target is the original text.
"""

import random
from collections.abc import Callable, Sequence

from services.predict.data.rows import Row, TeacherOutput
from services.predict.tasks import EOS, Task

DENOISING = Task("denoising", ("text",), "\n")

MISSING = "_"
MISSING_RATE = 0.25  # of words


def denoising_of(draws: Sequence[Callable[[random.Random], Row]]) -> Callable[[random.Random], Row]:
    """Make a function that draws a row from one of these kinds of text, all equally likely.

    The teacher's output about the text is kept as the row's rationale: this task does not teach it, but a tokenizer
    learnt from the rows then knows its words.
    """

    def draw(generator: random.Random) -> Row:
        row = generator.choice(draws)(generator)
        text = row.input.replace(EOS, " ")
        written = row.output.text if row.output else ""
        return Row(with_gaps(text, generator), text, TeacherOutput(written, written, text))

    return draw


def with_gaps(text: str, generator: random.Random) -> str:
    """Replace each word by MISSING with probability MISSING_RATE; adjacent missing words share one sign."""
    kept: list[str] = []
    for word in text.split(" "):
        is_missing = generator.random() < MISSING_RATE
        if not is_missing or kept[-1:] != [MISSING]:
            kept.append(MISSING if is_missing else word)
    return " ".join(kept)
