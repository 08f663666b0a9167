"""The steps from captions to a published data set; run again, each continues or reads what it wrote before.

People's verdicts are lines of JSON: an id and a verdict, and optionally who gave it in which round.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.text_files import read_records
from services.curate.authoring.job import Generated, run_generation
from services.curate.data.captions import read_captions
from services.curate.pipeline.publishing import REFINED_AWAY, REFUSED, REJECTED, Accounts, publish
from services.curate.pipeline.recipe import Recipe, ReviewOptions
from services.curate.refinement.report import scarce
from services.curate.refinement.scores import RefineOptions, refined
from services.jobs.progress import counted
from services.jobs.sugarcrepe import Pair, read_pairs, write_pairs

# The negative is false of the image; it is true of it as well; neither can be told.
Verdict = Literal["valid", "false_negative", "unclear"]
UNREVIEWED = "unreviewed"


class _Line(BaseModel):
    """A line; what else a review's export tells is of no concern here."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    verdict: Verdict
    reviewer: str | None = None
    round: int = 1


@dataclass(frozen=True)
class Reviewed:
    """Pairs that people accept, and the ids of the others with the reasons; `num_unknown` verdicts are on no pair."""

    accepted: list[Pair]
    refused: Mapping[str, str]
    num_unknown: int


def read_verdicts(path: Path) -> dict[str, Counter[Verdict]]:
    """Count the verdicts on each id: each reviewer's last one of the latest round, and all without a reviewer.

    Raises BadFile.
    """
    latest: dict[tuple[str, str], _Line] = {}
    for place, line in read_records(path, _Line):
        key = (line.id, str(place) if line.reviewer is None else line.reviewer)
        if key not in latest or latest[key].round <= line.round:
            latest[key] = line
    found: defaultdict[str, Counter[Verdict]] = defaultdict(Counter)
    for line in latest.values():
        found[line.id][line.verdict] += 1
    return dict(found)


def reviewed(
    pairs: Sequence[Pair], verdicts: Mapping[str, Mapping[Verdict, int]], *, unreviewed: Literal["keep", "refuse"]
) -> Reviewed:
    """Accept the pairs that most of the people who judged them found valid."""
    accepted: list[Pair] = []
    refused: dict[str, str] = {}
    for pair in pairs:
        given = verdicts.get(pair.id)
        if given is None:
            reason = None if unreviewed == "keep" else UNREVIEWED
        else:
            reason = None if 2 * given.get("valid", 0) > sum(given.values()) else _most_frequent(given)
        if reason is None:
            accepted.append(pair)
        else:
            refused[pair.id] = reason
    known = {pair.id for pair in pairs}
    return Reviewed(accepted, refused, sum(one not in known for one in verdicts))


def _most_frequent(given: Mapping[Verdict, int]) -> Verdict:
    """Return the most frequent verdict other than `valid`."""
    return max(("false_negative", "unclear"), key=lambda verdict: given.get(verdict, 0))


GENERATED, PUBLISHED = "generated", "published"
REFINED, REBALANCED, TO_REVIEW = "refined", "rebalanced", "to-review.jsonl"


# Chooses the pairs of which no model of texts alone can tell the true captions (Algorithm 1), in the given order.
# Equal pairs and options give an equal choice.
Refine = Callable[[Sequence[Pair], RefineOptions], Sequence[Pair]]


class Unanswered(Exception):
    """Candidates that the model has not answered; the message can be shown to users."""


class AwaitsReview(Exception):
    """Pairs that people have yet to judge; the message tells where they are."""


def run(recipe: Recipe, console: Console, *, refine: Refine = refined) -> Accounts:
    """Carry out a recipe and return its accounts.

    Raises Unanswered while too much has no answer, AwaitsReview while there are no verdicts, and what
    the steps raise; all that was done until then is on disk.
    """
    source = recipe.captions
    found = read_captions(source.file, source.fields, limit=source.limit)
    _tell(found.told(), console)
    generated = run_generation(found.captions, recipe.generate, recipe.output / GENERATED, console)
    if generated.lacks_answers:
        raise Unanswered(generated.told_unanswered("recipe"))
    accounts = _opened(generated)
    pairs = _refined(list(generated.pairs), recipe, refine, accounts, REFINED)
    if recipe.review is not None:
        num_before = len(pairs)
        pairs = _reviewed(pairs, recipe.output, recipe.review, accounts, console)
        if len(pairs) < num_before:
            # those whom people refuse leave their counterparts behind
            pairs = _refined(pairs, recipe, refine, accounts, REBALANCED)
    accounts.published.update(pair.kind for pair in pairs)
    accounts.check()
    publish(recipe.output / PUBLISHED, recipe, pairs, accounts)
    accounts.write(recipe.output)
    told = [f"{counted(len(pairs), 'pair')} in {recipe.output / PUBLISHED}; their images are in {source.file.parent}"]
    warning = scarce(accounts.kinds(), (pair.kind for pair in pairs))
    _tell([*told, *([] if warning is None else [warning])], console)
    return accounts


def _tell(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=True)


def _opened(generated: Generated) -> Accounts:
    """Begin the accounts with what was made and what the checks rejected."""
    accounts = Accounts()
    accounts.made.update(pair.kind for pair in generated.pairs)
    accounts.made.update(one.kind for one in generated.rejected)
    accounts.lose(REJECTED, ((one.kind, one.reason) for one in generated.rejected))
    return accounts


def _refined(pairs: list[Pair], recipe: Recipe, refine: Refine, accounts: Accounts, name: str) -> list[Pair]:
    options = recipe.refine
    if options is None:
        return pairs
    given = options.model_dump(mode="json", exclude_unset=True)
    kept = _kept_or_made(recipe.output / f"{name}.jsonl", pairs, given, lambda: refine(pairs, options))
    accounts.lose_pairs(REFINED_AWAY, pairs, kept, {})
    return kept


def _reviewed(
    pairs: list[Pair], output: Path, options: ReviewOptions, accounts: Accounts, console: Console
) -> list[Pair]:
    write_pairs(output / TO_REVIEW, pairs)
    if not options.verdicts.exists():
        raise AwaitsReview(
            f"{len(pairs)} pairs await people's verdicts: judge {output / TO_REVIEW}, write {options.verdicts}, and run"
            " the same recipe"
        )
    found = reviewed(pairs, read_verdicts(options.verdicts), unreviewed=options.unreviewed)
    if found.num_unknown:
        console.print(f"{found.num_unknown} verdicts are on pairs that are not among these", soft_wrap=True)
    accounts.lose_pairs(REFUSED, pairs, found.accepted, found.refused)
    return found.accepted


def _kept_or_made(
    path: Path, pairs: Sequence[Pair], options: dict[str, Any], make: Callable[[], Sequence[Pair]]
) -> list[Pair]:
    """Return a step's earlier result if its input and options are the same, or make and write it."""
    told = [[pair.model_dump(mode="json") for pair in pairs], options]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
    beside = path.with_suffix(".input")
    if path.exists() and beside.exists() and beside.read_text() == digest:
        return read_pairs(path)
    beside.unlink(missing_ok=True)
    kept = list(make())
    write_pairs(path, kept)
    write_durably(beside, [digest.encode()])
    return kept
