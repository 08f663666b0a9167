"""Fixtures of the doctor's tests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.doctor.machine import Machine
from tests.kept_port import kept_port

PROCESSES = ("GATEWAY", "PREDICT", "GENERATE", "EMBED", "SCORE")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with contextlib.ExitStack() as kept:
        yield Machine(tmp_path, {name: kept.enter_context(kept_port()) for name in PROCESSES})
