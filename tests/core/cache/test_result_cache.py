import asyncio
import os
import tracemalloc
from collections.abc import Sequence

import pytest

from services.core.cache.result_cache import Option, ResultCache, content_digest, open_cache, result_key
from services.core.cache.stores import LruStore
from services.core.errors import DeadlineExceeded, InternalError, InvalidRequest, Overloaded
from services.core.exchange import Caller, set_caller
from services.core.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("test")


@pytest.fixture
def cache(metrics: Metrics) -> ResultCache:
    return ResultCache(LruStore(1_000_000), metrics)


def counts(metrics: Metrics) -> dict[str, float]:
    """Look-ups by result, those that occurred."""
    samples = {
        result: metrics.registry.get_sample_value("fovea_cache_requests_total", {"result": result})
        for result in ("hit", "miss", "error", "shared")
    }
    return {result: value for result, value in samples.items() if value}


class Computation:
    """Stands in for a service's work on `keys`: answers when it is let go, and remembers what it was asked."""

    def __init__(self, keys: Sequence[str], error: BaseException | None = None) -> None:
        self.keys = keys
        self.asked: list[list[str]] = []
        self.error = error
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        self.was_cancelled = False

    async def __call__(self, indices: list[int]) -> list[bytes]:
        self.asked.append([self.keys[index] for index in indices])
        self.begun.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return [f"result of {self.keys[index]}".encode() for index in indices]


def released(keys: Sequence[str], error: BaseException | None = None) -> Computation:
    computation = Computation(keys, error)
    computation.released.set()
    return computation


def results(keys: Sequence[str]) -> list[bytes]:
    return [f"result of {key}".encode() for key in keys]


