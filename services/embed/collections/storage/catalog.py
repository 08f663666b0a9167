"""The collections of all tenants: which there are, under which names."""

import re
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from services.core.errors import InvalidField, InvalidRequest, NotFound
from services.core.exchange import DEFAULT_TENANT, TENANT_PATTERN
from services.embed.collections.storage.image_store import CollectionInfo, ImageStore

MAX_NAME_CHARACTERS = 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TENANT = re.compile(TENANT_PATTERN)


class CollectionKey(NamedTuple):
    """A collection's tenant and name; two tenants may use the same name."""

    tenant: str
    name: str


class CatalogInUse(RuntimeError):
    """Another process has the collections open, and they can be open in one only."""


class Catalog(Protocol):
    """Thread-safe. A collection is created and deleted as a whole, even if the process is killed meanwhile.

    Every method may raise Overloaded: StorageFull without room, and others while the collections can't be reached.
    """

    def close(self) -> None:
        """Stop using the collections. Open stores stay open: close them first."""

    def tenants(self) -> list[str]:
        """List the tenants that may have collections, in order."""
        ...

    def names(self, tenant: str = DEFAULT_TENANT) -> list[str]:
        """List a tenant's collections in order, also those that are damaged or can't be read."""
        ...

    def create(self, info: CollectionInfo, tenant: str = DEFAULT_TENANT) -> ImageStore:
        """Create an empty collection; it is durable when this returns.

        Raises FileExistsError, InvalidField for its name, Conflict if its place is taken by something else.
        """
        ...

    def open_store(self, name: str, tenant: str = DEFAULT_TENANT) -> ImageStore:
        """Raises NotFound."""
        ...

    def delete(self, name: str, tenant: str = DEFAULT_TENANT) -> None:
        """Remove a collection durably with all its images. Close its store first. Raises NotFound."""


class BackedUp(Catalog, Protocol):
    """All collections as a backup reads them, while others change them."""

    kind: str

    def snapshot(self) -> AbstractContextManager[Catalog]:
        """Open the collections as of a moment: all of the same one, or each of the one at which it is opened."""
        ...


def check_tenant(tenant: str) -> None:
    """Raises InvalidRequest for an invalid tenant name; only a gateway sends tenants, and it checks them itself."""
    if not is_tenant(tenant):
        raise InvalidRequest("The header X-Fovea-Tenant is not a valid tenant.", code="invalid_tenant")


def is_tenant(text: str) -> bool:
    """Whether a text can be the name of a tenant."""
    return _TENANT.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Raises InvalidField for an invalid name of a collection.

    It has 1 to MAX_NAME_CHARACTERS ASCII letters, digits, dots, underscores and hyphens, and begins with a letter or a
    digit. Names that differ only in case are different, also on case-insensitive file systems.
    """
    if not is_name(name):
        raise InvalidField(
            f"name: A collection's name has 1 to {MAX_NAME_CHARACTERS} letters (a to z, A to Z), digits, '.', '_' and"
            " '-', and begins with a letter or a digit.",
            param="name",
        )


def is_name(text: str) -> bool:
    """Whether a text can be the name of a collection."""
    return len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def no_collection(name: str) -> NotFound:
    """Make the error for a collection that is missing or belongs to another tenant."""
    return NotFound(f"There is no collection {name!r}.", param="collection", code="collection_not_found")
