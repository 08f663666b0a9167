"""The steps from captions to a published data set; run again, each continues or reads what it wrote before."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from services.core.durable_files import write_durably
from services.curate.authoring.job import Generated, run_generation
from services.curate.data.captions import read_captions
from services.curate.data.pairs import write_pairs
from services.curate.pipeline.accounts import REFINED_AWAY, REFUSED, REJECTED, Accounts
from services.curate.pipeline.publishing import publish
from services.curate.pipeline.recipe import Recipe, ReviewOptions
from services.curate.pipeline.verdicts import read_verdicts, reviewed
from services.curate.refinement.report import scarce
from services.curate.refinement.step import RefineOptions, refined
from services.jobs.progress import counted
from services.jobs.sugarcrepe import Pair, read_pairs

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
