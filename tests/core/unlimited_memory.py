"""Memory without a limit, for checkpoints that are served outside of a service."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.core.store.manifest import Manifest


class Unlimited:
    @asynccontextmanager
    async def entered(self, folder: Path, manifest: Manifest) -> AsyncIterator[Callable[[], None]]:
        yield lambda: None

    def serves(self, engine: Any) -> None:
        """Do nothing."""
