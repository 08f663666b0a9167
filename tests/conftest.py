"""Fixtures that every test may use; each folder's own fixtures stand in its own conftest."""

import os

import pytest


@pytest.fixture(autouse=True)
def environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own FOVEA_* variables never reach a test."""
    for name in list(os.environ):
        if name.startswith("FOVEA_"):
            monkeypatch.delenv(name)
