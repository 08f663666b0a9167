"""A published data set in the forms that trainings and evaluations read, and the accounts of its candidates.

<type>.json             SugarCrepe's form: `fovea evaluate compositionality sugarcrepe --data`
sugarcrepe_pp/          SugarCrepe++'s form, of pairs with a second true caption: `… sugarcrepe-pp --data`
pairs.jsonl             all fields; also a table of images and captions: `fovea train fsc-clip --images`
instructions.json       LLaVA's form, a choice of two captions: `fovea train focallens --llava`
README.md               the data card
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from services.core.durable_files import write_durably
from services.curate.pipeline.recipe import Recipe
from services.jobs.plots import FlowStep, draw_flow
from services.jobs.sugarcrepe import Pair, PairKind, write_pairs, write_published
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


PAIRS, INSTRUCTIONS, CARD, TWO_CAPTIONS = "pairs.jsonl", "instructions.json", "README.md", "sugarcrepe_pp"
QUESTION = '<image>\nWhich sentence is true of the picture: "{}" or "{}"?'


def publish(folder: Path, recipe: Recipe, pairs: Sequence[Pair], accounts: Accounts) -> None:
    """Write the data set in all forms. Raises OSError."""
    write_published(folder, pairs)
    write_two_captions(folder / TWO_CAPTIONS, pairs)
    write_pairs(folder / PAIRS, pairs)
    _write_json(folder / INSTRUCTIONS, [_instruction(pair) for pair in pairs])
    write_durably(folder / CARD, [_card(recipe, accounts, pairs).encode()])


def write_two_captions(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write the pairs with two true captions in SugarCrepe++'s form: a list of records for each type that occurs."""
    chosen = [pair for pair in pairs if pair.second_caption is not None]
    for kind in dict.fromkeys(pair.kind for pair in chosen):
        records = [
            {
                "id": place,
                "filename": pair.filename,
                "caption": pair.caption,
                "caption2": pair.second_caption,
                "negative_caption": pair.negative_caption,
            }
            for place, pair in enumerate(one for one in chosen if one.kind == kind)
        ]
        _write_json(folder / f"{kind}.json", records)


def _card(recipe: Recipe, accounts: Accounts, pairs: Sequence[Pair]) -> str:
    """Write a data card: the source, how the negatives were made, what became of the candidates, and the fields."""
    made_by = ", ".join(sorted({pair.made_by for pair in pairs if pair.made_by})) or recipe.generate.method
    refined = "with adversarial refinement" if recipe.refine is not None else "without adversarial refinement"
    reviewed = "reviewed by people" if recipe.review is not None else "not reviewed by people"
    return f"""# {recipe.name}

{len(pairs)} pairs of captions of an image: a true one, and a hard negative that differs by one small change of meaning.

- Captions: {recipe.captions.file.name}. Licence: {recipe.licence or "not stated"}.
- Negatives: made by {made_by}; {refined}; {reviewed}.
- Fields: `filename` of the image, `caption` (true), `negative_caption` (false); in `pairs.jsonl` also `id`, `kind`,
  `made_by`, and a `second_caption` (true) where there is one.

{accounts.table().to_markdown()}
{accounts.reasons().to_markdown()}"""


def _instruction(pair: Pair) -> dict[str, Any]:
    """Ask for the true caption of the two, which comes first in half of the questions."""
    texts = [pair.caption, pair.negative_caption]
    if sha256(pair.id.encode("utf-8", "surrogatepass")).digest()[0] % 2:
        texts.reverse()
    turns = [{"from": "human", "value": QUESTION.format(*texts)}, {"from": "gpt", "value": pair.caption}]
    return {"id": pair.id, "image": pair.filename, "conversations": turns}


def _write_json(path: Path, content: Any) -> None:
    write_durably(path, [json.dumps(content, indent=1, ensure_ascii=False).encode()])
