"""Blind models from references on the command line."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from services.core.refusals import Refused
from services.core.settings import DeviceName
from services.core.store.errors import StoreError
from services.curate.model.blind_model import BlindModel
from services.jobs.checkpoints import find_checkpoint

STARTERS = ("plausibility=blind-plausibility", "grammar=blind-grammar")

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Blind model: a name in the store or a Hugging Face folder of Vera, of a classifier of sentences or of a "
        "causal language model. NAME=… sets its name in tables. Repeatable.",
        show_default=" and ".join(STARTERS),
    ),
]
CacheFolder = Annotated[Path, typer.Option("--cache", help="Folder of the scores that are known already.")]
DEFAULT_CACHE = Path("~/.fovea/blind-scores")


def named_references(texts: Sequence[str] | None) -> dict[str, str]:
    """Read `NAME=REFERENCE`, or references that are their own names; the starters if there is none.

    Raises Refused for an empty name or reference, and for two models of one name.
    """
    named: dict[str, str] = {}
    for text in texts or STARTERS:
        name, separator, reference = text.partition("=")
        if not separator or Path(text).exists():
            name, reference = Path(text).name, text
        if not (name and reference):
            raise Refused(f"{text!r} is not NAME=REFERENCE")
        if name in named:
            raise Refused(f"two models are called {name!r}: name them with NAME=…")
        named[name] = reference
    return named


def load_models(
    texts: Sequence[str] | None, *, device: DeviceName = "auto", cache: Path | None = None, store_url: str | None = None
) -> Iterator[BlindModel]:
    """Yield the models one after the other, so that only one need be in memory.

    Raises Refused, at once for a reference that leads nowhere, later for a folder that scores no sentences.
    """
    import torch  # takes seconds, which commands that load no model do without

    from services.nn.devices import DeviceOptions

    found = {}
    for name, reference in named_references(texts).items():
        try:
            found[name] = find_checkpoint(reference, store_url).directory
        except (StoreError, ValueError) as error:
            raise Refused(f"--model {reference}: {error}") from error
    options = DeviceOptions(device=device)
    try:
        chosen = options.choose_device()
    except ValueError as error:
        raise Refused(str(error)) from error
    folder = None if cache is None else cache.expanduser()

    def load(name: str, directory: Path) -> BlindModel:
        model = BlindModel.load(name, directory, device=chosen, cache=folder)
        torch.set_num_threads(options.choose_num_threads(model.scorer.width))
        return model

    return (load(name, directory) for name, directory in found.items())
