"""Rate limits of keys and tenants: counted in Redis where one is configured, in the process otherwise.

A request is counted before it is sent on. Its tokens are known only afterwards: it is refused where none are left, and
what it took is taken from the window even where that is more than was left, so that the next ones wait for longer.

A Redis that is down or slow never fails a request: until it answers again, each gateway process counts for itself,
which lets through at most as many times the limit as there are processes.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import structlog
from limits import RateLimitItem, parse, parse_many
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import StorageError

from services.core.errors import MAX_RETRY_AFTER_S, RateLimited

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

T = TypeVar("T")
Unit = Literal["requests", "tokens"]

# Seconds for which a failed Redis is skipped: a look-up that hangs would otherwise slow every request down.
REDIS_PAUSE_S = 1.0
# Seconds after which limits are counted in memory.
REDIS_TIMEOUT_S = 0.1
REDIS_CONNECTIONS = 64
# More than any rate: what has been taken is counted, however much it is.
UNLIMITED = 2**53

log = structlog.get_logger(__name__)


def parse_rate(rate: str) -> str:
    """Return the rate unchanged if it is one rate (`10/second`, `600 per minute`). Raises ValueError otherwise."""
    try:
        rates = parse_many(rate)
    except ValueError:
        rates = []
    if len(rates) != 1 or not rates[0].amount:
        raise ValueError(
            f"{rate!r} is not one rate: write a number from 1 and a second, minute, hour, day, month or year, such as "
            "600/minute, 600 per minute or 10/5 seconds"
        )
    return rate


@dataclass(frozen=True)
class Limit:
    """A rate of `whose`, by which errors name it; what has the same `identity` is counted together."""

    whose: str
    identity: str
    rate: str
    unit: Unit = "requests"


@dataclass(frozen=True)
class Allowance:
    """The rest of a limit: `remaining` of `limit` in a window, `more_s` seconds until there are more.

    `reset_s` is what clients are told: of requests the same, of tokens the seconds until all of them are back, which is
    what OpenAI's header means.
    """

    limit: int
    remaining: int
    more_s: float
    reset_s: float
    rate: str
    unit: Unit = "requests"

    def headers(self) -> dict[str, str]:
        """Return the headers of the IETF's draft for requests, and OpenAI's for tokens."""
        reset_s = str(math.ceil(self.reset_s))
        if self.unit == "tokens":
            told = {"limit": str(self.limit), "remaining": str(self.remaining), "reset": f"{reset_s}s"}
            return {f"x-ratelimit-{name}-tokens": value for name, value in told.items()}
        told = {"limit": str(self.limit), "remaining": str(self.remaining), "reset": reset_s}
        return {f"ratelimit-{name}": value for name, value in told.items()}


class LimitReached(RateLimited):
    """A 429 that also states the limit."""

    def __init__(self, whose: str, window_s: int, allowance: Allowance) -> None:
        allowed = f"{allowance.limit} {allowance.unit} in {window_s} s"
        cap = f" (`Retry-After` is at most {MAX_RETRY_AFTER_S:.0f} s)" if allowance.more_s > MAX_RETRY_AFTER_S else ""
        super().__init__(
            f"{whose} may use {allowed}; try again in {math.ceil(allowance.more_s)} s{cap}.",
            code="rate_limit_exceeded",
            retry_after_s=allowance.more_s,
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

    async def take(self, limit: Limit) -> Allowance:
        """Count one request, or see that some tokens are left.

        Raises LimitReached when the window is full; that request is not counted.
        """
        item = self._item(limit)
        return await self._counted(lambda limiter: _take(limiter, item, limit))

    async def spend(self, limit: Limit, num_tokens: int) -> Allowance:
        """Take tokens from a window, also more than are left of it, and return what is left then."""
        item = self._item(limit)
        return await self._counted(lambda limiter: _spend(limiter, item, limit, num_tokens))

    async def left(self, limit: Limit) -> Allowance:
        """Return what is left of a window."""
        item = self._item(limit)
        return await self._counted(lambda limiter: _left(limiter, item, limit))

    async def take_locally(self, limit: Limit) -> Allowance:
        """Count as `take` does, but in this process only: unauthenticated requests must not load Redis."""
        return await _take(self._failures, self._item(limit), limit)

    def _item(self, limit: Limit) -> RateLimitItem:
        return self._rates.get(limit.rate) or self._rates.setdefault(limit.rate, parse(limit.rate))

    async def _counted(self, use: Callable[[SlidingWindowCounterRateLimiter], Awaitable[T]]) -> T:
        """Use the counts that all gateways share, or else this process's own."""
        if self._shared is not None and time.monotonic() >= self._shared_again_at:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await use(self._shared)
            except (StorageError, TimeoutError) as failure:
                self._shared_again_at = time.monotonic() + REDIS_PAUSE_S
                log.warning("rate_limits_kept_in_memory", error=type(failure).__name__)
        return await use(self._local)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the connections to Redis for the block, and close them at its end."""
        yield
        if self._pool is not None:
            await self._pool.disconnect()


async def _take(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItem, limit: Limit) -> Allowance:
    is_admitted = limit.unit == "tokens" or await limiter.hit(item, limit.identity)
    allowance = await _left(limiter, item, limit)
    if not is_admitted or (limit.unit == "tokens" and not allowance.remaining):
        raise LimitReached(limit.whose, item.get_expiry(), allowance)
    return allowance


async def _left(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItem, limit: Limit) -> Allowance:
    if limit.unit == "requests":
        stats = await limiter.get_window_stats(item, limit.identity)
        more_s = max(0.0, stats.reset_time - time.time())
        return Allowance(item.amount, stats.remaining, more_s, more_s, limit.rate)
    window_s = item.get_expiry()
    window = await _windows(limiter).get_sliding_window(item.key_for(limit.unit, limit.identity), window_s)
    previous, previous_s, current, current_s = window
    remaining = max(0, item.amount - math.floor(previous * previous_s / window_s + current))
    # What was taken in the window before fades until its end, and what is taken now from the end of this one on.
    more_s = current_s % window_s if previous or current else 0.0
    if current >= item.amount:
        more_s += window_s * (1 - item.amount / current)
    elif not remaining:
        more_s = previous_s - (item.amount - current) * window_s / previous
    reset_s = current_s if current else previous_s
    return Allowance(item.amount, remaining, more_s, reset_s, limit.rate, limit.unit)


async def _spend(
    limiter: SlidingWindowCounterRateLimiter, item: RateLimitItem, limit: Limit, num_tokens: int
) -> Allowance:
    key = item.key_for(limit.unit, limit.identity)
    await _windows(limiter).acquire_sliding_window_entry(key, UNLIMITED, item.get_expiry(), num_tokens)
    return await _left(limiter, item, limit)


def _windows(limiter: SlidingWindowCounterRateLimiter) -> MemoryStorage | RedisStorage:
    storage = limiter.storage
    assert isinstance(storage, MemoryStorage | RedisStorage), "what RateLimits makes"
    return storage


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
