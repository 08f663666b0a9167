"""Fixtures that every test may use; each folder's own fixtures stand in its own conftest."""

import gc
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

# Everything in these folders, and whatever asks for one of these fixtures, starts processes; what trains has folders.
PROCESS_FOLDERS = {"contract", "deploy", "monitoring"}
PROCESS_FIXTURES = {"serve", "rclone", "moto", "postgres_url"}
# Files that share a server, and what starts once for all tests of a worker. Those of vLLM are few and take minutes; as
# what has many tests begins first, together they do not come last, when other workers have nothing left.
ON_ONE_WORKER = {
    "console": ("tests/gateway/console/",),
    "monitoring": ("tests/monitoring/",),
    "vllm": ("tests/vllm_plugin/",),
}

# Threads of OpenMP wait for each other in loops that keep a core busy, and many processes share few cores here;
# and sums come out the same, bit for bit, only in the same order.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell has its background jobs ignore SIGINT, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without collections of garbage, of which modules leave none, and keep modules out of later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folders = set(item.path.relative_to(Path(__file__).parent).parts)
        if folders & PROCESS_FOLDERS or set(getattr(item, "fixturenames", ())) & PROCESS_FIXTURES:
            item.add_marker(pytest.mark.process)
        if "training" in folders:
            item.add_marker(pytest.mark.training)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files, and one of them all files that share something that takes long to start."""
    from xdist.scheduler import LoadFileScheduling  # for those who run several workers

    class BySharedStart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_start(nodeid) or str(super()._split_scope(nodeid))

    return BySharedStart(config, log)


def shared_start(nodeid: str) -> str | None:
    return next((shared for shared, files in ON_ONE_WORKER.items() if nodeid.startswith(files)), None)


@pytest.fixture(autouse=True)
def environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own FOVEA_* variables never reach a test."""
    for name in list(os.environ):
        if name.startswith("FOVEA_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> dict[str, Any]:
    """structlog's default draws every local variable, which takes longer than the test that logs the error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )
    return structlog.get_config()


@pytest.fixture(autouse=True)
def logs_that_no_test_before_chose(plain_logs: dict[str, Any]) -> None:
    """Reset logging, which a command that a test runs in this process configures for all later tests."""
    structlog.configure(**plain_logs)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server with an empty database."""
    pytest.importorskip("psycopg_pool", reason="needs the extra `cluster`")
    from tests.core.postgres_server import postgres_server  # for those who ask

    with postgres_server() as server:
        yield server.url


@pytest.fixture
def empty_database_url(postgres_url: str) -> str:
    """A schema without tables."""
    return empty_schema(postgres_url)


def empty_schema(url: str) -> str:
    """Make a schema in a database, and the URL of which it is the first, before that with the extension."""
    import psycopg  # part of an extra

    schema = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{url}&options=-csearch_path%3D{schema},extensions"
