"""`fovea evaluate focallens …`: the dissertation's protocols on the command line, each a file of `protocols/`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from services.embed.protocols.colorshape import ColorShapeProtocol, evaluate_colorshape, print_table
from services.embed.protocols.embedders import Unconditioned, load_embedder

app = typer.Typer(no_args_is_help=True)


@app.callback()
def choose_protocol() -> None:
    """Evaluate a FocalLens checkpoint by the dissertation's protocols."""


@app.command()
def colorshape(
    checkpoint: Annotated[
        str, typer.Option(help="A FocalLens checkpoint: its name in the store, or a folder.")
    ] = "focallens-shapes",
    baseline: Annotated[
        str, typer.Option(help="The CLIP to compare with, likewise; its plain embedding answers every condition.")
    ] = "clip-shapes",
    images_per_class: Annotated[int, typer.Option(help="The dissertation renders 500.")] = 125,
    plain: Annotated[bool, typer.Option(help="Objects on plain white instead of all backgrounds.")] = False,
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, mps.")] = "cpu",
    store_url: Annotated[str | None, typer.Option(envvar="FOVEA_STORE_URL", help="The model store.")] = None,
) -> None:
    """Retrieve rendered shapes under each condition: mAP against the unconditional CLIP (Table 5.1)."""
    clip = load_embedder(baseline, device=device, store_url=store_url)
    tuned = load_embedder(checkpoint, device=device, store_url=store_url)
    protocol = ColorShapeProtocol(num_per_class=images_per_class, is_plain=plain)
    results = [evaluate_colorshape(embedder, protocol) for embedder in (clip, Unconditioned(tuned), tuned)]
    print_table(results, Console(width=200))
    Console(highlight=False).print(json.dumps([{**asdict(r), "average": r.average} for r in results]), soft_wrap=True)
