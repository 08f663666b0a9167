"""A store of results in Redis, which all processes share and skip while it does not respond."""

import asyncio
import hashlib
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from services.core.cache.stores import Found
from services.core.metrics import Metrics

# Increment it whenever the meaning or the format of what is stored changes: old entries are then never found.
KEY_PREFIX = "fovea:result:1:"

MAX_CONNECTIONS = 16
MAX_BACKLOG_BYTES = 32 * 1024 * 1024
# Few enough keys in a command that a timeout in the middle of many keeps what earlier commands found.
KEYS_PER_COMMAND = 256
BYTES_PER_COMMAND = 1024 * 1024

FAILURES_BEFORE_PAUSE = 3
PAUSE_S = 1.0

_CHECK_BYTES = 8

# The client's parser raises more than RedisError where a server speaks another protocol.
_FAILURES = (RedisError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError)


class RedisStore:
    """A `ResultStore` in one Redis server (6.2 or later).

    A look-up takes at most `timeout_s`; keys not found by then count as failed. After several failed look-ups in a
    row all are skipped for a moment, then one tries again. Writes happen in the background, and are dropped
    (`metrics.cache_dropped_writes`) when Redis does not take them or too many wait. Entries expire after `ttl_s`.
    """

    def __init__(self, url: str, *, timeout_s: float, ttl_s: float, metrics: Metrics) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            # RESP2 needs no handshake. A retry would outlast the timeout.
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )
        self._client = Redis.from_pool(pool)
        self._timeout_s = timeout_s
        self._ttl_ms = max(1, round(ttl_s * 1000))
        self._dropped_writes = metrics.cache_dropped_writes
        self._breaker = Breaker()
        self._backlog: deque[tuple[str, bytes]] = deque()
        self._backlog_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    async def get_many(self, keys: Sequence[str]) -> Found:
        values: dict[str, bytes] = {}
        num_failed = len(keys)
        if not self._breaker.admits():
            return Found(values, num_failed)
        try:
            async with asyncio.timeout(self._timeout_s):
                for chunk in _chunks(keys, KEYS_PER_COMMAND):
                    envelopes = await self._client.mget([KEY_PREFIX + key for key in chunk])
                    num_failed -= len(chunk) - _open_all(chunk, envelopes, values)
        except _FAILURES as error:
            self._breaker.record_failure(error)
        else:
            self._breaker.record_success()
        return Found(values, num_failed)

    def put_many(self, values: Mapping[str, bytes]) -> None:
        for key, value in values.items():
            if self._backlog_bytes + len(value) > MAX_BACKLOG_BYTES:
                self._dropped_writes.inc()
                continue
            self._backlog.append((key, value))
            self._backlog_bytes += len(value)
        if self._backlog and (self._writer is None or self._writer.done()):
            self._writer = asyncio.create_task(self._write_backlog(), name="cache writer")

    async def close(self) -> None:
        """Write what waits, for at most one timeout, and close the connection."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=self._timeout_s)
            self._writer.cancel()
            await asyncio.wait([self._writer])
        await self._client.aclose()
        # A transport closes one iteration of the loop after it is told to, and the loop may not run again.
        await asyncio.sleep(0)

    async def _write_backlog(self) -> None:
        while entries := self._take_from_backlog():
            if self._breaker.is_open():
                self._dropped_writes.inc(len(entries))
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    pipeline = self._client.pipeline(transaction=False)
                    for key, value in entries:
                        pipeline.set(KEY_PREFIX + key, _check(key, value) + value, px=self._ttl_ms)
                    await pipeline.execute()
            except _FAILURES:
                self._dropped_writes.inc(len(entries))

    def _take_from_backlog(self) -> list[tuple[str, bytes]]:
        """Take the oldest entries, as many as one timeout should be enough for."""
        entries: list[tuple[str, bytes]] = []
        num_bytes = 0
        while self._backlog and len(entries) < KEYS_PER_COMMAND and num_bytes < BYTES_PER_COMMAND:
            entry = self._backlog.popleft()
            entries.append(entry)
            num_bytes += len(entry[1])
        self._backlog_bytes -= num_bytes
        return entries


class Breaker:
    """Skips a failing server: after FAILURES_BEFORE_PAUSE failures in a row, one attempt each PAUSE_S seconds."""

    def __init__(self) -> None:
        self._num_failures = 0
        self._next_attempt = 0.0
        self._log = structlog.get_logger(__name__)

    def is_open(self) -> bool:
        return self._num_failures >= FAILURES_BEFORE_PAUSE

    def admits(self) -> bool:
        """Whether to try now; of several callers after a pause, only the first is admitted."""
        if not self.is_open():
            return True
        now = time.monotonic()
        if now < self._next_attempt:
            return False
        self._next_attempt = now + PAUSE_S
        return True

    def record_success(self) -> None:
        if self.is_open():
            self._log.info("cache_recovered")
        self._num_failures = 0

    def record_failure(self, error: BaseException) -> None:
        self._num_failures += 1
        self._next_attempt = time.monotonic() + PAUSE_S
        if self._num_failures == FAILURES_BEFORE_PAUSE:
            self._log.warning("cache_unavailable", error=type(error).__name__)


def _open_all(keys: Sequence[str], envelopes: object, values: dict[str, bytes]) -> int:
    """Put intact results into `values`; returns how many were damaged. A foreign value counts as damaged."""
    if not isinstance(envelopes, list) or len(envelopes) != len(keys):
        raise ResponseError("MGET was not answered with one value a key")
    num_damaged = 0
    for key, envelope in zip(keys, envelopes, strict=True):
        if envelope is None:
            continue
        value = envelope[_CHECK_BYTES:]
        if envelope[:_CHECK_BYTES] == _check(key, value):
            values[key] = value
        else:
            num_damaged += 1
    return num_damaged


def _check(key: str, value: bytes) -> bytes:
    """Return a checksum that binds a value to its key, so that no foreign value under it is taken for a result."""
    check = hashlib.blake2b(key.encode(), digest_size=_CHECK_BYTES)
    check.update(value)
    return check.digest()


def _chunks(keys: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(keys)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
