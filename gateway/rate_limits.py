"""Rate limits of keys: requests are counted in Redis where one is configured, in the process otherwise.

A Redis that is down or slow never fails a request: until it answers again, each gateway process counts for itself,
which lets through at most as many times the limit as there are processes.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import StorageError

from services.core.errors import RateLimited

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

# Seconds for which a failed Redis is skipped: a look-up that hangs would otherwise slow every request down.
REDIS_PAUSE_S = 1.0
# Seconds after which limits are counted in memory.
REDIS_TIMEOUT_S = 0.1
REDIS_CONNECTIONS = 64

log = structlog.get_logger(__name__)


def parse_rate(rate: str) -> str:
    """Return the rate unchanged if it is valid (`10/second`, `600 per minute`). Raises ValueError otherwise."""
    parse(rate)
    return rate


@dataclass(frozen=True)
class Allowance:
    """A key's allowance: `limit` requests per window, `remaining` of them, `reset_s` seconds until there are more."""

    limit: int
    remaining: int
    reset_s: float

    def headers(self) -> dict[str, str]:
        return {
            "ratelimit-limit": str(self.limit),
            "ratelimit-remaining": str(self.remaining),
            "ratelimit-reset": str(math.ceil(self.reset_s)),
        }


class LimitReached(RateLimited):
    """A 429 that also states the limit."""

    def __init__(self, window_s: int, allowance: Allowance) -> None:
        super().__init__(
            f"{allowance.limit} requests in {window_s} s are allowed; try again in {math.ceil(allowance.reset_s)} s.",
            code="rate_limit_exceeded",
            retry_after_s=allowance.reset_s,
        )
        self.allowance = allowance

    def headers(self) -> dict[str, str]:
        return {**super().headers(), **self.allowance.headers()}


class RateLimits:
    """Sliding windows, one for each key and rate."""

    def __init__(self, redis_url: str | None, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._local = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._failures = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._pool: ConnectionPool | None = None
        self._shared: SlidingWindowCounterRateLimiter | None = None
        if redis_url:
            self._pool = _redis_pool(redis_url, timeout_s)
            self._shared = SlidingWindowCounterRateLimiter(_redis_storage(self._pool))
        self._shared_again_at = -math.inf
        self._rates: dict[str, RateLimitItem] = {}

    async def take(self, identity: str, rate: str) -> Allowance:
        """Count one request of `identity`. Raises LimitReached when its window is full; that one is not counted."""
        item = self._rates.get(rate) or self._rates.setdefault(rate, parse(rate))
        if self._shared is not None and time.monotonic() >= self._shared_again_at:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await _take(self._shared, item, identity)
            except (StorageError, TimeoutError) as failure:
                self._shared_again_at = time.monotonic() + REDIS_PAUSE_S
                log.warning("rate_limits_kept_in_memory", error=type(failure).__name__)
        return await _take(self._local, item, identity)

    async def take_locally(self, identity: str, rate: str) -> Allowance:
        """Count as `take` does, but in this process only: unauthenticated requests must not load Redis."""
        item = self._rates.get(rate) or self._rates.setdefault(rate, parse(rate))
        return await _take(self._failures, item, identity)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the connections to Redis for the block, and close them at its end."""
        yield
        if self._pool is not None:
            await self._pool.disconnect()


async def _take(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItem, identity: str) -> Allowance:
    is_admitted = await limiter.hit(item, identity)
    window = await limiter.get_window_stats(item, identity)
    allowance = Allowance(item.amount, window.remaining, max(0.0, window.reset_time - time.time()))
    if not is_admitted:
        raise LimitReached(item.get_expiry(), allowance)
    return allowance


def _redis_pool(url: str, timeout_s: float) -> "ConnectionPool":
    # A process without Redis does not spend the time on importing its client.
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    # One immediate retry, since the connection may have been idle for long.
    retry = Retry(NoBackoff(), 1)
    return BlockingConnectionPool.from_url(url, max_connections=REDIS_CONNECTIONS, timeout=timeout_s, retry=retry)


def _redis_storage(pool: "ConnectionPool") -> RedisStorage:
    options: dict[str, Any] = {"connection_pool": pool}
    # The pool has the address; limits only reads the kind of server from the scheme.
    return RedisStorage(
        "async+redis://", wrap_exceptions=True, implementation="redispy", key_prefix="fovea:limits", **options
    )
