"""Attacks on a benchmark by its texts alone, and how far they succeed.

Beside the blind models there are three that know no English: the length of a caption, and what the benchmark's own
other choices tell of words, or of capitals and marks.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from services.curate.evaluation.choices import Choice
from services.curate.intervals import wilson

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
NUM_FOLDS = 5
# Fewer occurrences than this tell little about a word.
MIN_OCCURRENCES = 8

SHORTER, WORDS, MARKS = "the shorter caption", "words of the other items", "capitals and marks of the other items"

# Properties of a text, of which those that only one of two captions has tell them apart.
Features = Callable[[str], frozenset[str]]


@dataclass(frozen=True)
class Attack:
    """Outcome of one attack on a task: choices that are right, wrong, and without a single best caption."""

    attacker: str
    task: str
    num_right: int
    num_wrong: int
    num_ties: int
    chance: float

    @property
    def total(self) -> int:
        return self.num_right + self.num_wrong + self.num_ties

    @property
    def accuracy(self) -> float:
        """Share of right choices; a tie is wrong."""
        return self.num_right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %."""
        return wilson(self.num_right, self.total)

    @property
    def with_guesses(self) -> float:
        """Share of right choices of an attacker who guesses where captions tie."""
        return (self.num_right + self.chance * self.num_ties) / self.total

    @property
    def verdict(self) -> str:
        """`hackable` above chance, `reversed` where the other caption of two is right more often than chance, or none.

        Items on which captions tie do not count: there an attacker guesses. A reversed attack is as good as one that is
        right, since an attacker who knows of it takes the other caption.
        """
        num_decided = self.num_right + self.num_wrong
        if wilson(self.num_right, num_decided)[0] > self.chance:
            return "hackable"
        is_reversed = self.chance == 0.5 and wilson(self.num_wrong, num_decided)[0] > 0.5
        return "reversed" if is_reversed else ""


@dataclass(frozen=True)
class Giveaway:
    """A word that stands in true captions only, or in false ones only, more often in one kind than in the other."""

    task: str
    word: str
    num_true: int
    num_false: int

    @property
    def deviations(self) -> float:
        """Distance of the two numbers from equal ones, in standard deviations; above 0 for a word of false captions."""
        return (self.num_false - self.num_true) / math.sqrt(self.num_false + self.num_true)


def words_of(text: str) -> frozenset[str]:
    """Return a caption's distinct words, lower case."""
    return frozenset(WORD.findall(text.lower()))


def marks_of(text: str) -> frozenset[str]:
    """Return how a caption is written: its first letter, its end, its spaces and commas."""
    properties = {
        "begins with a capital": text[:1].isupper(),
        "ends with a full stop": text.rstrip().endswith("."),
        "ends with white space": text != text.rstrip(),
        "has two spaces": "  " in text,
        "has a space before a mark": re.search(r"\s[.,!?]", text) is not None,
        "has a comma": "," in text,
    }
    return frozenset(name for name, holds in properties.items() if holds)


def attack(attacker: str, choices: Sequence[Choice], scores: Sequence[tuple[float, ...]]) -> list[Attack]:
    """Judge scores, of the true caption and then the false ones of each choice, by task, and all of them together."""
    by_task: dict[str, list[int]] = {}
    for place, choice in enumerate(choices):
        by_task.setdefault(choice.task, []).append(place)
    if len(by_task) > 1:
        by_task["all"] = list(range(len(choices)))
    attacks = []
    for task, places in by_task.items():
        gaps = [margin(scores[place]) for place in places]
        chance = math.fsum(1 / (1 + len(choices[place].negatives)) for place in places) / len(places)
        counts = (sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps), sum(gap == 0 for gap in gaps))
        attacks.append(Attack(attacker, task, *counts, chance))
    return attacks


def margin(scores: Sequence[float]) -> float:
    """Compute the distance of the true caption's score, the first, from the best of the others."""
    return scores[0] - max(scores[1:])


def length_scores(choices: Sequence[Choice]) -> list[tuple[float, ...]]:
    """Score captions by their length in characters, the shorter the better."""
    return [tuple(-float(len(text)) for text in (one.caption, *one.negatives)) for one in choices]


def learned_scores(choices: Sequence[Choice], features: Features = words_of) -> list[tuple[float, ...]]:
    """Score captions by how much more often their features occur in true captions than in false ones of other choices.

    The score is a naive Bayes classifier's of what one side alone has, Σ log (n_true + 1) / (n_false + 1), counted in
    the other four of five parts. Choices of one true caption are in one part.
    """
    folds = [crc32(one.caption.encode("utf-8", "surrogatepass")) % NUM_FOLDS for one in choices]
    totals = [
        _counts([one for one, own in zip(choices, folds, strict=True) if own != fold], features)
        for fold in range(NUM_FOLDS)
    ]
    scores = []
    for one, fold in zip(choices, folds, strict=True):
        counts = totals[fold]
        scores.append(tuple(_log_odds(features(text), counts) for text in (one.caption, *one.negatives)))
    return scores


def giveaways(choices: Sequence[Choice], *, num_words: int) -> list[Giveaway]:
    """List the words that give away the most of each task, at most `num_words`, the most certain first."""
    found = []
    for task in dict.fromkeys(one.task for one in choices):
        counts = _counts([one for one in choices if one.task == task], words_of)
        words = [
            Giveaway(task, word, num_true, num_false)
            for word, (num_true, num_false) in counts.items()
            if num_true + num_false >= MIN_OCCURRENCES
        ]
        found += sorted(words, key=lambda word: (-abs(word.deviations), word.word))[:num_words]
    return found


def _counts(choices: Sequence[Choice], features: Features) -> Mapping[str, tuple[int, int]]:
    """Count the choices in which a feature is the true caption's alone, and those in which it is a false one's."""
    of_true, of_false = Counter[str](), Counter[str]()
    for one in choices:
        true = features(one.caption)
        for negative in one.negatives:
            false = features(negative)
            of_true.update(true - false)
            of_false.update(false - true)
    return {word: (of_true[word], of_false[word]) for word in of_true | of_false}


def _log_odds(words: frozenset[str], counts: Mapping[str, tuple[int, int]]) -> float:
    pairs = [counts.get(word, (0, 0)) for word in words]
    # a sum in any order of a set rounds differently each time
    return math.fsum(math.log((num_true + 1) / (num_false + 1)) for num_true, num_false in pairs)
