"""Tasks of a review: the question that people are asked of each pair. A review and its database are of one task.

`validity` asks whether a negative caption is false of its image. The others are the dissertation's measurements of
people, who see two texts without knowing which is which:

- `choice` asks which of two captions is true of the image (the rows "Human" of Tables 4.5 and 4.6),
- `commonsense` and `grammar`, which of two sets' negatives of one caption is better in that, or a tie (Table C.3).

What is drawn is drawn by the pair's id: whoever repeats a review gets the same pairs in the same order.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.curate.data.comparisons import FORM_OF, same_caption
from services.jobs.sugarcrepe import Pair

TaskName = Literal["validity", "choice", "commonsense", "grammar"]
VerdictName = Literal["valid", "false_negative", "unclear", "first", "second", "tie"]


class Comparison(Pair):
    """A pair of ours with another set's negative of the same caption and form."""

    theirs: str


@dataclass(frozen=True)
class Task:
    """A question. `texts` are the two that it is about, shown in an order of each pair, for which `first` stands."""

    name: TaskName
    verdicts: tuple[VerdictName, ...]
    texts: tuple[str, ...] = ()

    @property
    def is_blind(self) -> bool:
        """Whether nobody is to know what a text is: neither its type nor others' verdicts are shown, in one round."""
        return bool(self.texts)

    @property
    def compares_sets(self) -> bool:
        """Whether it is about two sets' negatives, and not about the image."""
        return "theirs" in self.texts

    def order(self, pair: Pair) -> tuple[str, ...]:
        """Return the two texts' names in the order in which they are shown."""
        return self.texts[:: -1 if _drawn(pair)[-1] % 2 else 1]

    def items(self, pairs: Sequence[Pair], theirs: Iterable[Pair] = (), sample: int | None = None) -> list[Pair]:
        """Return what is judged: all pairs, or as many of each type, or form of a comparison, as `sample` says.

        A larger sample holds the smaller ones.
        """
        of_task = compared(pairs, theirs) if self.compares_sets else pairs
        if sample is None and not self.is_blind:
            return list(of_task)
        counts: Counter[str] = Counter()
        found = []
        for pair in sorted(of_task, key=_drawn):
            group = FORM_OF[pair.kind] if self.compares_sets else pair.kind
            counts[group] += 1
            if sample is None or counts[group] <= sample:
                found.append(pair)
        return found

    def told(self, pair: Pair, verdict: VerdictName, first: str | None) -> Mapping[str, str | bool]:
        """Return what a line of the export says beside the verdict, as `fovea curate measure humans` reads it."""
        if first is None:
            return {}
        (other,) = {*self.texts} - {first}
        chosen = {"first": first, "second": other, "tie": "tie"}[verdict]
        if self.compares_sets:
            return {"form": FORM_OF[pair.kind], "quality": self.name, "better": chosen}
        return {"kind": pair.kind, "is_right": chosen == "caption"}


TASKS: Mapping[TaskName, Task] = {
    task.name: task
    for task in (
        Task("validity", ("valid", "false_negative", "unclear")),
        Task("choice", ("first", "second"), ("caption", "negative_caption")),
        Task("commonsense", ("first", "second", "tie"), ("ours", "theirs")),
        Task("grammar", ("first", "second", "tie"), ("ours", "theirs")),
    )
}


def compared(ours: Iterable[Pair], theirs: Iterable[Pair]) -> list[Pair]:
    """Set beside each of our pairs one of their negatives of its caption and form, and leave out those without one."""
    others: dict[tuple[str, str], list[str]] = {}
    for pair in theirs:
        others.setdefault(_caption_and_form(pair), []).append(pair.negative_caption)
    return [
        Comparison(**pair.model_dump(), theirs=found[int.from_bytes(_drawn(pair)[:-1]) % len(found)])
        for pair in ours
        if (found := others.get(_caption_and_form(pair)))
    ]


def _caption_and_form(pair: Pair) -> tuple[str, str]:
    return same_caption(pair.caption), FORM_OF[pair.kind]


def _drawn(pair: Pair) -> bytes:
    return hashlib.sha256(pair.id.encode()).digest()
