"""Models of a store, read for requests and kept for a moment."""

import asyncio
import math
import time

from services.core.store.errors import StoreError
from services.core.store.store import Store
from services.core.store.versions import Version

# Older versions are listed only where an alias names them.
MAX_LISTED = 50

# Versions, newest first, and for each alias the version that it names.
Listing = tuple[list[Version], dict[str, str]]


class StoredModels:
    """The names, kinds and versions of the models in a store, read again once they are older than `max_age_s`.

    However often clients ask, the store is asked seldom. Nothing is known where it can't be read.
    """

    def __init__(self, store: Store, *, max_age_s: float) -> None:
        self._store = store
        self._max_age_s = max_age_s
        self._names: frozenset[str] = frozenset()
        self._kinds: dict[str, str] = {}
        self._read_at = -math.inf
        self._listings: dict[str, tuple[float, asyncio.Task[Listing | None]]] = {}

    async def kind(self, name: str) -> str | None:
        """Return the kind of a model's newest version, an empty text where it can't be read; None without the model."""
        if time.monotonic() - self._read_at > self._max_age_s:
            self._read_at = time.monotonic()
            self._kinds = {}
            try:
                self._names = frozenset(await asyncio.to_thread(self._store.names))
            except StoreError:
                self._names = frozenset()
        if name not in self._names:
            return None
        if name not in self._kinds:
            self._kinds[name] = await asyncio.to_thread(self._kind, name)
        return self._kinds[name]

    async def versions(self, name: str) -> Listing | None:
        """Return the versions of a model that is served, and what its aliases name; None where they can't be read.

        One reading answers all who ask meanwhile, and goes on for the next when one of them gives up.
        """
        began, reading = self._listings.get(name, (-math.inf, None))
        if reading is None or (reading.done() and time.monotonic() - began > self._max_age_s):
            reading = asyncio.create_task(asyncio.to_thread(self._list, name))
            self._listings[name] = (time.monotonic(), reading)
        return await asyncio.shield(reading)

    def _kind(self, name: str) -> str:
        try:
            newest = next(iter(self._store.versions(name)), None)
            return "" if newest is None else self._store.manifest(name, newest.id).kind
        except StoreError:
            return ""

    def _list(self, name: str) -> Listing | None:
        try:
            aliases = {alias: found.version for alias, found in self._store.aliases(name).items()}
            versions = self._store.versions(name)
        except StoreError:
            return None
        named = set(aliases.values())
        return [one for place, one in enumerate(versions) if place < MAX_LISTED or one.id in named], aliases
