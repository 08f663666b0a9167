"""Refinement as a step of a recipe, with the options of its table `refine`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from services.curate.model.blind_model import BlindModel
from services.curate.refinement.loading import DEFAULT_CACHE, load_models
from services.curate.refinement.scores import refine_pairs, score_pairs
from services.curate.sugarcrepe import MAX_MODELS
from services.jobs.options import MAX_SEED
from services.jobs.sugarcrepe import Pair
from services.nn.devices import DeviceName


class RefineOptions(BaseModel):
    """The options of `fovea curate refine`, by the same names; without models, the starters."""

    model_config = ConfigDict(extra="forbid")

    model: list[str] = Field(default_factory=list, max_length=MAX_MODELS)
    seed: int = Field(0, ge=0, le=MAX_SEED)
    cache: Path = DEFAULT_CACHE
    device: DeviceName = "auto"
    store_url: str | None = None

    def models(self) -> Iterator[BlindModel]:
        """Load the models one after the other. Raises Refused, at once for one that is not there."""
        return load_models(self.model, device=self.device, cache=self.cache, store_url=self.store_url)


def refined(pairs: Sequence[Pair], options: RefineOptions) -> list[Pair]:
    """Choose the pairs of which no blind model can tell the true captions, in the given order. Raises Refused."""
    if not pairs:
        return []
    scored = score_pairs(pairs, options.models())
    kept = refine_pairs([pair.kind for pair in pairs], np.stack([one.gaps for one in scored], axis=1), options.seed)
    return [pairs[place] for place in kept]
