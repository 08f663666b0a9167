"""Accounts of a pipeline: every candidate is published, or lost at one step for one reason."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from services.core.durable_files import write_durably
from services.jobs.plots import FlowStep, draw_flow
from services.jobs.sugarcrepe import Pair, PairKind
from services.jobs.tables import Table

REJECTED, REFINED_AWAY, REFUSED = "rejected by checks", "refined away", "refused by people"
STEPS = (REJECTED, REFINED_AWAY, REFUSED)
FIGURE, TABLE, NUMBERS = "flow.svg", "accounts.md", "accounts.json"


class DoesNotAddUp(AssertionError):
    """A candidate that is neither published nor lost, or both; the message tells the numbers."""


@dataclass
class Accounts:
    """Numbers of candidates, by type: those made, those published, and those lost by step and reason."""

    made: Counter[PairKind] = field(default_factory=Counter)
    published: Counter[PairKind] = field(default_factory=Counter)
    lost: dict[str, Counter[tuple[PairKind, str]]] = field(default_factory=lambda: {step: Counter() for step in STEPS})

    def lose(self, step: str, losses: Iterable[tuple[PairKind, str]]) -> None:
        """Count candidates that are lost at a step, each with its type and the reason."""
        self.lost[step].update(losses)

    def lose_pairs(self, step: str, pairs: Sequence[Pair], kept: Sequence[Pair], reasons: Mapping[str, str]) -> None:
        """Count the pairs that are not among those kept; one without a reason of its own has the step's name."""
        ids = {pair.id for pair in kept}
        self.lose(step, ((pair.kind, reasons.get(pair.id, step)) for pair in pairs if pair.id not in ids))

    def num_lost(self, step: str, kind: PairKind | None = None) -> int:
        return sum(number for (own, _), number in self.lost[step].items() if kind in (None, own))

    def check(self) -> None:
        """Raises DoesNotAddUp unless, for each type, made = published + lost."""
        for kind in self.kinds():
            losses = {step: self.num_lost(step, kind) for step in STEPS}
            if self.made[kind] != self.published[kind] + sum(losses.values()):
                raise DoesNotAddUp(
                    f"{kind}: {self.made[kind]} made, {self.published[kind]} published, and lost: {losses}"
                )

    def kinds(self) -> list[PairKind]:
        """List the types of which any was made, in their usual order."""
        return [kind for kind in get_args(PairKind) if self.made[kind]]

    def table(self) -> Table:
        """Make the table of types and fates."""
        rows = [
            (kind, str(self.made[kind]), *(str(self.num_lost(step, kind)) for step in STEPS), str(self.published[kind]))
            for kind in self.kinds()
        ]
        total = ("all", str(self.made.total()), *(str(self.num_lost(step)) for step in STEPS),
                 str(self.published.total()))  # fmt: skip
        return Table.of_texts("Candidates", ("Type", "Made", *map(str.capitalize, STEPS), "Published"), [*rows, total])

    def reasons(self) -> Table:
        """Make the table of losses by step and reason."""
        rows = []
        for step in STEPS:
            by_reason: Counter[str] = Counter()
            for (_, reason), number in self.lost[step].items():
                by_reason[reason] += number
            rows += [(step, reason, str(number)) for reason, number in by_reason.most_common()]
        return Table.of_texts("Lost candidates", ("Step", "Reason", "Number"), rows, num_names=2)

    def write(self, folder: Path) -> None:
        """Write the tables, the numbers and the figure. Raises OSError."""
        numbers = {
            "made": dict(self.made),
            "published": dict(self.published),
            "lost": {
                step: [{"kind": kind, "reason": reason, "number": number} for (kind, reason), number in own.items()]
                for step, own in self.lost.items()
            },
        }
        tables = f"{self.table().to_markdown()}\n{self.reasons().to_markdown()}"
        steps = [FlowStep(step, self.num_lost(step)) for step in STEPS]
        figure = draw_flow("made", self.made.total(), steps, "published")
        for name, text in ((NUMBERS, json.dumps(numbers, indent=1)), (TABLE, tables), (FIGURE, figure)):
            write_durably(folder / name, [text.encode()])
