"""`fovea embed-bulk`: embed many images into a collection of a running Fovea, or into files.

The same command continues an interrupted job. Torch is imported only if embeddings are computed locally.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer.core import TyperCommand

from services.core.logs import log_warnings_to_stderr
from services.core.store.errors import StoreError
from services.embed.bulk.collection_client import CallRefused, Unavailable
from services.embed.bulk.folder import EmbeddingError, OutputError, StoredDtype
from services.embed.bulk.image_sources import IMAGE_SUFFIXES, SourceError, list_images
from services.embed.bulk.ray_pool import RayError, RayOptions, import_ray
from services.embed.bulk.to_collection import UploadTarget, upload
from services.jobs.interruption import one_line_errors
from services.jobs.options import LOCAL_URL, command_line, fovea_url
from services.jobs.options import api_key as checked_key
from services.jobs.progress import Bars

EXIT_SKIPPED = 3
ERRORS = (SourceError, EmbeddingError, OutputError, StoreError, CallRefused, Unavailable, RayError)

# Parameters of the options that apply to only one of the two targets.
ONLY_COLLECTION = ("url", "api_key", "no_skip", "no_wait")
ONLY_OUTPUT = (
    "checkpoint", "store_url", "dtype", "precision", "shard_size", "device", "threads", "overwrite", "ray", "workers",
)  # fmt: skip

app = command_line()


def _option(panel: str | None, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


_of_both, _of_collection, _of_output, _of_ray = (
    partial(_option, panel) for panel in (None, "With --collection", "With --output", "With --ray")
)


Sources = Annotated[
    list[str], typer.Argument(metavar="SOURCE", help="Folders or webdataset tar files: a.tar, shards-{000..010}.tar.")
]
ToCollection = Annotated[str | None, _of_both("Upload the images to this collection.")]
Output = Annotated[Path | None, _of_both("Write embeddings to this folder instead.")]
Conditions = Annotated[
    list[str] | None,
    _of_both("Condition to index in advance or to embed under. Repeatable. Default: the unconditional embedding."),
]
Suffixes = Annotated[
    list[str] | None, _of_both("Suffix of image names. Repeatable.", show_default=", ".join(IMAGE_SUFFIXES))
]
BatchSize = Annotated[int | None, _of_both("Images in a request or a forward pass.", min=1, show_default="64, or 32")]
Url = Annotated[str, _of_collection("Address of Fovea.", envvar="FOVEA_URL", callback=fovea_url)]
ApiKey = Annotated[str | None, _of_collection("API key.", envvar="FOVEA_API_KEY", callback=checked_key)]
NoSkip = Annotated[bool, _of_collection("Upload images that the collection already has.", "--no-skip")]
NoWait = Annotated[bool, _of_collection("Do not wait for the indexes.", "--no-wait")]
Checkpoint = Annotated[str, _of_output("Folder, or name in the store, optionally with @version.")]
StoreUrl = Annotated[str | None, _of_output("URL of the model store.", envvar="FOVEA_STORE_URL")]
Dtype = Annotated[StoredDtype, _of_output("Number format of the files.")]
InPrecision = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    _of_output("Precision of the forward pass. auto: bfloat16 on CUDA, else float32."),
]
ShardSize = Annotated[int, _of_output("Images in a file.", min=1)]
Devices = Annotated[
    list[str] | None,
    _of_output(
        "cpu, cuda:0 or mps. Repeatable; each device gets its own process. With --ray: cpu or cuda.",
        show_default="every GPU, else cpu",
    ),
]
Threads = Annotated[int | None, _of_output("Number of decoding threads.", min=1, show_default="one per core")]
Overwrite = Annotated[bool, _of_output("Remove the output of an earlier job and start again.", "--overwrite")]
Ray = Annotated[
    str | None,
    _of_ray(
        "Spread the work over workers on Ray: local starts one here; auto is the cluster in RAY_ADDRESS or of this "
        "machine; or another address.",
        metavar="local|auto|ADDRESS",
    ),
]
Workers = Annotated[int | None, _of_ray("Number of workers.", min=1, show_default="one per GPU, else one per core")]


class _OneTarget(TyperCommand):
    """A command that checks that exactly one target is given, and no option of the other."""

    def invoke(self, ctx: Any) -> Any:
        collection, output = ctx.params["collection"], ctx.params["output"]
        if (collection is None) == (output is None):
            raise typer.BadParameter("give --collection or --output, and not both")
        target, of_the_other = ("--output", ONLY_COLLECTION) if collection is None else ("--collection", ONLY_OUTPUT)
        for name in of_the_other:
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise typer.BadParameter(f"--{name.replace('_', '-')} does not apply to {target}")
        return super().invoke(ctx)


@app.command(cls=_OneTarget)
def embed_bulk(
    sources: Sources,
    collection: ToCollection = None,
    output: Output = None,
    condition: Conditions = None,
    suffix: Suffixes = None,
    batch_size: BatchSize = None,
    url: Url = LOCAL_URL,
    api_key: ApiKey = None,
    no_skip: NoSkip = False,
    no_wait: NoWait = False,
    checkpoint: Checkpoint = "focallens-shapes",
    store_url: StoreUrl = None,
    dtype: Dtype = "float32",
    precision: InPrecision = "auto",
    shard_size: ShardSize = 4096,
    device: Devices = None,
    threads: Threads = None,
    overwrite: Overwrite = False,
    ray: Ray = None,
    workers: Workers = None,
) -> None:
    """Embed many images: upload them to a collection, or write their embeddings to files.

    Run the same command again to continue where it stopped. Exit status: 0 if every image was added, 3 if some were
    skipped, 1 if the command failed.
    """
    on_ray = _ray_options(ray, workers)
    conditions = _conditions(condition or [])
    log_warnings_to_stderr()
    console = Console(stderr=True, highlight=False)
    with one_line_errors("fovea embed-bulk", console, ERRORS):
        with console.status("Listing the images …"):
            listing = list_images(sources, suffix or IMAGE_SUFFIXES)
        if output is None:
            assert collection is not None, "one of the two is given"
            target = UploadTarget(
                url, collection, api_key, conditions, batch_size or 64, skips_present=not no_skip, waits=not no_wait
            )
            num_skipped = asyncio.run(
                upload(target, listing, Bars(console), lambda skipped: typer.echo(json.dumps(asdict(skipped))))
            )
        else:
            from services.embed.bulk.to_files import OutputRequest, embed_into_files

            request = OutputRequest(
                output, checkpoint, conditions, store_url, dtype=dtype, precision=precision,
                shard_size=shard_size, batch_size=batch_size or 32, devices=device or [], num_threads=threads,
                overwrite=overwrite, ray=on_ray,
            )  # fmt: skip
            num_skipped = embed_into_files(request, listing, Bars(console))
    if num_skipped:
        raise typer.Exit(EXIT_SKIPPED)


def _ray_options(address: str | None, num_workers: int | None) -> RayOptions | None:
    """Raises ModuleNotFoundError if Ray is needed and not installed, BadParameter for its options without --ray."""
    if address is not None:
        import_ray()
        return RayOptions(address, num_workers)
    if num_workers is not None:
        raise typer.BadParameter("--workers needs --ray")
    return None


def _conditions(given: Sequence[str]) -> list[str]:
    """Normalise the conditions as the service does, with single spaces."""
    conditions = [" ".join(condition.split()) for condition in given]
    if "" in conditions:
        raise typer.BadParameter("a condition is empty", param_hint="--condition")
    if twice := [condition for i, condition in enumerate(conditions) if condition in conditions[:i]]:
        raise typer.BadParameter(f"{twice[0]!r} is given twice", param_hint="--condition")
    return conditions


if __name__ == "__main__":
    app()
