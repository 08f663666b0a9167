"""Annotations of public benchmarks, where a copy lies in `shared/data` beside the checkout."""

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "shared" / "data"
# Set by .ci/run, so that what is measured on published data is not skipped unseen.
REQUIRED = "PUBLISHED_DATA_REQUIRED"


def published(name: str) -> Path:
    """Return a file or folder of the copy; without one the test is skipped, or fails where one is required."""
    path = FOLDER / name
    if not path.exists():
        assert REQUIRED not in os.environ, f"there is no {path}, and {REQUIRED} is set"
        pytest.skip(f"there is no {path}")
    return path
