"""Fixtures that every test may use; each folder's own fixtures stand in its own conftest."""

import os
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own FOVEA_* variables never reach a test."""
    for name in list(os.environ):
        if name.startswith("FOVEA_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def plain_tracebacks_in_logs() -> None:
    """structlog's default draws every local variable, which takes longer than the test that logs the error.

    For each test anew: a command that an earlier one ran may have chosen other logs for this process.
    """
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums come out the same, bit for bit, only in the same order: in a test as in the jobs that it starts."""
    import torch  # for those who ask: most tests do without

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
