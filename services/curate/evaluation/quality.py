"""Quality of one set of hard negatives beside another, by blind models and by people (Tables 4.4 and C.3)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from services.core.refusals import Refused
from services.curate.model.blind_model import BlindModel
from services.curate.sugarcrepe import better_ratio
from services.jobs.json_lines import read_json_lines
from services.jobs.sugarcrepe import Pair

# The forms of the comparison, with the types of each. Denials and additions both ask whether something is there.
COMPARED: Mapping[str, tuple[str, ...]] = {
    "REPLACE": ("replace_obj", "replace_att", "replace_rel"),
    "SWAP": ("swap_obj", "swap_att"),
    "NEGATE / ADD": ("negate", "add_obj", "add_att"),
    "SHUFFLE": ("shuffle",),
}


@dataclass(frozen=True)
class Quality:
    """Mean scores × 100 of the negatives of one form, theirs and ours, and of captions that both have, where ours win.

    A value is None where a set has no negative of the form, or the two share no caption.
    """

    form: str
    model: str
    theirs: float | None
    ours: float | None
    better: float | None
    num_compared: int


def qualities(ours: Sequence[Pair], theirs: Sequence[Pair], models: Iterable[BlindModel]) -> list[Quality]:
    """Compare the negatives of two sets by each model: their mean scores, and the captions where ours scores higher.

    Where a set has several negatives of a caption and form, all combinations are compared. Scores of likelihoods are
    the mean probability of a token, eˢ.
    """
    found: dict[str, list[Quality]] = {form: [] for form in COMPARED}
    for model in models:
        texts = [pair.negative_caption for pair in (*ours, *theirs)]
        scores = model.scores(texts)
        values = np.exp(scores) if model.scorer.kind == "likelihood" else scores
        of_ours, of_theirs = values[: len(ours)].tolist(), values[len(ours) :].tolist()
        for form, kinds in COMPARED.items():
            one = [(pair.caption, score) for pair, score in zip(ours, of_ours, strict=True) if pair.kind in kinds]
            two = [(pair.caption, score) for pair, score in zip(theirs, of_theirs, strict=True) if pair.kind in kinds]
            if one or two:
                found[form].append(_quality(form, model.name, one, two))
    return [quality for of_form in found.values() for quality in of_form]


def _quality(form: str, model: str, ours: Sequence[tuple[str, float]], theirs: Sequence[tuple[str, float]]) -> Quality:
    by_caption: dict[str, list[float]] = {}
    for caption, score in theirs:
        by_caption.setdefault(_same(caption), []).append(score)
    both = [(score, other) for caption, score in ours for other in by_caption.get(_same(caption), ())]
    better = 100 * better_ratio(*np.array(both).T) if both else None
    return Quality(form, model, _mean(theirs), _mean(ours), better, len(both))


def _mean(scores: Sequence[tuple[str, float]]) -> float | None:
    return 100 * float(np.mean([score for _, score in scores])) if scores else None


def _same(caption: str) -> str:
    """Tell captions apart by their words alone, since sets differ in white space, capitals and full stops."""
    return " ".join(caption.lower().split()).rstrip(" .")


class Judgement(BaseModel):
    """A person's comparison of two negatives of one caption, by one quality."""

    model_config = ConfigDict(extra="forbid")

    form: str
    quality: Literal["commonsense", "grammar"]
    better: Literal["ours", "theirs", "tie"]


def count_judgements(path: Path) -> dict[tuple[str, str], Counter[str]]:
    """Count the judgements of a file of JSON lines by form and quality. Raises Refused, naming the line."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for _, one in read_json_lines(path, Judgement, Refused):
        counts.setdefault((one.form, one.quality), Counter())[one.better] += 1
    return counts
