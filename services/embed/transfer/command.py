"""`fovea collections`: collections moved between services, into files and backups, and back.

`export`, `import` and `migrate` speak HTTP with running services. `backup` and `restore` read and write where the
collections are stored, of all tenants.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.core.errors import FoveaError
from services.core.logs import log_warnings_to_stderr
from services.core.printable import printable
from services.core.store.errors import StoreError
from services.embed.bulk.collection_client import CallRefused, CollectionClient, Unavailable
from services.embed.collections.storage.catalog import CatalogInUse, check_name
from services.embed.collections.storage.database import DatabaseFailed, DatabaseUnreachable, IncompatibleDatabase
from services.embed.transfer.backup import BackupFolder, BackupRun, Restore, Storage
from services.embed.transfer.entries import TransferError
from services.embed.transfer.files import Import, export
from services.embed.transfer.migration import Migrated, migrate
from services.embed.transfer.portable import open_form, read_description
from services.jobs.interruption import one_line_errors
from services.jobs.options import LOCAL_URL, StoreUrl, command_line, fovea_url
from services.jobs.options import api_key as checked_key
from services.jobs.progress import Bars, counted

EXIT_REJECTED = 3
ERRORS = (FoveaError, TransferError, StoreError, CallRefused, Unavailable, CatalogInUse, IncompatibleDatabase, OSError)
# More would keep a service from answering others.
NUM_CONNECTIONS = 8

app = command_line(help="Export, import, migrate, back up and restore image collections.", no_args_is_help=True)

Url = Annotated[str, typer.Option(envvar="FOVEA_URL", callback=fovea_url, help="Address of Fovea.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="FOVEA_API_KEY", callback=checked_key, help="API key; its tenant's collections are meant."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CollectionsDir = Annotated[
    Path, typer.Option(envvar="FOVEA_EMBED_COLLECTIONS_DIR", help="Folder of the collections of one process.")
]
CollectionsUrl = Annotated[
    str | None,
    typer.Option(
        envvar="FOVEA_EMBED_COLLECTIONS_URL", help="`postgresql://…`: database of shared collections, which are meant."
    ),
]
CollectionsStoreUrl = Annotated[
    str | None,
    typer.Option(
        envvar="FOVEA_EMBED_COLLECTIONS_STORE_URL",
        help="Object store with the images of shared collections.",
        show_default="the model store",
    ),
]

BackupsAt = Annotated[str, typer.Argument(help="Folder or URL (file://, s3://, gs://) of the backups.")]

DEFAULT_DIR = Path("~/.fovea/collections")


@app.command("export")
def export_collection(
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    target: Annotated[Path, typer.Argument(help="Folder to write, or a file that ends with .tar.")],
    url: Url = LOCAL_URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Write a collection into files that plain tools read: its images, a list with their SHA-256, its conditions.

    A folder is continued when the same command runs again after an interruption; nothing complete is written over.
    """
    with _reporting("export") as console:

        async def run() -> dict[str, Any]:
            async with _client(url, collection, api_key) as client:
                return await export(client, collection, target, Bars(console))

        done = asyncio.run(run())
        _report(done, f"{counted(done['images'], 'image')} in {target}, digest {done['digest']}", as_json=as_json)


