"""A backup put back into an empty place, of either kind.

Until all is there, each collection is a copy that is being filled, which a repeated command recognises and continues.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import IO, Any

from services.core.caller import DEFAULT_TENANT
from services.embed.bulk.batches import Batches
from services.embed.collections.storage.catalog import Catalog
from services.embed.collections.storage.image_store import (
    CollectionInfo,
    CollectionLimits,
    ImageStore,
    NewImage,
)
from services.embed.transfer.backup import entry_of
from services.embed.transfer.backup_folder import Backup, BackupFolder, SavedCollection
from services.embed.transfer.entries import Entry, Total, TransferError, canonical
from services.embed.transfer.portable import Line
from services.jobs.progress import Bar, Bars

PAGE = 1000
BATCH_SIZE = 64
MAX_BATCH_BYTES = 16 * 1024 * 1024
# What was stored once fits, whatever the limits are now.
_BOUNDLESS = CollectionLimits(*[2**62] * 4)


class Restore:
    """One restoration. Methods raise TransferError, StoreUnavailable, Overloaded."""

    def __init__(self, folder: BackupFolder, backup_id: str, catalog: Catalog, bars: Bars) -> None:
        self._folder = folder
        self._backup_id = backup_id
        self._catalog = catalog
        self._bars = bars

    def run(self) -> dict[str, Any]:
        """Restore all collections, compare them with the backup, and open them. Returns the numbers."""
        backup = self._folder.describe(self._backup_id)
        self._check_place(backup)
        for saved in backup.collections:
            with self._folder.manifest(self._backup_id, saved) as manifest, closing(self._store(saved)) as store:
                if store.access() != "copy":  # and the same, which was checked
                    continue
                with self._bars.bar(f"Restoring {saved.name}", "images", total=saved.images) as bar:
                    self._fill(store, manifest, bar)
                self._check(store, saved)
                for condition in sorted(saved.conditions, key=lambda one: one.used):
                    store.put_condition(condition.text, is_pinned=condition.pinned)
        for saved in backup.collections:
            with closing(self._store(saved)) as store:
                store.set_access(saved.access)
        return {"backup": self._backup_id, **backup.totals()}

    def _check_place(self, backup: Backup) -> None:
        """Raises TransferError if the place holds anything that is not from this backup."""
        expected = {(saved.tenant, saved.name): saved for saved in backup.collections}
        for tenant in self._catalog.tenants():
            for name in self._catalog.names(tenant):
                saved = expected.get((tenant, name))
                of = f"{name!r}" + (f" of the tenant {tenant!r}" if tenant != DEFAULT_TENANT else "")
                if saved is None:
                    raise TransferError(f"the place is not empty: it has a collection {of}; nothing is overwritten")
                with closing(self._catalog.open_store(name, tenant)) as store:
                    if store.access() != "copy" and _total(store).digest != saved.digest:
                        raise TransferError(f"the place has another collection {of}; nothing is overwritten")

    def _store(self, saved: SavedCollection) -> ImageStore:
        """Open a collection, which is made if it does not exist."""
        try:
            store = self._catalog.create(CollectionInfo(saved.name, saved.model, saved.created), saved.tenant)
        except FileExistsError:
            return self._catalog.open_store(saved.name, saved.tenant)
        store.set_access("copy")
        return store

    def _fill(self, store: ImageStore, manifest: IO[bytes], bar: Bar) -> None:
        """Add the images that the store lacks. They are added in order, so that it has the first of them."""
        entries = _entries(manifest)
        num_there, _ = store.size()
        bar.advance(sum(1 for _ in islice(entries, num_there)))
        for batch in _batches(entries):
            store.add([self._image(entry) for entry in batch], _BOUNDLESS, fill=True)
            bar.advance(len(batch))

    def _image(self, entry: Entry) -> NewImage:
        metadata = json.loads(entry.metadata or "{}")
        return NewImage(entry.id, self._folder.data(entry.sha256), entry.sha256, metadata, entry.id, entry.created)

    def _check(self, store: ImageStore, saved: SavedCollection) -> None:
        found = _total(store)
        if (found.num_images, found.digest) != (saved.images, saved.digest):
            raise TransferError(
                f"{saved.name!r} has {found.num_images} images and the digest {found.digest} after it was restored,"
                f" not {saved.images} and {saved.digest}"
            )


def _entries(manifest: IO[bytes]) -> Iterator[Entry]:
    for text in manifest:
        line = Line.model_validate_json(text)
        yield Entry(line.id or "", line.sha256 or "", line.bytes or 0, canonical(line.metadata or {}), line.created)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    collected = Batches[Entry](BATCH_SIZE, MAX_BATCH_BYTES)
    for entry in entries:
        if batch := collected.add(entry):
            yield batch
    if batch := collected.rest():
        yield batch


def _total(store: ImageStore) -> Total:
    """Sum up what a store holds."""
    total = Total()
    after: str | None = None
    while images := store.images(after, PAGE):
        for image in images:
            total.add(entry_of(image))
        after = images[-1].id
    return total
