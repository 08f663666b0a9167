"""The object store that a database's images are in, told from others by an object whose name the database knows."""

import uuid

from services.core.store.errors import NotFoundInStore
from services.core.store.objects import Objects
from services.embed.collections.cluster.connections import Connections
from services.embed.collections.storage.database import IncompatibleDatabase


class OwnStore:
    """A check that all processes of a database use the same object store, whatever it is called in their settings."""

    def __init__(self, connections: Connections, objects: Objects) -> None:
        self._connections = connections
        self._objects = objects
        self._is_certain = False

    def check(self, *, is_marking: bool = True) -> None:
        """Look for the mark, and set it where there are no images yet; done once there are some.

        Raises IncompatibleDatabase for another store, StoreUnavailable, and what Connections raises.
        """
        if self._is_certain:
            return
        with self._connections.transaction() as connection:
            # others that start now wait, and then see what was marked
            found = connection.execute("SELECT id, store_mark FROM identity FOR UPDATE").fetchone()
            assert found is not None, "a database has an identity"
            identity, mark = found
            held = connection.execute("SELECT object_key FROM contents LIMIT 1").fetchone()
            # a database that an earlier version made may have images and no mark
            expected = mark or (held[0] if held is not None else None)
            is_own = expected is not None and self._has(expected)
            if held is not None and not is_own:
                raise IncompatibleDatabase(
                    f"The images of this database are not in the object store {self._objects.label}; set"
                    " FOVEA_EMBED_COLLECTIONS_STORE_URL as in the other processes."
                )
            if is_marking and (mark is None or not is_own):
                mark = f"databases/{identity}-{uuid.uuid4().hex}"
                self._objects.write(mark, [b""], 0)
                connection.execute("UPDATE identity SET store_mark = %s", (mark,))
        self._is_certain = held is not None

    def _has(self, key: str) -> bool:
        try:
            self._objects.size_bytes(key)
        except NotFoundInStore:
            return False
        return True
