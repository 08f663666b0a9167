"""Free memory within the limit of a container."""

from pathlib import Path

import pytest

from services.core import memory
from services.core.memory import memory_within_limits


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 1 GiB, and the file with a container's limit."""
    machine, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    machine.write_text("MemTotal:        1048576 kB\nMemAvailable:     524288 kB\nHugePages_Total:       0\n")
    monkeypatch.setattr(memory, "MEMINFO", machine)
    monkeypatch.setattr(memory, "MEMORY_LIMIT", limit)
    return limit


def test_without_a_limit_the_machines_memory_is_told(limit: Path) -> None:
    for text in ("", "max\n"):
        limit.write_text(text)
        limit.with_name("memory.current").write_text("1000\n")
        assert memory_within_limits() == (2**30, 2**29)


def test_within_a_limit_the_files_that_the_kernel_may_drop_count_as_free(limit: Path) -> None:
    limit.write_text("100000\n")
    limit.with_name("memory.current").write_text("90000\n")
    limit.with_name("memory.stat").write_text("anon 30000\nactive_file 20000\ninactive_file 35000\nshmem 5000\n")
    assert memory_within_limits() == (100_000, 65_000)
