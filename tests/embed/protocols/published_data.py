"""Annotations of public benchmarks, where a copy lies in `shared/data` beside the checkout."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[4] / "shared" / "data"


def published(name: str) -> Path:
    """A file or folder of the copy; the test that asks is skipped where there is none."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"there is no {path}")
    return path
