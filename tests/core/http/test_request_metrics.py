"""Requests are counted by the version that answered, in series whose number stays bounded."""

from starlette.types import Message, Receive, Scope, Send

from services.core.exchange import SCOPE_KEY, Exchange, context_of
from services.core.http.middleware import FORGOTTEN_AFTER_S, MAX_VERSIONS, RequestMetrics
from services.core.metrics import Metrics


class Counted:
    """Requests to one route, each answered by a version of its own choosing, at a time of its own choosing."""

    def __init__(self) -> None:
        self.metrics = Metrics("embed")
        self.now_s = 0.0
        self._counting = RequestMetrics(self._answer, self.metrics, clock=lambda: self.now_s)
        self._model: str | None = None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        context_of(scope).model = self._model

    async def ask(self, model: str | None) -> None:
        self._model = model
        scope = {"type": "http", "method": "POST", SCOPE_KEY: Exchange("id", "/embed", is_probe=False)}
        await self._counting(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        raise AssertionError("nothing is read")

    async def _send(self, message: Message) -> None:
        raise AssertionError("nothing is sent")

    def by_version(self) -> dict[str, float]:
        (family,) = self.metrics.requests.collect()
        (seconds,) = self.metrics.request_seconds.collect()
        counts = {one.labels["version"]: one.value for one in family.samples if one.name.endswith("_total")}
        assert {one.labels["version"] for one in seconds.samples} == counts.keys()
        return counts


async def test_a_request_counts_for_the_version_that_answered_it_or_for_none() -> None:
    counted = Counted()
    for model in ("eyes@v1", "eyes@v1", "eyes@v2", None):
        await counted.ask(model)
    assert counted.by_version() == {"v1": 2, "v2": 1, "": 1}


async def test_more_versions_at_a_time_than_have_series_of_their_own_are_counted_together() -> None:
    counted = Counted()
    for number in range(MAX_VERSIONS + 3):
        await counted.ask(f"eyes@v{number}")
    counts = counted.by_version()
    assert len(counts) == MAX_VERSIONS + 1
    assert counts["other"] == 3


async def test_years_of_new_versions_leave_the_series_of_the_last_ones() -> None:
    counted = Counted()
    for number in range(5 * MAX_VERSIONS):
        await counted.ask(f"eyes@v{number}")
        counted.now_s += FORGOTTEN_AFTER_S
    assert counted.by_version() == {f"v{4 * MAX_VERSIONS + number}": 1 for number in range(MAX_VERSIONS)}
