"""`fovea embed-bulk`: embed many images into a collection of a running Fovea, or into files.

The same command continues an interrupted job. Torch is imported only if embeddings are computed locally.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.core.logs import log_warnings_to_stderr
from services.core.printable import printable
from services.core.store.errors import StoreError
from services.embed.bulk.collection_client import Refused, Unavailable
from services.embed.bulk.folder import OutputError
from services.embed.bulk.image_sources import IMAGE_SUFFIXES, Skipped, SourceError, list_images
from services.embed.bulk.to_collection import UploadTarget, upload
from services.jobs.options import command_line
from services.jobs.progress import Bars
from services.jobs.ray.cluster import (
    LOCAL,
    ONLY_RAY,
    RayAddress,
    RayError,
    UsesRay,
    Workers,
    ray_options,
)

EXIT_FAILED = 1
EXIT_SKIPPED = 3
EXIT_INTERRUPTED = 130

# Parameters of the options that apply to only one of the two targets.
ONLY_COLLECTION = ("url", "api_key", "no_skip", "no_wait", "in_flight")
ONLY_OUTPUT = (
    "checkpoint",
    "store_url",
    "dtype",
    "precision",
    "shard_size",
    "device",
    "threads",
    "overwrite",
    "ray",
    *ONLY_RAY,
)

COLLECTION_PANEL = "With --collection"
OUTPUT_PANEL = "With --output"

app = command_line()


class StoredDtype(StrEnum):
    float32 = "float32"
    float16 = "float16"


class Precision(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@app.command()
def embed_bulk(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Folders or webdataset tar files: a.tar, shards-{000..010}.tar."),
    ],
    collection: Annotated[str | None, typer.Option(help="Upload the images to this collection.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write embeddings to this folder instead.")] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            help="Condition to index in advance or to embed under. Repeatable. Default: the unconditional embedding."
        ),
    ] = None,
    suffix: Annotated[
        list[str] | None,
        typer.Option(help="Suffix of image names. Repeatable.", show_default=", ".join(IMAGE_SUFFIXES)),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images in a request or a forward pass.", show_default="64, or 32")
    ] = None,
    url: Annotated[
        str, typer.Option(help="Address of Fovea.", rich_help_panel=COLLECTION_PANEL)
    ] = "http://127.0.0.1:8080",
    api_key: Annotated[
        str | None, typer.Option(envvar="FOVEA_API_KEY", help="API key.", rich_help_panel=COLLECTION_PANEL)
    ] = None,
    in_flight: Annotated[
        int, typer.Option(min=1, help="Number of concurrent requests.", rich_help_panel=COLLECTION_PANEL)
    ] = 4,
    no_skip: Annotated[
        bool,
        typer.Option(
            "--no-skip", help="Upload images that the collection already has.", rich_help_panel=COLLECTION_PANEL
        ),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait for the indexes.", rich_help_panel=COLLECTION_PANEL)
    ] = False,
    checkpoint: Annotated[
        str, typer.Option(help="Folder, or name in the store, optionally with @version.", rich_help_panel=OUTPUT_PANEL)
    ] = "focallens-shapes",
    store_url: Annotated[
        str | None, typer.Option(envvar="FOVEA_STORE_URL", help="URL of the model store.", rich_help_panel=OUTPUT_PANEL)
    ] = None,
    dtype: Annotated[
        StoredDtype, typer.Option(help="Number format of the files.", rich_help_panel=OUTPUT_PANEL)
    ] = StoredDtype.float32,
    precision: Annotated[
        Precision,
        typer.Option(
            help="Precision of the forward pass. auto: bfloat16 on CUDA, else float32.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = Precision.auto,
    shard_size: Annotated[int, typer.Option(min=1, help="Images in a file.", rich_help_panel=OUTPUT_PANEL)] = 4096,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="cpu, cuda:0 or mps. Repeatable; each device gets its own process. With --ray: cpu or cuda.",
            show_default="every GPU, else cpu",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of decoding threads.", show_default="one per core", rich_help_panel=OUTPUT_PANEL
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Remove the output of an earlier job and start again.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = False,
    ray: UsesRay = False,
    ray_address: RayAddress = LOCAL,
    workers: Workers = None,
) -> None:
    """Embed many images: upload them to a collection, or write their embeddings to files.

    Run the same command again to continue where it stopped. Exit status: 0 if every image was added, 3 if some were
    skipped, 1 if the command failed.
    """
    _check_target(context, collection, output)
    on_ray = ray_options(context, ray_address, workers, uses_ray=ray)
    conditions = _conditions(condition or [])
    log_warnings_to_stderr()
    console = Console(stderr=True, highlight=False)
    with _one_line_errors(console):
        with console.status("Listing the images …"):
            listing = list_images(sources, suffix or IMAGE_SUFFIXES)
        if collection is not None:
            target = UploadTarget(
                url, collection, api_key, conditions, batch_size=batch_size or 64, num_in_flight=in_flight,
                skips_present=not no_skip, waits=not no_wait,
            )  # fmt: skip
            num_skipped = asyncio.run(upload(target, listing, Bars(console), _print_skipped))
        else:
            from services.embed.bulk.embedder import EmbeddingError
            from services.embed.bulk.to_files import OutputRequest, embed_into_files

            assert output is not None
            request = OutputRequest(
                output, checkpoint, conditions, store_url, dtype=dtype.value, precision=precision.value,
                shard_size=shard_size, batch_size=batch_size or 32, devices=device or [], num_threads=threads,
                overwrite=overwrite, ray=on_ray,
            )  # fmt: skip
            try:
                num_skipped = embed_into_files(request, listing, Bars(console))
            except EmbeddingError as error:
                raise OutputError(str(error)) from None
    if num_skipped:
        raise typer.Exit(EXIT_SKIPPED)


def _check_target(context: typer.Context, collection: str | None, output: Path | None) -> None:
    """Check that exactly one target is given, and no option of the other."""
    if (collection is None) == (output is None):
        raise typer.BadParameter("give --collection or --output, and not both")
    target, of_the_other = ("--output", ONLY_COLLECTION) if collection is None else ("--collection", ONLY_OUTPUT)
    for name in of_the_other:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--{name.replace('_', '-')} does not apply to {target}")


def _conditions(given: Sequence[str]) -> list[str]:
    """Normalise the conditions as the service does, with single spaces."""
    conditions = [" ".join(condition.split()) for condition in given]
    if "" in conditions:
        raise typer.BadParameter("a condition is empty", param_hint="--condition")
    if twice := [condition for i, condition in enumerate(conditions) if condition in conditions[:i]]:
        raise typer.BadParameter(f"{twice[0]!r} is given twice", param_hint="--condition")
    return conditions


@contextmanager
def _one_line_errors(console: Console) -> Iterator[None]:
    """Print an error as one line."""
    try:
        yield
    except (SourceError, OutputError, StoreError, Refused, Unavailable, RayError) as error:
        console.print(f"fovea embed-bulk: {printable(str(error))}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        console.print("Stopped. Run the same command to continue.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print_skipped(skipped: Skipped) -> None:
    typer.echo(json.dumps(asdict(skipped)))


if __name__ == "__main__":
    app()
