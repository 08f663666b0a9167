"""Blind models whose texts workers on Ray score; this process alone keeps the scores."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from services.core.refusals import Refused
from services.core.store.errors import StoreError
from services.curate.model.blind_model import BlindModel, SpreadScorer, Texts
from services.curate.refinement.loading import found_models
from services.jobs.checkpoints import find_checkpoint
from services.jobs.ray.cluster import Pool
from services.jobs.ray.pool import Work, mapped
from services.nn.sentence_scores import load_scorer, scorer_kind


def spread_models(
    texts: Sequence[str] | None, pool: Pool, *, cache: Path | None = None, store_url: str | None = None
) -> Iterator[BlindModel]:
    """Yield the models of references on the command line, one after the other; `connected` must hold.

    Raises Refused, at once for a reference that leads nowhere, later for a folder that scores no sentences.
    """
    folder = None if cache is None else cache.expanduser()

    def describe(name: str) -> BlindModel:
        source = found[name]
        work = Work(_worker, (source.reference, store_url, pool), refusals=(Refused, StoreError))
        scorer = SpreadScorer(scorer_kind(source.directory), partial(mapped, work=work, pool=pool))
        return BlindModel.of(name, source.directory, scorer, device=pool.device, cache=folder)

    found = found_models(texts, store_url)
    return (describe(name) for name in found)


def _worker(reference: str, store_url: str | None, pool: Pool) -> Callable[[Texts], tuple[Texts, Sequence[float]]]:
    """Load a model in a worker. Raises Refused, StoreError."""
    torch.set_num_threads(pool.num_cpus)
    scorer = load_scorer(find_checkpoint(reference, store_url).directory, pool.device)

    def score(texts: Texts) -> tuple[Texts, Sequence[float]]:
        return texts, scorer.scores(texts)

    return score
