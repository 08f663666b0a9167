"""`fovea curate refine`: keep the pairs whose texts alone do not tell which caption is true (SugarCrepe's stage 3)."""

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.logs import log_warnings_to_stderr
from services.core.printable import json_line
from services.core.refusals import Refused
from services.core.store.errors import StoreError
from services.curate.refinement.loading import DEFAULT_CACHE, CacheFolder, Models, load_models, named_references
from services.curate.refinement.report import accuracy_table, count_table, data_card, histograms, report, scarce
from services.curate.refinement.scores import Scored, blind_results, refine_pairs, score_pairs
from services.curate.sugarcrepe import MAX_MODELS
from services.jobs.checkpoints import Device
from services.jobs.options import MAX_SEED, StoreUrl, command_line, output_folder
from services.jobs.sugarcrepe import load_pairs, write_pairs, write_published

app = command_line()


@app.callback()
def choose() -> None:
    """Refine pairs of captions."""


@app.command("refine")
def refine_command(
    pairs: Annotated[
        Path, typer.Argument(exists=True, help="Pairs as JSON lines, or a folder with SugarCrepe's seven files.")
    ],
    output: Annotated[Path, typer.Option(callback=output_folder, help="Folder of the refined pairs and the report.")],
    model: Models = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Seed that chooses which pairs of a larger cell are kept.")
    ] = 0,
    name: Annotated[str | None, typer.Option(help="Name on the data card.", show_default="the folder's")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence on the data card.", show_default="not stated")] = None,
    cache: CacheFolder = DEFAULT_CACHE,
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Drop pairs until no blind model prefers the true caption: adversarial refinement (Algorithm 1), by type.

    Writes pairs.jsonl, SugarCrepe's files, scores.jsonl of all pairs, report.md and report.json, gaps.svg and a data
    card.
    """
    log_warnings_to_stderr()
    try:
        named = named_references(model)
        if len(named) > MAX_MODELS:
            raise Refused(f"{len(named)} models are more than the {MAX_MODELS} that one refinement takes")
        loaded = load_pairs(pairs)
        if not loaded:
            raise Refused(f"{pairs} holds no pairs")
        scored = score_pairs(loaded, load_models(model, device=device, cache=cache, store_url=store_url))
    except (Refused, StoreError) as error:
        raise typer.BadParameter(str(error)) from error
    kinds = [pair.kind for pair in loaded]
    kept = refine_pairs(kinds, np.stack([one.gaps for one in scored], axis=1), seed)
    before = blind_results(kinds, scored, np.arange(len(loaded)))
    after = blind_results(kinds, scored, kept)
    refined = [loaded[place] for place in kept]
    write_pairs(output / "pairs.jsonl", refined)
    write_published(output / "sugarcrepe", refined)
    write_durably(output / "scores.jsonl", _score_lines([pair.id for pair in loaded], scored, set(kept.tolist())))
    tables = (count_table(kinds, kept), accuracy_table(before, after))
    texts = {
        "report.json": json.dumps(
            report(before, after, {"pairs": str(pairs), "models": named, "seed": seed}), indent=2
        ),
        "report.md": "\n".join(table.to_markdown() for table in tables),
        "gaps.svg": histograms({one.model: {"before": one.gaps, "after": one.gaps[kept]} for one in scored}),
        "DATA_CARD.md": data_card(name or output.resolve().name, refined, tables, models=named, licence=licence),
    }
    for file, text in texts.items():
        write_durably(output / file, [text.rstrip().encode() + b"\n"])
    console = Console(width=120, highlight=False)
    for table in tables:
        console.print(table.to_rich())
    typer.echo(f"{len(kept):,} of {len(loaded):,} pairs are in {output}")
    if (warning := scarce(kinds, (pair.kind for pair in refined))) is not None:
        typer.echo(warning, err=True)


def _score_lines(ids: Sequence[str], scored: Sequence[Scored], kept: AbstractSet[int]) -> Iterator[bytes]:
    """Write every pair's scores, positive and negative, and whether it is kept."""
    for place, one in enumerate(ids):
        scores = {s.model: [float(s.positive[place]), float(s.negative[place])] for s in scored}
        yield json_line(json.dumps({"id": one, "kept": place in kept, "scores": scores}, ensure_ascii=False))


if __name__ == "__main__":
    app()
