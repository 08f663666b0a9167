"""The memory that a served model is loaded into."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from services.core.store.manifest import Manifest


class MemoryBudget(Protocol):
    """The memory for the engines of one model."""

    def entered(self, folder: Path, manifest: Manifest) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Return a context in which the version is loaded, entered once there is room for it.

        Yields a function to call once the version has been unloaded; none is needed where loading raised. Raises
        InvalidCheckpoint for a version that can never have room.
        """

    def serves(self, engine: Any) -> None:
        """Called with every engine that begins to serve."""


class Unlimited:
    """Unlimited room."""

    @asynccontextmanager
    async def entered(self, folder: Path, manifest: Manifest) -> AsyncIterator[Callable[[], None]]:
        yield lambda: None

    def serves(self, engine: Any) -> None:
        """Do nothing."""
