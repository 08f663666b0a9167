"""The store, the models that the services follow in it, and room on the file systems that they write to."""

import difflib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from services.cli.doctor.configured import Configured, served_models
from services.cli.doctor.findings import Finding
from services.core.byte_sizes import binary_size
from services.core.store.checkpoint_files import packaged_starters, read_description
from services.core.store.errors import CorruptCheckpoint, NotFoundInStore, StoreError
from services.core.store.store import Store

TOPIC_STORE, TOPIC_ROOM = "store", "room"
DEFAULT_ROOM_BYTES = 1024**3
FOLDERS = {
    "checkpoint_cache_dir": "FOVEA_CHECKPOINT_CACHE_DIR",
    "collections_dir": "FOVEA_EMBED_COLLECTIONS_DIR",
}


def find_store(configured: Configured) -> Iterator[Finding]:
    """Tell whether each store answers and holds the models of the services."""
    starters = {(one.name, alias) for one in map(read_description, packaged_starters()) for alias in one.aliases}
    for url, names in configured.values("store_url").items():
        try:
            store = Store.open(url)
            models = store.names()
        except StoreError as error:
            cure = "check FOVEA_STORE_URL, its credentials and the network, or unset FOVEA_STORE_URL"
            yield Finding(TOPIC_STORE, "failure", str(error), cure)
            continue
        yield Finding(TOPIC_STORE, "ok", f"{store.label} answers; models: {', '.join(models) or 'none yet'}")
        for name in names:
            settings = configured.settings[name]
            for model, alias in served_models(settings):
                is_ours = (model, alias) in starters and _can_write(url)
                yield _model(store, (model, alias), name, f"FOVEA_{name.upper()}_MODELS", is_ours=is_ours)


def find_room(configured: Configured, room_bytes: int) -> Iterator[Finding]:
    """Tell the free room of each file system that is written to, and folders that can't be written."""
    users: dict[int, tuple[Path, list[str]]] = {}
    for folder, variable in _folders(configured):
        existing = _existing(folder)
        if not os.access(existing, os.W_OK):
            told = f"{folder} can't be written to"
            yield Finding(TOPIC_ROOM, "failure", told, f"set {variable}, or: sudo chown -R $USER {existing}")
            continue
        users.setdefault(existing.stat().st_dev, (folder, []))[1].append(variable)
    for folder, variables in users.values():
        usage = shutil.disk_usage(_existing(folder))
        figures = {"free_bytes": usage.free, "total_bytes": usage.total, "folder": str(folder)}
        told = f"{binary_size(usage.free)} of {binary_size(usage.total)} free for {folder} ({', '.join(variables)})"
        if usage.free < room_bytes:
            cure = f"fovea store gc --delete, or set {', '.join(variables)} to another disk"
            yield Finding(TOPIC_ROOM, "failure", f"{told}: less than {binary_size(room_bytes)}", cure, figures)
        else:
            yield Finding(TOPIC_ROOM, "ok", told, figures=figures)


def _model(store: Store, followed: tuple[str, str], process: str, variable: str, *, is_ours: bool) -> Finding:
    model, alias = followed
    try:
        version = store.resolve(model, alias)
        store.manifest(model, version)
        return Finding(TOPIC_STORE, "ok", f"{process}: {model}@{alias} is {version}")
    except NotFoundInStore as missing:
        if is_ours:
            told = f"{process}: {model} is packaged, and stored when it is first started"
            return Finding(TOPIC_STORE, "ok", told)
        cure = f"fovea store publish FOLDER --name {model} --alias {alias}, or unset {variable}"
        if near := difflib.get_close_matches(model, store.names(), n=1):
            cure = f"did you mean {near[0]}? It stands in {variable}; otherwise: {cure}"
        return Finding(TOPIC_STORE, "failure", f"{process} would lack a model: {missing}", cure)
    except CorruptCheckpoint as damaged:
        return Finding(TOPIC_STORE, "failure", f"{process}: {damaged}", f"fovea store rollback {model} {alias}")
    except StoreError as error:
        return Finding(TOPIC_STORE, "failure", f"{process}: {error}", f"fovea store show {model}@{alias}")


def _folders(configured: Configured) -> Iterator[tuple[Path, str]]:
    """Yield each folder that a process writes to, with the variable that sets it; a store may be read-only."""
    for url in configured.values("store_url"):
        if (root := _root(url)) is not None and _can_write(url):
            yield root, "FOVEA_STORE_URL"
    if configured.values("collections_url"):
        for url in configured.values("collections_store_url"):
            if (root := _root(url)) is not None:
                yield root, "FOVEA_EMBED_COLLECTIONS_STORE_URL"
    for setting, variable in FOLDERS.items():
        for folder in configured.values(setting):
            yield folder, variable


def _root(url: str) -> Path | None:
    """Return the folder of a store on this machine."""
    return Path(unquote(urlsplit(url).path)) if urlsplit(url).scheme == "file" else None


def _can_write(url: str) -> bool:
    """Whether the store may be written to, as far as can be told without writing."""
    root = _root(url)
    return root is None or os.access(_existing(root), os.W_OK)


def _existing(folder: Path) -> Path:
    """Return the folder, or where it would be made."""
    while not folder.exists():
        folder = folder.parent
    return folder
