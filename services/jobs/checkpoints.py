"""Where a job's checkpoint comes from: a folder, or a name in the model store."""

from dataclasses import dataclass
from pathlib import Path

from services.core.settings import ServiceSettings
from services.core.store.checkpoint_files import DESCRIPTION_FILE
from services.core.store.manifest import CheckpointInfo
from services.core.store.starters import packaged_starters, read_description
from services.core.store.store import Store

KIND = "causal-lm"


@dataclass(frozen=True)
class CheckpointSource:
    """A local folder, how to call what it holds, and what its publisher said of it.

    `label` is `name@version` for one from the store, else the folder's own name; `name` is None for a folder that does
    not tell one.
    """

    directory: Path
    label: str
    name: str | None
    info: CheckpointInfo


def open_store(store_url: str | None) -> Store:
    """The store, with the packaged starters published first where it is empty. Raises StoreError."""
    store = Store.open(store_url or ServiceSettings(port=0).store_url)
    store.publish_starters(packaged_starters())
    return store


def find_checkpoint(reference: str, store_url: str | None = None) -> CheckpointSource:
    """A folder as it is; else the verified local copy of `name`, `name@alias` or `name@version` in the store.

    Raises StoreError where there is no such one.
    """
    directory = Path(reference)
    if directory.is_dir():
        if (directory / DESCRIPTION_FILE).is_file():
            description = read_description(directory)
            return CheckpointSource(directory, directory.resolve().name, description.name, description.info())
        return CheckpointSource(directory, directory.resolve().name, None, CheckpointInfo(kind=KIND))
    name, _, version = reference.partition("@")
    store = open_store(store_url)
    version = store.resolve(name, version or "latest")
    manifest = store.manifest(name, version)
    info = CheckpointInfo(**{field: getattr(manifest, field) for field in CheckpointInfo.model_fields})
    fetched = store.fetch(name, version, ServiceSettings(port=0).checkpoint_cache_dir)
    return CheckpointSource(fetched, f"{name}@{version}", name, info)
