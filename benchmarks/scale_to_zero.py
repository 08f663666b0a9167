"""A simulated day of a service that may be scaled to zero: how often it is put there while it is in use.

python -m benchmarks.scale_to_zero

KEDA's rule is written down here as its 2.20 acts (`pkg/scaling/executor`): at each poll a service is active if any of
its triggers is above zero. An active one gets its first pod; one that has not been active for the cool-down loses its
last, unless a trigger could not be read. The gateways' count of recent requests is their own code, on a simulated
clock; what Prometheus tells was true at its last scrape.
"""

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from gateway.admission import RecentRequests

DAY_S = 86_400.0
# The durations and intervals that the manifests have.
POLL_S = SCRAPE_S = 15.0
# Seconds that a pod takes from the decision to its first answer.
START_S = 60.0
NUM_GATEWAYS = 2
# The triggers by their names in k8s/components: the requests that Prometheus saw at its last scrape, and the recent
# ones that the gateways tell by themselves.
LOAD, ARRIVALS = "load", "arrivals"


@dataclass(frozen=True)
class Scaling:
    """The settings that decide: the names of the triggers, and KEDA's cool-down."""

    triggers: frozenset[str]
    cooldown_s: float


BEFORE = Scaling(frozenset({LOAD}), 600.0)
AFTER = Scaling(frozenset({LOAD, ARRIVALS}), 300.0)


@dataclass(frozen=True)
class Request:
    at: float
    seconds: float = 0.1


@dataclass
class Outcome:
    """When the service was put to zero and woken, and how long each request waited for a pod."""

    zeroed_at: list[float] = field(default_factory=list)
    woken_at: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Faults:
    """Spans of time in which Prometheus does not answer, and times at which every gateway is replaced."""

    prometheus_away: Sequence[tuple[float, float]] = ()
    gateways_replaced: Sequence[float] = ()

    def has_prometheus(self, now: float) -> bool:
        return not any(since <= now < until for since, until in self.prometheus_away)


class Simulation:
    """One service behind gateways that take requests at random; it has one pod or none."""

    def __init__(self, scaling: Scaling, faults: Faults, *, seed: int, has_pod: bool) -> None:
        self.outcome = Outcome()
        self._now = 0.0
        self._scaling = scaling
        self._faults = faults
        self._random = random.Random(seed)
        self._recent = self._gateways()
        self._pod_ready_at: float | None = 0.0 if has_pod else None
        self._active_at = 0.0
        self._num_present = self._num_scraped = 0
        self._waiting: list[tuple[Request, AbstractContextManager[None]]] = []
        self._events: list[tuple[float, int, str, object]] = []
        self._num_events = 0

    def _gateways(self) -> list[RecentRequests]:
        return [RecentRequests(clock=lambda: self._now) for _ in range(NUM_GATEWAYS)]

    def _plan(self, at: float, what: str, about: object = None) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at, self._num_events, what, about))

    def run(self, requests: Iterable[Request], until: float) -> Outcome:
        arrivals = iter(requests)
        self._plan_next(arrivals)
        self._plan(self._random.uniform(0, SCRAPE_S), "scrape")
        self._plan(self._random.uniform(0, POLL_S), "poll")
        for at in self._faults.gateways_replaced:
            self._plan(at, "replace")
        while self._events and self._events[0][0] <= until:
            self._now, _, what, about = heapq.heappop(self._events)
            match what, about:
                case "arrive", Request() as request:
                    self._arrive(request)
                    self._plan_next(arrivals)
                case "end", AbstractContextManager() as counted:
                    self._num_present -= 1
                    counted.__exit__(None, None, None)
                case "scrape", _:
                    self._num_scraped = self._num_present
                    self._plan(self._now + SCRAPE_S, "scrape")
                case "poll", _:
                    self._poll()
                    self._plan(self._now + POLL_S, "poll")
                case "ready", _:
                    for waiting in self._waiting:
                        self._answer(*waiting)
                    self._waiting = []
                case "replace", _:
                    self._recent = self._gateways()
        return self.outcome

    def _plan_next(self, arrivals: Iterator[Request]) -> None:
        if (request := next(arrivals, None)) is not None:
            self._plan(request.at, "arrive", request)

    def _arrive(self, request: Request) -> None:
        self._num_present += 1
        counted = self._random.choice(self._recent).counted()
        counted.__enter__()
        if self._pod_ready_at is not None and self._pod_ready_at <= self._now:
            self._answer(request, counted)
        else:
            self._waiting.append((request, counted))

    def _answer(self, request: Request, counted: AbstractContextManager[None]) -> None:
        self.outcome.waits_s.append(self._now - request.at)
        self._plan(self._now + request.seconds, "end", counted)

    def _poll(self) -> None:
        is_load_known = LOAD in self._scaling.triggers and self._faults.has_prometheus(self._now)
        is_active = (is_load_known and self._num_scraped > 0) or (
            ARRIVALS in self._scaling.triggers and any(one.count() for one in self._recent)
        )
        if is_active and self._pod_ready_at is None:
            self._pod_ready_at = self._now + START_S
            self._plan(self._pod_ready_at, "ready")
            self._active_at = self._now
            self.outcome.woken_at.append(self._now)
        elif not is_load_known:
            # KEDA neither takes pods away while a trigger fails, nor notes that another one is active.
            return
        elif is_active:
            self._active_at = self._now
        elif self._pod_ready_at is not None and self._active_at + self._scaling.cooldown_s < self._now:
            self._pod_ready_at = None
            self.outcome.zeroed_at.append(self._now)


def at_random(every_s: float, until: float = DAY_S, *, seed: int = 0) -> Iterator[Request]:
    """Requests of 0.1 s that come independently of one another, one in `every_s` on average."""
    gaps = random.Random(seed)
    at = gaps.expovariate(1 / every_s)
    while at < until:
        yield Request(at)
        at += gaps.expovariate(1 / every_s)


def simulate(
    scaling: Scaling,
    requests: Iterable[Request],
    *,
    until: float = DAY_S,
    faults: Faults | None = None,
    seed: int = 0,
    has_pod: bool = True,
) -> Outcome:
    """Return what becomes of the service; it begins with a pod, or at zero."""
    return Simulation(scaling, faults or Faults(), seed=seed, has_pod=has_pod).run(requests, until)


def num_longer(requests: Iterable[Request], seconds: float) -> int:
    """Return how many pauses between two requests are longer: at zero is where a service belongs then."""
    times = [request.at for request in requests]
    return sum(later - earlier > seconds for earlier, later in itertools.pairwise(times))


def main() -> None:
    print("times put to zero in 24 hours     before  after  pauses of over ten minutes")
    for every_s in (1.0, 10.0, 60.0, 240.0):
        before, after = (len(simulate(scaling, at_random(every_s)).zeroed_at) for scaling in (BEFORE, AFTER))
        pauses = num_longer(at_random(every_s), 600.0)
        print(f"a request of 0.1 s every {every_s:4.0f} s  {before:7} {after:6} {pauses:7}")
    for name, scaling in (("before", BEFORE), ("after", AFTER)):
        (zeroed_at,) = simulate(scaling, [Request(1.0)]).zeroed_at
        print(f"after its only request: at zero within {zeroed_at:.0f} s ({name})")


if __name__ == "__main__":
    main()
