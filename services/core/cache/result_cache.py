"""A cache of computed results, in Redis or in the process, with equal computations shared while they run.

A cache that is slow, full, absent or wrong costs a computation, never a request. It keeps bytes; their meaning is the
caller's.
"""

import asyncio
import copy
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence

from services.core.cache.stores import LruStore, ResultStore
from services.core.errors import DeadlineExceeded, FoveaError, InternalError
from services.core.exchange import DEFAULT_TENANT, current_caller
from services.core.metrics import Metrics

Option = str | int | float | bool | None


def result_key(checkpoint_digest: str, input_digest: str, condition: str | None, options: Mapping[str, Option]) -> str:
    """Return the digest of everything that a result depends on; the order of `options` does not matter.

    No condition and an empty one give two keys, since a model may answer them differently.
    """
    parts = [checkpoint_digest, input_digest, condition, dict(options)]
    # Encoded without escapes: JSON's \\u would make a pair of lone surrogates equal to the character that it encodes.
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def content_digest(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal: the `input_digest` of an image's or a text's bytes."""
    return hashlib.sha256(data).hexdigest()


# A result, the failure of its computation, or None: the request that computed it gave up, and another one must.
_Outcome = bytes | Exception | None
_Flight = asyncio.Future[_Outcome]


class ResultCache:
    """Looks up, computes what is missing, and lets equal keys of concurrent requests share one computation.

    Tenants share nothing, since response times would tell one what another has asked. Belongs to one event loop.
    `metrics.cache_requests` counts each key by how it was answered: hit, miss, error (the store failed, so it was
    computed) or shared (an equal key of this or another request was being computed).
    """

    def __init__(self, store: ResultStore, metrics: Metrics) -> None:
        self._store = store
        self._flights: dict[str, _Flight] = {}
        self._requests = {
            result: metrics.cache_requests.labels(result=result) for result in ("hit", "miss", "error", "shared")
        }

    async def resolve(
        self, keys: Sequence[str], compute: Callable[[list[int]], Awaitable[Sequence[bytes]]]
    ) -> list[bytes]:
        """Return the result of each key, in order; `compute` gets the indices of keys not stored or being computed.

        It is called at most once, unless a request that computed one of the keys gave up (cancelled, its deadline
        passed, refused as a client's error, or failed among other keys): then one of the waiting requests computes
        it again. Any other failure of a computation of one key reaches every request that waited for it, each as an
        exception of its own. Failures are not kept.
        """
        index_of: dict[str, int] = {}
        keys = _of_tenant(keys)
        for index, key in enumerate(keys):
            index_of.setdefault(key, index)
        self._requests["shared"].inc(len(keys) - len(index_of))
        values: dict[str, bytes] = {}
        while unresolved := [key for key in index_of if key not in values]:
            shared = {key: self._flights[key] for key in unresolved if key in self._flights}
            owned = {key: index_of[key] for key in unresolved if key not in shared}
            if owned:
                values |= await self._obtain(owned, compute)
            if shared:
                values |= await self._wait(shared)
        return [values[key] for key in keys]

    async def close(self) -> None:
        """Let the store finish what it writes, within its own bounds."""
        await self._store.close()

    async def _obtain(
        self, index_of: dict[str, int], compute: Callable[[list[int]], Awaitable[Sequence[bytes]]]
    ) -> dict[str, bytes]:
        """Look up or compute these keys; requests for them wait for the outcome meanwhile."""
        loop = asyncio.get_running_loop()
        self._flights |= {key: loop.create_future() for key in index_of}
        values: dict[str, bytes] = {}
        outcome: _Outcome = None
        try:
            found = await self._store.get_many(list(index_of))
            values |= found.values
            self._settle(values)
            missing = [key for key in index_of if key not in values]
            self._requests["hit"].inc(len(values))
            self._requests["error"].inc(found.num_failed)
            self._requests["miss"].inc(len(missing) - found.num_failed)
            if missing:
                results = await compute([index_of[key] for key in missing])
                computed = dict(zip(missing, results, strict=True))
                self._store.put_many(computed)
                values |= computed
                self._settle(computed)
            return values
        except Exception as error:
            outcome = error if len(index_of) == 1 and not _is_of_the_request(error) else None
            raise
        finally:
            # Also on cancellation: the waiting requests must be told.
            self._settle({key: outcome for key in index_of if key not in values})

    def _settle(self, outcomes: Mapping[str, _Outcome]) -> None:
        for key, outcome in outcomes.items():
            self._flights.pop(key).set_result(outcome)

    async def _wait(self, flights: dict[str, _Flight]) -> dict[str, bytes]:
        """Return the results of finished computations; those that were given up are left out."""
        # Unlike awaiting a future, this does not cancel it when the waiting task is cancelled.
        await asyncio.wait(flights.values())
        values: dict[str, bytes] = {}
        self._requests["shared"].inc(sum(flight.result() is not None for flight in flights.values()))
        for key, flight in flights.items():
            match flight.result():
                case bytes(value):
                    values[key] = value
                case Exception() as error:
                    raise _fresh(error) from error
        return values


def _of_tenant(keys: Sequence[str]) -> Sequence[str]:
    """Return the keys under which results of the calling tenant are kept."""
    tenant = current_caller().tenant
    return keys if tenant == DEFAULT_TENANT else [f"{tenant}:{key}" for key in keys]


def _is_of_the_request(error: Exception) -> bool:
    """Whether an error concerns only the request that met it, so that another request may succeed."""
    return isinstance(error, DeadlineExceeded) or (isinstance(error, FoveaError) and error.status < 500)


def _fresh(error: Exception) -> FoveaError:
    """Return a new exception for a waiting request: one raised in several tasks would gather all their tracebacks."""
    if isinstance(error, FoveaError):
        return copy.copy(error)
    return InternalError("The computation of this result failed.")


def open_cache(
    metrics: Metrics, *, redis_url: str | None, max_bytes: int, timeout_s: float, ttl_s: float
) -> ResultCache:
    """Return the cache that the settings name: in Redis where there is a URL, else `max_bytes` in this process."""
    if redis_url is None:
        return ResultCache(LruStore(max_bytes), metrics)
    # A process without Redis does not spend the time on importing its client.
    from services.core.cache.redis_store import RedisStore

    return ResultCache(RedisStore(redis_url, timeout_s=timeout_s, ttl_s=ttl_s, metrics=metrics), metrics)
