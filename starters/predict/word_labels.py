"""Labels of an input's words, which a training reads from a student's encoder and a checkpoint does not keep.

A label of a whole answer reaches one token of a target; these reach most words of an input, and say what the answer
follows from.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from services.predict.data.rows import Row
from starters.predict.everyday import word_labels as of_problems
from starters.predict.inferences import INFERENCES
from starters.predict.problems import WORD_PROBLEMS
from starters.predict.sentence_pairs import word_labels as of_inferences
from starters.predict.spans import Probe, WordLabel


@dataclass(frozen=True)
class WordLabels:
    """The probes of a task, and how to label the words of its examples as a student reads them."""

    probes: tuple[Probe, ...]
    label: Callable[[Row], Iterable[WordLabel]]


# By task, made when they are needed: the words of inferences are in files.
WORD_LABELS: Mapping[str, Callable[[], WordLabels]] = {
    INFERENCES.name: lambda: WordLabels(of_inferences.probes(), of_inferences.label_words),
    WORD_PROBLEMS.name: lambda: WordLabels(of_problems.PROBES, of_problems.label_words),
}