async def let_tasks_wait() -> None:
    """Give every task the turns it needs to reach its next wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def begin(cache: ResultCache, computation: Computation) -> asyncio.Task[list[bytes]]:
    """A request whose computation has begun."""
    task = asyncio.create_task(cache.resolve(computation.keys, computation))
    await computation.begun.wait()
    return task


async def join(cache: ResultCache, computation: Computation) -> asyncio.Task[list[bytes]]:
    """A request that has come as far as it can."""
    task = asyncio.create_task(cache.resolve(computation.keys, computation))
    await let_tasks_wait()
    return task


async def test_a_second_request_is_answered_from_the_cache(cache: ResultCache, metrics: Metrics) -> None:
    assert await cache.resolve(["a"], released(["a"])) == results(["a"])
    untouched = Computation(["a"])
    assert await cache.resolve(["a"], untouched) == results(["a"])
    assert untouched.asked == []
    assert counts(metrics) == {"miss": 1, "hit": 1}


async def test_tenants_find_their_own_results_and_wait_for_their_own_computations(cache: ResultCache) -> None:
    async def ask_as(tenant: str, computation: Computation) -> list[bytes]:
        set_caller(Caller("somebody", tenant))
        return await cache.resolve(computation.keys, computation)

    slow = Computation(["a"])
    first = asyncio.create_task(ask_as("north", slow))
    await slow.begun.wait()
    for tenant in ("south", "default"):
        own = released(["a"])
        assert await asyncio.create_task(ask_as(tenant, own)) == results(["a"])
        assert own.asked == [["a"]]
    slow.released.set()
    await first
    untouched = Computation(["a"])
    assert await asyncio.create_task(ask_as("north", untouched)) == results(["a"])
    assert untouched.asked == []


async def test_only_what_is_missing_is_computed_and_order_is_kept(cache: ResultCache, metrics: Metrics) -> None:
    await cache.resolve(["b", "d"], released(["b", "d"]))
    computation = released(["a", "b", "c", "d"])
    assert await cache.resolve(computation.keys, computation) == results("abcd")
    assert computation.asked == [["a", "c"]]
    assert counts(metrics) == {"miss": 4, "hit": 2}


async def test_equal_keys_in_one_call_are_computed_once(cache: ResultCache, metrics: Metrics) -> None:
    computation = released(["a", "b", "a", "a"])
    assert await cache.resolve(computation.keys, computation) == results("abaa")
    assert computation.asked == [["a", "b"]]
    assert counts(metrics) == {"miss": 2, "shared": 2}


async def test_no_keys_compute_nothing(cache: ResultCache) -> None:
    computation = Computation([])
    assert await cache.resolve([], computation) == []
    assert computation.asked == []


async def test_concurrent_equal_keys_wait_for_one_computation(cache: ResultCache, metrics: Metrics) -> None:
    computation = Computation(["a"])
    requests = [asyncio.create_task(cache.resolve(["a"], computation)) for _ in range(50)]
    await let_tasks_wait()
    computation.released.set()
    assert await asyncio.gather(*requests) == [results("a")] * 50
    assert computation.asked == [["a"]]
    assert counts(metrics) == {"miss": 1, "shared": 49}


async def test_requests_that_overlap_compute_what_the_other_does_not(cache: ResultCache) -> None:
    first, second = Computation(["a", "b"]), Computation(["b", "c", "a"])
    one, other = await begin(cache, first), await begin(cache, second)
    second.released.set()
    first.released.set()
    assert await one == results("ab")
    assert await other == results("bca")
    assert second.asked == [["c"]]


async def test_what_was_found_is_not_held_back_by_what_is_computed_beside_it(cache: ResultCache) -> None:
    await cache.resolve(["a"], released(["a"]))
    computation = Computation(["a", "b"])
    request = await begin(cache, computation)
    assert await cache.resolve(["a"], Computation(["a"])) == results("a")
    computation.released.set()
    assert await request == results("ab")


async def test_requests_that_wait_for_each_other_both_end(cache: ResultCache) -> None:
    await cache.resolve([], Computation([]))
    first, second, third = Computation(["a"]), Computation(["b", "a"]), Computation(["a", "b"])
    requests = [await begin(cache, first), await begin(cache, second), await join(cache, third)]
    requests[0].cancel()
    await let_tasks_wait()
    for computation in (second, third):
        computation.released.set()
    assert await requests[1] == results("ba")
    assert await requests[2] == results("ab")


async def test_a_cancelled_computation_is_taken_over_by_one_of_those_who_wait(cache: ResultCache) -> None:
    first, second, third = Computation(["a"]), Computation(["a"]), Computation(["a"])
    request = await begin(cache, first)
    waiting = [await join(cache, second), await join(cache, third)]
    request.cancel()
    await let_tasks_wait()
    assert first.was_cancelled
    assert [second.asked, third.asked] == [[["a"]], []]
    second.released.set()
    assert await asyncio.gather(*waiting) == [results("a")] * 2


async def test_one_who_waits_may_be_cancelled_without_harm_to_the_others(cache: ResultCache) -> None:
    computation = Computation(["a"])
    request = await begin(cache, computation)
    leaving, staying = await join(cache, Computation(["a"])), await join(cache, Computation(["a"]))
    leaving.cancel()
    await let_tasks_wait()
    assert leaving.cancelled()
    computation.released.set()
    assert await request == await staying == results("a")


async def test_an_error_reaches_each_who_waits_as_an_exception_of_their_own(cache: ResultCache) -> None:
    failing = Computation(["a"], Overloaded("The queue is full.", code="queue_full", retry_after_s=3))
    requests = [
        await begin(cache, failing),
        await join(cache, Computation(["a"])),
        await join(cache, Computation(["a"])),
    ]
    failing.released.set()
    errors = await asyncio.gather(*requests, return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, Overloaded)
        assert (error.message, error.code, error.retry_after_s) == ("The queue is full.", "queue_full", 3)


async def test_an_error_is_not_kept(cache: ResultCache) -> None:
    with pytest.raises(Overloaded):
        await cache.resolve(["a"], released(["a"], Overloaded("The queue is full.")))
    assert await cache.resolve(["a"], released(["a"])) == results("a")


async def test_a_defect_reaches_those_who_wait_without_its_words(cache: ResultCache) -> None:
    failing = Computation(["a"], KeyError("a secret"))
    request, waiting = await begin(cache, failing), await join(cache, Computation(["a"]))
    failing.released.set()
    with pytest.raises(KeyError):
        await request
    with pytest.raises(InternalError) as error:
        await waiting
    assert "secret" not in error.value.message


@pytest.mark.parametrize("error", [DeadlineExceeded("Too late."), InvalidRequest("Not so.", param="input.7")])
async def test_an_error_of_one_request_alone_does_not_reach_another(cache: ResultCache, error: Exception) -> None:
    failing, healthy = Computation(["a"], error), released(["a"])
    request, waiting = await begin(cache, failing), await join(cache, healthy)
    failing.released.set()
    with pytest.raises(type(error)):
        await request
    assert await waiting == results("a")


async def test_a_key_that_failed_among_others_is_computed_by_who_waited_for_it(cache: ResultCache) -> None:
    failing, healthy = Computation(["a", "b"], Overloaded("Too many at once.")), released(["b"])
    request, waiting = await begin(cache, failing), await join(cache, healthy)
    failing.released.set()
    with pytest.raises(Overloaded):
        await request
    assert await waiting == results("b")


async def test_a_wrong_number_of_results_is_an_error_and_nothing_is_kept(cache: ResultCache) -> None:
    async def compute(_: list[int]) -> list[bytes]:
        return [b"one"]

    with pytest.raises(ValueError, match="zip"):
        await cache.resolve(["a", "b"], compute)
    assert await cache.resolve(["a", "b"], released(["a", "b"])) == results("ab")


async def test_the_least_recently_used_entries_are_dropped_first(metrics: Metrics) -> None:
    value = bytes(1_000)
    sample = LruStore(1_000_000)
    sample.put_many({"x": value})
    store = LruStore(3 * sample.num_bytes)
    store.put_many({"a": value, "b": value, "c": value})
    await store.get_many(["a"])
    store.put_many({"d": value})
    assert set((await store.get_many(["a", "b", "c", "d"])).values) == {"a", "c", "d"}


@pytest.mark.slow
async def test_the_bound_in_bytes_holds_for_the_memory_that_is_really_taken() -> None:
    tracemalloc.start()
    try:
        store = LruStore(2_000_000)
        for index in range(20_000):
            store.put_many({content_digest(str(index).encode()): os.urandom(index % 200)})
            assert store.num_bytes <= 2_000_000
        assert tracemalloc.get_traced_memory()[0] <= 2_000_000
    finally:
        tracemalloc.stop()


async def test_a_value_larger_than_the_cache_is_not_kept_and_drops_nothing() -> None:
    store = LruStore(10_000)
    store.put_many({"a": b"small"})
    store.put_many({"b": bytes(10_001)})
    assert dict((await store.get_many(["a", "b"])).values) == {"a": b"small"}


async def test_replacing_a_value_does_not_count_it_twice() -> None:
    store = LruStore(10_000)
    store.put_many({"a": bytes(1_000)})
    once = store.num_bytes
    store.put_many({"a": bytes(1_000)})
    assert store.num_bytes == once
    store.put_many({"a": bytes(10_001)})
    assert store.num_bytes == 0


async def test_a_cache_of_no_bytes_keeps_nothing_and_still_shares_computations(metrics: Metrics) -> None:
    cache = open_cache(metrics, redis_url=None, max_bytes=0, timeout_s=1, ttl_s=1)
    computation = Computation(["a"])
    requests = [await begin(cache, computation), await join(cache, computation)]
    computation.released.set()
    await asyncio.gather(*requests)
    await cache.resolve(["a"], computation)
    assert computation.asked == [["a"], ["a"]]
    await cache.close()


def test_a_key_differs_with_everything_that_a_result_depends_on() -> None:
    options: dict[str, Option] = {"dimensions": 64, "normalize": True}
    keys = [
        result_key("c1", "i1", "what colour?", options),
        result_key("c2", "i1", "what colour?", options),
        result_key("c1", "i2", "what colour?", options),
        result_key("c1", "i1", "what shape?", options),
        result_key("c1", "i1", "", options),
        result_key("c1", "i1", None, options),
        result_key("c1", "i1", "what colour?", {"dimensions": 32, "normalize": True}),
        result_key("c1", "i1", "what colour?", {"dimensions": 64, "normalize": False}),
        result_key("c1", "i1", "what colour?", {"dimensions": "64", "normalize": True}),
        result_key("c1i1", "", "what colour?", options),
        result_key("c1", 'i1","what colour?', None, options),
        result_key("c1", "i1", "\ud83d\ude00", options),
        result_key("c1", "i1", "\U0001f600", options),
        result_key("c1", "i1", "\ud800", options),
        result_key("c1", "i1", "\ud801", options),
    ]
    assert len(set(keys)) == len(keys)


def test_the_order_of_options_does_not_matter() -> None:
    assert result_key("c", "i", None, {"a": 1, "b": 2}) == result_key("c", "i", None, {"b": 2, "a": 1})
