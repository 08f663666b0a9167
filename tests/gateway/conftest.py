import aiohttp
import pytest

from gateway import upstream


@pytest.fixture(autouse=True)
def patient_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway in a test's process, which may itself wait for its CPU, not take services for dead meanwhile."""
    monkeypatch.setattr(upstream, "PROBE_TIMEOUT", aiohttp.ClientTimeout(total=60))
    monkeypatch.setattr(upstream, "IDLE_CLOSE_S", 60)
