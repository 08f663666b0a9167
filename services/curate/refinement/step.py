"""Refinement as a step of a recipe, with the options of its table `refine`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.core.refusals import Refused, first_complaint
from services.curate.refinement.loading import DEFAULT_CACHE, load_models, named_references
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


def refine_options(table: dict[str, Any]) -> RefineOptions:
    """Read the table `refine`. Raises Refused, naming the option, for unusable ones."""
    try:
        options = RefineOptions.model_validate(table)
        named_references(options.model)
    except ValidationError as invalid:
        raise Refused(f"refine.{first_complaint(invalid, 'the table')}") from None
    except Refused as error:
        raise Refused(f"refine.model: {error}") from None
    return options


def check_models(table: dict[str, Any]) -> None:
    """Raises Refused for unusable options, and for a model that is not there; loads none."""
    own = refine_options(table)
    load_models(own.model, device=own.device, cache=own.cache, store_url=own.store_url)


def refined(pairs: Sequence[Pair], options: dict[str, Any]) -> list[Pair]:
    """Choose the pairs of which no blind model can tell the true captions, in the given order.

    Raises Refused, naming the option, for unusable ones.
    """
    own = refine_options(options)
    if not pairs:
        return []
    models = load_models(own.model, device=own.device, cache=own.cache, store_url=own.store_url)
    scored = score_pairs(pairs, models)
    kept = refine_pairs([pair.kind for pair in pairs], np.stack([one.gaps for one in scored], axis=1), own.seed)
    return [pairs[place] for place in kept]
