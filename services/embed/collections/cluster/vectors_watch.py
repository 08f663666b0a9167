"""Looks at the vector database, so that a wrong address is told of at the start and not by the first search."""

import asyncio
from collections.abc import Callable

import structlog

from services.embed.collections.cluster.shared_vectors import VectorDatabase

SETTING = "FOVEA_EMBED_VECTORS_URL"
LOOK_EVERY_S = 60.0
MIN_RETRY_S, MAX_RETRY_S = 1.0, 30.0


class VectorsWatch:
    """Logs when the vectors can't be reached and when they can again; nothing else waits for it.

    `address` is what the log names. The watch has a connection of its own, as requests wait for one that is being made.
    """

    def __init__(self, address: str, connect: Callable[[], VectorDatabase]) -> None:
        self._address = address
        self._connect = connect
        self.is_down = False

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        vectors = self._connect()
        log = structlog.get_logger(__name__).bind(setting=SETTING, address=self._address)
        told, retry_s = "", MIN_RETRY_S
        try:
            while True:
                problem = await asyncio.to_thread(vectors.problem)
                self.is_down = bool(problem)
                if problem and problem != told:
                    log.warning("vectors can't be reached", reason=problem)
                elif told and not problem:
                    log.info("vectors can be reached again")
                told = problem
                await asyncio.sleep(retry_s if problem else LOOK_EVERY_S)
                retry_s = min(2 * retry_s, MAX_RETRY_S) if problem else MIN_RETRY_S
        finally:
            await asyncio.to_thread(vectors.close)
