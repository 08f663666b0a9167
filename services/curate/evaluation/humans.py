"""People measured: how often they choose the true caption, and which of two sets' negatives they find better."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import BaseModel

from services.core.refusals import Refused
from services.core.text_files import checked, json_objects
from services.curate.refinement.scores import wilson
from services.jobs.sugarcrepe import FORMS, PairKind
from services.jobs.tables import MISSING, Table


class Choice(BaseModel):
    """A person's choice between the two captions of a pair."""

    id: str
    kind: PairKind
    is_right: bool


class Judgement(BaseModel):
    """A person's comparison of two negatives of one caption, by one quality."""

    form: str
    quality: Literal["commonsense", "grammar"]
    better: Literal["ours", "theirs", "tie"]


@dataclass(frozen=True)
class Accuracy:
    """A share of right choices in percent, over pairs, with its 95 % interval.

    Several people's choices on a pair depend on each other, so the interval is that of one choice a pair.
    """

    accuracy: float
    interval: tuple[float, float]
    num_pairs: int
    num_choices: int


def accuracy(choices: Iterable[Choice]) -> Accuracy:
    """Compute the mean over pairs of the shares of right choices, of one choice or more."""
    by_pair: dict[str, list[bool]] = {}
    for one in choices:
        by_pair.setdefault(one.id, []).append(one.is_right)
    right, total = round(sum(map(fmean, by_pair.values())), 6), len(by_pair)
    low, high = wilson(math.floor(right), total)[0], wilson(math.ceil(right), total)[1]
    return Accuracy(100 * right / total, (100 * low, 100 * high), total, sum(map(len, by_pair.values())))


def read_answers(paths: Iterable[Path]) -> tuple[dict[str, list[Choice]], list[Judgement]]:
    """Read choices by the name of their file, and judgements. Raises Refused, naming the line."""
    choices: dict[str, list[Choice]] = {}
    judgements: list[Judgement] = []
    for path in paths:
        records = list(json_objects(path))
        if not records:
            raise Refused(f"{path} holds no answers")
        if any("is_right" in record for _, record in records):
            choices.setdefault(path.name.split(".")[0], []).extend(checked(*one, Choice) for one in records)
        else:
            judgements += (checked(*one, Judgement) for one in records)
    return choices, judgements


@dataclass(frozen=True)
class Accuracies:
    """Accuracies on a set: of each type that was judged, of each form over all its pairs, and the mean of the types."""

    types: Mapping[str, Accuracy]
    forms: Mapping[str, Accuracy]
    mean_of_types: float


def accuracies(choices: Sequence[Choice]) -> Accuracies:
    """Compute the rows "Human" of Tables 4.5 and 4.6."""
    groups: dict[str, list[Choice]] = {kind: [] for kinds in FORMS.values() for kind in kinds}
    for choice in choices:
        groups[choice.kind].append(choice)
    types = {kind: accuracy(of_kind) for kind, of_kind in groups.items() if of_kind}
    by_form = {form: [one for kind in kinds for one in groups[kind]] for form, kinds in FORMS.items()}
    forms = {form: accuracy(of_form) for form, of_form in by_form.items() if of_form}
    return Accuracies(types, forms, fmean(one.accuracy for one in types.values()))


def choice_table(found: Mapping[str, Accuracies]) -> Table:
    """Tell accuracies by set."""
    rows: list[tuple[str, ...]] = []
    for name, of_set in found.items():
        for group, one in (*of_set.types.items(), *((form.upper(), of_form) for form, of_form in of_set.forms.items())):
            interval = f"{one.interval[0]:.1f} to {one.interval[1]:.1f}"
            rows.append((name, group, f"{one.accuracy:.2f}", interval, f"{one.num_pairs:,}", f"{one.num_choices:,}"))
        rows.append((name, "mean of types", f"{of_set.mean_of_types:.2f}", *[MISSING] * 3))
    header = ("Set", "Type", "Right %", "95 %", "Pairs", "Choices")
    return Table.of_texts("True captions chosen by people", header, rows, num_names=2)


def count_judgements(judgements: Iterable[Judgement]) -> dict[str, dict[str, Counter[str]]]:
    """Count the judgements by quality and form."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for one in judgements:
        of_form = counts.setdefault(one.quality, {}).setdefault(one.form, Counter(theirs=0, ours=0, tie=0))
        of_form[one.better] += 1
    return counts


def judgement_table(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
    """Tell how often which set's negatives are better (Table C.3)."""
    rows = [
        (form, quality, *(str(counted[name]) for name in ("theirs", "ours", "tie")))
        for quality, forms in counts.items()
        for form, counted in forms.items()
    ]
    return Table.of_texts("Better in people's eyes", ("Form", "Quality", "Theirs", "Ours", "Tie"), rows, 2)
