"""Checkpoints that jobs read, from a folder or the model store, and those that they publish."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.core.settings import DeviceName, ServiceSettings
from services.core.store.checkpoint_files import DESCRIPTION_FILE, digest_of, packaged_starters
from services.core.store.manifest import CheckpointInfo, Manifest, check_model_name
from services.core.store.store import Store
from services.jobs.code_revision import code_revision

Device = Annotated[DeviceName, typer.Option(help="Device to run on.")]


@dataclass(frozen=True)
class CheckpointSource:
    """A local folder and its name in a table: its own, or `name@version` for a version of the store.

    Only a version of the store has a manifest.
    """

    directory: Path
    label: str
    manifest: Manifest | None = None

    @property
    def reference(self) -> str:
        """A name by which another process finds it: its version in the store, or the folder's whole path."""
        return self.label if self.manifest is not None else str(self.directory.resolve())

    def digest(self) -> str:
        """Return the digest of a version in the store, or compute a folder's from the digests of its files."""
        if self.manifest is not None:
            return self.manifest.digest
        sha256 = hashlib.sha256()
        for file in sorted(self.directory.iterdir()):
            if file.is_file() and file.name != DESCRIPTION_FILE:
                sha256.update(f"{file.name} {digest_of(file).sha256}\n".encode())
        return sha256.hexdigest()


def open_store(url: str | None) -> Store:
    """Open the store of this URL, or of the settings. Raises StoreError."""
    return Store.open(url or ServiceSettings(port=0).store_url)


def find_checkpoint(reference: str, store_url: str | None = None) -> CheckpointSource:
    """Find a folder, or else fetch the verified local copy of `name`, `name@alias` or `name@version` from the store.

    A packaged starter is published first if the store lacks it. Raises StoreError if the name does not exist.
    """
    directory = Path(reference)
    if directory.is_dir():
        return CheckpointSource(directory, directory.resolve().name)
    name, _, version = reference.partition("@")
    store = open_store(store_url)
    store.publish_starters(packaged_starters(name))
    version = store.resolve(name, version or "latest")
    settings = ServiceSettings(port=0)
    fetched = store.fetch(name, version, settings.checkpoint_cache_dir, settings.checkpoint_cache_max_bytes)
    return CheckpointSource(fetched, f"{name}@{version}", store.manifest(name, version))


# options that are meaningless on another machine
LOCAL_OPTIONS = ("output", "publish", "store_url")


def check_publication(name: str, store_url: str | None, *, is_wanted: bool) -> None:
    """Check before the work that the store accepts the name and responds. Raises StoreError."""
    if is_wanted:
        check_model_name(name)
        open_store(store_url).names()


def publish_trained(
    directory: Path, name: str, kind: str, options: Mapping[str, Any], metrics: Mapping[str, Any]
) -> None:
    """Print a training's measurements, and describe and publish its checkpoint folder according to its options.

    The options `seed`, `base`, `licence` and `statement` have their own fields in the manifest. Raises StoreError.
    """
    kept = {key: value for key, value in options.items() if key not in LOCAL_OPTIONS}
    training = json.loads(json.dumps(kept, default=str))  # paths become strings
    info = CheckpointInfo(
        kind=kind,
        base=training.pop("base", None),
        licence=training.pop("licence", "MIT"),
        statement=training.pop("statement", None),
        training=training,
        seed=training["seed"],
        metrics=dict(metrics),
        code_revision=code_revision(),
    )
    console = Console(highlight=False)
    console.print_json(json.dumps(metrics))
    publish_described(directory, name, info, options["store_url"], console, is_wanted=options["publish"])


def publish_described(
    directory: Path, name: str, info: CheckpointInfo, store_url: str | None, console: Console, *, is_wanted: bool
) -> None:
    """Publish a checkpoint folder if requested, and write its description next to the weights.

    Raises StoreError.
    """
    if is_wanted:
        console.print(f"published {open_store(store_url).publish(name, directory, info)}")
    description = {"name": name, **info.model_dump(mode="json")}
    (directory / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n")