@app.command("import")
def import_collection(
    source: Annotated[Path, typer.Argument(help="Folder or tar, as `fovea collections export` writes it.")],
    collection: Annotated[
        str | None, typer.Argument(help="Name of the collection.", show_default="as it was exported")
    ] = None,
    url: Url = LOCAL_URL,
    api_key: ApiKey = None,
    model: Annotated[
        str | None, typer.Option(help="Model of a new collection.", show_default="as it was exported")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add the images of an export to a collection, which is made if it does not exist.

    Images that are there already are not sent again. One that is there with other content or metadata is named, as a
    line of JSON, and left as it is. Exit status: 0 if every image is there, 3 if some were rejected, 1 if the command
    failed.
    """
    with _reporting("import") as console, closing(open_form(source)) as form:
        description = read_description(form)
        name = collection or description.name
        if name is None:
            raise typer.BadParameter("give the name of the collection, which the files do not tell")

        async def run() -> dict[str, Any]:
            async with _client(url, name, api_key) as client:
                rejected = Import(client, form, Bars(console), lambda one: typer.echo(json.dumps(asdict(one))))
                return await rejected.run(description, model)

        done = asyncio.run(run())
        numbers = f"{done['added']:,} added, {done['unchanged']:,} already present, {done['rejected']:,} rejected"
        _report(done, f"{numbers}: {name}", as_json=as_json)
    if done["rejected"]:
        raise typer.Exit(EXIT_REJECTED)


@app.command("migrate")
def migrate_collection(
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    from_url: Annotated[str, typer.Option("--from", callback=fovea_url, help="Address of the Fovea that has it.")],
    to_url: Annotated[str, typer.Option("--to", callback=fovea_url, help="Address of the Fovea that is to have it.")],
    finish: Annotated[
        bool, typer.Option("--finish", help="Make the original read-only, verify the copy, and open it.")
    ] = False,
    to_name: Annotated[str | None, typer.Option(help="Name of the copy.", show_default="the same")] = None,
    from_api_key: Annotated[
        str | None,
        typer.Option(envvar=["FOVEA_FROM_API_KEY", "FOVEA_API_KEY"], callback=checked_key, help="API key there."),
    ] = None,
    to_api_key: Annotated[
        str | None,
        typer.Option(envvar=["FOVEA_TO_API_KEY", "FOVEA_API_KEY"], callback=checked_key, help="API key there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a collection from one running Fovea to another, of either kind, while it takes changes.

    Run it as often as you like: each time the copy becomes what the original is, deletions included. With --finish the
    original becomes read-only, the rest is copied, both are compared, and the copy is opened. If that fails, the
    original takes changes again.
    """
    name = to_name or collection
    with _reporting("migrate") as console:
        if (from_url.rstrip("/"), collection, from_api_key) == (to_url.rstrip("/"), name, to_api_key):
            raise TransferError("the original and the copy are the same collection")

        async def run() -> Migrated:
            async with (
                _client(from_url, collection, from_api_key) as original,
                _client(to_url, name, to_api_key, fill=True) as copy,
            ):
                return await migrate(original, copy, Bars(console), finishes=finish)

        done = asyncio.run(run())
        _report(done.as_json(), _told(done, collection, from_url, f"{to_url} ({name})"), as_json=as_json)


@app.command("backup")
def back_up(
    backups: BackupsAt,
    collections_dir: CollectionsDir = DEFAULT_DIR,
    collections_url: CollectionsUrl = None,
    collections_store_url: CollectionsStoreUrl = None,
    store_url: StoreUrl = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all bytes of earlier backups, and replace damaged ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Back up all collections of all tenants, while services use them.

    Bytes that an earlier backup has are not copied again. Vectors and indexes are not backed up: they
    are computed again from the images.
    """
    with _reporting("backup") as console:
        source = Storage(collections_dir, collections_url, collections_store_url, store_url).backed_up()
        with closing(source):
            done = BackupRun(source, BackupFolder(backups), Bars(console)).run(verify=verify)
        what = f"{counted(done['collections'], 'collection')} with {counted(done['images'], 'image')}"
        new = f"{counted(done['new_contents'], 'new content')} of {done['new_bytes']:,} bytes"
        _report(done, f"{done['backup']}: {what}, {new}: {backups}", as_json=as_json)


@app.command("restore")
def restore(
    backups: BackupsAt,
    backup: Annotated[
        str | None, typer.Option(help="Which backup; --list names them.", show_default="the newest")
    ] = None,
    list_backups: Annotated[bool, typer.Option("--list", help="List the backups, and restore none.")] = False,
    collections_dir: CollectionsDir = DEFAULT_DIR,
    collections_url: CollectionsUrl = None,
    collections_store_url: CollectionsStoreUrl = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup back into an empty folder or an empty database, of either kind, and verify it.

    Nothing is overwritten. The same command continues an interrupted one. Services may start when it has ended.
    """
    with _reporting("restore") as console:
        folder = BackupFolder(backups)
        finished = folder.finished()
        if list_backups:
            found = {backup_id: folder.describe(backup_id) for backup_id in finished}
            listed: list[dict[str, Any]] = [
                {"backup": name, "kind": one.kind, **one.totals()} for name, one in found.items()
            ]
            lines = [
                f"{one['backup']}  {one['kind']}, {counted(one['collections'], 'collection')}, "
                f"{counted(one['images'], 'image')}, {one['bytes']:,} bytes"
                for one in listed
            ]
            _report({"backups": listed}, "\n".join(lines) or f"no backups in {backups}", as_json=as_json)
            return
        if not finished:
            raise TransferError(f"there is no complete backup in {backups}")
        if backup is None and len(kinds := {folder.describe(one).kind for one in finished}) > 1:
            raise TransferError(
                f"{backups} has backups of {' and '.join(sorted(kinds))} collections: name one with --backup"
            )
        catalog = Storage(collections_dir, collections_url, collections_store_url, store_url).empty_catalog()
        with closing(catalog):
            done = Restore(folder, backup or finished[-1], catalog, Bars(console)).run()
        what = f"{counted(done['collections'], 'collection')} with {counted(done['images'], 'image')}"
        _report(done, f"{done['backup']} restored and verified: {what}", as_json=as_json)


def _client(url: str, collection: str, api_key: str | None, *, fill: bool = False) -> CollectionClient:
    check_name(collection)
    return CollectionClient(url, collection, api_key=api_key, num_connections=NUM_CONNECTIONS, fill=fill)


def _told(done: Migrated, name: str, from_url: str, copy: str) -> str:
    waiting = f" {counted(done.not_indexed, 'image')} there still to be indexed." if done.not_indexed else ""
    if not done.is_finished:
        return (
            f"The copy has {done.copy_images:,} images.{waiting} Run the command again at any time; with --finish once "
            "the images are indexed and clients can be switched over."
        )
    return (
        f"Verified: {counted(done.images, 'image')}, {done.bytes:,} bytes, digest {done.digest} on both sides."
        f"{waiting} Now send clients to {copy}. {name!r} at {from_url} is read-only and still answers searches; delete "
        "it there when you no longer need it."
    )


def _report(content: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    """Print what was done, as a sentence or as JSON."""
    typer.echo(json.dumps(content, indent=2) if as_json else printable(sentence, keep="\n"))


@contextmanager
def _reporting(command: str) -> Iterator[Console]:
    """Print an error as one line. Yields the console for progress."""
    log_warnings_to_stderr()
    console = Console(stderr=True, highlight=False)
    with one_line_errors(f"fovea collections {command}", console, ERRORS, _message):
        yield console


def _message(error: Exception) -> str:
    match error:
        case DatabaseFailed():
            return f"{error.message} {error.reason}."
        case DatabaseUnreachable():
            return f"{error.message} {error.reason} (--collections-url or FOVEA_EMBED_COLLECTIONS_URL)"
        case FoveaError():
            return error.message
    return str(error)


if __name__ == "__main__":
    app()
