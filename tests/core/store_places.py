"""The places of stores, local and remote, which a test can open any number of times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from services.core.store.objects import Objects
from services.core.store.store import Store
from services.core.store.writers import CLAIM_LIFE_S


@dataclass(frozen=True)
class StorePlace:
    url: str
    options: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def objects(self) -> Objects:
        """The storage itself, to look at and to damage; shared, since an in-memory one lives in this object."""
        return Objects(self.url, self.options)

    def open(self, *, claim_life_s: float = CLAIM_LIFE_S) -> Store:
        return Store(self.objects, claim_life_s=claim_life_s)
