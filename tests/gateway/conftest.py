import aiohttp
import pytest

from gateway import upstream


@pytest.fixture(autouse=True)
def patient_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway in a test's process may itself be kept waiting for its CPU, and takes nobody for dead meanwhile."""
    monkeypatch.setattr(upstream, "PROBE_TIMEOUT", aiohttp.ClientTimeout(total=60))
    monkeypatch.setattr(upstream, "IDLE_CLOSE_S", 60)
