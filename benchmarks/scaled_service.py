"""A service of several pods behind gateways and under an autoscaler, second by second.

The project's own code decides how a pod's limit of concurrent requests grows (`ConcurrencyLimit`, on a simulated
clock), how long the queue may be (`line_length` and the constants of `Permits`), and for how long the gateways count a
request as recent (`RecentRequests`).

The rest is a model. Requests are a flow that the ready pods share evenly. Of n requests in a pod each takes `base_s + n
* each_s`; a pod works on `room` at a time, and the others wait inside. The pods' own queues and the gateways' are one
queue here: all of them are as long as `line_length` says, and one that is refused is refused to the client.
"""

import functools
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.autoscalers import POLL_S, SYNC_S, Activation, PodAutoscaler, Readings, Scaling
from gateway.addresses import FIRST_PERMITS
from gateway.admission import RecentRequests
from gateway.settings import GatewaySettings
from services.core.admission.admission import FULL_SHARE, ConcurrencyLimit, line_length
from services.core.admission.permits import CALM_S, LINE_S, MOST_NEED_S
from services.core.settings import ServiceSettings

STEP_S = 1.0
SCRAPE_S = 15.0
# Of `rate` in the chart's queries.
RATE_S = 60.0
# From that share on the pods are busy, and what they answer then is remembered so long.
BUSY_SHARE = 0.7
CAPACITY_S = 6 * 3600.0
NUM_GATEWAYS = 2
DEADLINE_S = 60.0
MAX_QUEUED = GatewaySettings.model_fields["max_queued_requests"].default
MAX_CONCURRENCY = ServiceSettings.model_fields["max_concurrency"].default
LEARNING_S = 120


@dataclass(frozen=True)
class Service:
    """What a request takes by how many a pod has, and how long a pod starts; `ready_s` is what the chart allows for it.

    With `limit` a pod has that one from its start on, and learns none.
    """

    base_s: float
    each_s: float
    start_s: float
    ready_s: float
    room: int = 10**9
    has_cache: bool = False
    limit: int | None = None

    def seconds(self, num_concurrent: float) -> float:
        num_running = min(max(num_concurrent, 1.0), self.room)
        return (self.base_s + num_running * self.each_s) * max(1.0, num_concurrent / self.room)

    @property
    def requests_per_s(self) -> float:
        """What one pod does at the limit that it learns."""
        return self.limits[-1] / self.seconds(self.limits[-1])

    @functools.cached_property
    def limits(self) -> Sequence[int]:
        """The limit that a pod has after so many seconds under full load."""
        if self.limit is not None:
            return [self.limit]
        now, inflight = 0.0, 0
        limit = ConcurrencyLimit(floor=FIRST_PERMITS, ceiling=MAX_CONCURRENCY, clock=lambda: now)
        running: list[tuple[float, float]] = []
        found: list[int] = []
        jitter = random.Random(0)
        while len(found) < LEARNING_S:
            while inflight < limit.limit:
                inflight += 1
                limit.note_begun(inflight)
                heapq.heappush(running, (now + self.seconds(limit.limit) * jitter.uniform(0.8, 1.2), now))
            now, began = heapq.heappop(running)
            inflight -= 1
            limit.note_answered("", began)
            found += [limit.limit] * (int(now) - len(found))
        # It goes down to the floor now and then, to measure.
        usual = sorted(found)[len(found) * 3 // 4]
        return [max(FIRST_PERMITS, min(usual, one)) for one in found[: found.index(usual)]] + [usual]


@dataclass
class Pod:
    """`full_s` are the seconds that it has been full so far, which its limit follows."""

    ready_at: float
    full_s: float = 0.0


@dataclass(frozen=True)
class Seen:
    """What Prometheus knows since its last scrape; of the counters, the rates."""

    inflight: float = 0.0
    queued: float = 0.0
    refused_per_s: float = 0.0
    answered_per_s: float = 0.0
    # Of one gateway: each has all of it.
    limit: float = FIRST_PERMITS
    # Of vLLM: the mean share of the cache, and the requests that wait inside.
    cache: float | None = None
    waiting: float | None = None
    num_ready: int = 0
    # What a busy pod answered.
    capacity_per_s: float = 0.0


@dataclass
class Outcome:
    """What became of the requests, and of the pods."""

    num_requests: float = 0.0
    num_refused: float = 0.0
    pod_s: float = 0.0
    # How long requests waited, how long they then took, and how many they were.
    answers: list[tuple[float, float, float]] = field(default_factory=list)
    counts: list[tuple[float, int]] = field(default_factory=list)
    zeroed_at: list[float] = field(default_factory=list)
    woken_at: list[float] = field(default_factory=list)

    @property
    def refused_share(self) -> float:
        return self.num_refused / max(1.0, self.num_requests)

    @property
    def flaps(self) -> int:
        """How often the number of pods turned round."""
        numbers = [number for _, number in self.counts]
        ways = [later > earlier for earlier, later in itertools.pairwise(numbers)]
        return sum(one != other for one, other in itertools.pairwise(ways))

    @property
    def longest_wait_s(self) -> float:
        return max((waited for waited, _, _ in self.answers), default=0.0)

    @property
    def most_pods(self) -> int:
        return max(number for _, number in self.counts)

    def latency_s(self, share: float) -> float:
        """The latency that this share of the answers does not exceed."""
        left = share * sum(number for _, _, number in self.answers)
        for seconds, number in sorted((waited + took, number) for waited, took, number in self.answers):
            left -= number
            if left <= 0:
                return seconds
        return 0.0


@dataclass(frozen=True)
class Faults:
    """Spans of time in which Prometheus does not answer, and times at which every gateway is replaced."""

    prometheus_away: Sequence[tuple[float, float]] = ()
    gateways_replaced: Sequence[float] = ()

    def has_prometheus(self, now: float) -> bool:
        return not any(since <= now < until for since, until in self.prometheus_away)


@dataclass(frozen=True)
class Start:
    """How a simulation begins: the ready pods, how long requests wait for the first one, and what will fail."""

    num_pods: int = 1
    seed: int = 0
    wait_s: float = 0.0
    faults: Faults = field(default_factory=Faults)


# The requests that arrive in each second.
Trace = Sequence[int]
Read = Callable[[Seen], float | None]
# A trigger of this name asks the gateways themselves.
ARRIVALS = "arrivals"


class Simulation:
    """A service from a number of ready pods on."""

    def __init__(
        self, service: Service, scaling: Scaling, read: Mapping[str, Read], start: Start | None = None
    ) -> None:
        start = start or Start()
        self.outcome = Outcome(counts=[(0.0, start.num_pods)])
        self._service, self._scaling, self._read = service, scaling, read
        self._faults = start.faults
        self._deadline_s = DEADLINE_S + start.wait_s
        self._now = 0.0
        self._random = random.Random(start.seed)
        self._pods = [Pod(0.0) for _ in range(start.num_pods)]
        self._autoscaler, self._activation = PodAutoscaler(scaling), Activation(scaling)
        self._recent = self._gateways()
        self._inflight = 0.0
        self._queue: deque[list[float]] = deque()  # the time and the number of requests
        self._num_queued = 0.0
        self._refused_at = -math.inf
        self._answered = self._refused = 0.0
        self._scraped: deque[tuple[float, float, float]] = deque()
        self._seen = Seen()
        self._num_ready: deque[int] = deque(maxlen=int(RATE_S / SCRAPE_S))
        self._busy: deque[tuple[float, float]] = deque()

    def _gateways(self) -> list[RecentRequests]:
        return [RecentRequests(clock=lambda: self._now) for _ in range(NUM_GATEWAYS)]

    def run(self, trace: Trace) -> Outcome:
        scrape_at, poll_at, sync_at = (self._random.uniform(0, every) for every in (SCRAPE_S, POLL_S, SYNC_S))
        replaced = deque(sorted(self._faults.gateways_replaced))
        for num_arrived in trace:
            self._serve(num_arrived)
            self._now += STEP_S
            if replaced and replaced[0] <= self._now:
                replaced.popleft()
                self._recent = self._gateways()
            if scrape_at <= self._now:
                scrape_at += SCRAPE_S
                self._scrape()
            if poll_at <= self._now:
                poll_at += POLL_S
                self._set_pods(self._activation.poll(self._now, len(self._pods), self._readings()))
            if sync_at <= self._now:
                sync_at += SYNC_S
                ready = len(self._ready())
                self._set_pods(self._autoscaler.sync(self._now, len(self._pods), ready, self._readings()))
        return self.outcome

    def _ready(self) -> list[Pod]:
        return [pod for pod in self._pods if pod.ready_at <= self._now]

    def _limit_of(self, ready: Sequence[Pod]) -> int:
        limits = self._service.limits
        return sum([limits[min(int(pod.full_s), len(limits) - 1)] for pod in ready])

    def _serve(self, num_arrived: float) -> None:
        """Let a second pass."""
        outcome = self.outcome
        outcome.num_requests += num_arrived
        outcome.pod_s += len(self._pods) * STEP_S
        if not (num_arrived or self._num_queued or self._inflight > 1e-6):
            return
        ready = self._ready()
        if not self._scaling.min_pods:
            with self._random.choice(self._recent).counted():
                pass
        if num_arrived:
            self._queue.append([self._now, num_arrived])
        before, self._num_queued = self._num_queued, self._num_queued + num_arrived
        if not ready:
            self._refuse(self._num_queued - MAX_QUEUED)
            while self._queue and self._queue[0][0] < self._now - self._deadline_s:
                self._refuse(self._queue[0][1], from_front=True)
            return
        limit = self._limit_of(ready)
        admitted, seconds, left = self._flow(limit, len(ready))
        self._answered += self._inflight + admitted - left
        self._inflight = left
        self._answer(admitted, seconds)
        if self._num_queued:
            self._refuse(self._num_queued - self._longest_queue(before, num_arrived, limit, seconds))
        if left > limit / 2:
            # Requests come at random, so that now and then there are more.
            share_full = 0.5 * math.erfc((FULL_SHARE * limit - left) / math.sqrt(2 * left))
            for pod in ready:
                pod.full_s += share_full * STEP_S

    def _flow(self, limit: int, num_ready: int) -> tuple[float, float, float]:
        """Return how many requests are admitted, how long they take, and how many are in flight in the end."""
        left = self._inflight
        admitted = seconds = 0.0
        for _ in range(2):
            seconds = self._service.seconds((self._inflight + left) / 2 / num_ready)
            stay = math.exp(-STEP_S / seconds)
            in_a_step = seconds / STEP_S * (1 - stay)
            # As many as keep those in flight at the limit.
            admitted = min(self._num_queued, max(0.0, (limit - self._inflight * stay) / in_a_step))
            left = self._inflight * stay + admitted * in_a_step
        return admitted, seconds, left

    def _longest_queue(self, before: float, num_arrived: float, limit: int, seconds: float) -> float:
        """As `Permits` has it: a share of the limit or what is served soon, more in a burst; and nobody too late."""
        longest = max(line_length(limit), LINE_S * limit / seconds)
        if not before and self._now >= self._refused_at + CALM_S:
            longest = max(longest, MAX_QUEUED)
        in_time = (DEADLINE_S - MOST_NEED_S) * limit / seconds
        return min(max(longest, self._num_queued - num_arrived), in_time)

    def _answer(self, admitted: float, seconds: float) -> None:
        left = self._num_queued = self._num_queued - admitted
        if left <= 1e-6:
            self._num_queued = 0.0
        while admitted > 1e-9 and self._queue:
            oldest = self._queue[0]
            number = min(admitted, oldest[1])
            waited = self._now - oldest[0]
            if waited + seconds <= self._deadline_s:
                self.outcome.answers.append((waited, seconds, number))
            else:
                self.outcome.num_refused += number
            admitted -= number
            oldest[1] -= number
            if oldest[1] <= 1e-6:
                self._queue.popleft()

    def _refuse(self, number: float, *, from_front: bool = False) -> None:
        """Refuse requests, the newest where not the oldest are meant."""
        if number <= 1e-6:
            return
        self._refused_at = self._now
        self._refused += number
        self._num_queued = max(0.0, self._num_queued - number)
        self.outcome.num_refused += number
        end = 0 if from_front else -1
        while number > 1e-9 and self._queue:
            taken = min(number, self._queue[end][1])
            number -= taken
            self._queue[end][1] -= taken
            if self._queue[end][1] <= 1e-6:
                del self._queue[end]

    def _scrape(self) -> None:
        ready = self._ready()
        self._scraped.append((self._now, self._refused, self._answered))
        while self._scraped[0][0] < self._now - RATE_S:
            self._scraped.popleft()
        since, refused, answered = self._scraped[0]
        seconds = max(self._now - since, SCRAPE_S)
        each, room = self._inflight / max(1, len(ready)), self._service.room
        # A moment has whole requests.
        inflight = math.floor(self._inflight + self._random.random())
        self._seen = Seen(
            inflight=inflight,
            queued=self._num_queued,
            refused_per_s=(self._refused - refused) / seconds,
            answered_per_s=(self._answered - answered) / seconds,
            limit=self._limit_of(ready) or FIRST_PERMITS,
            cache=min(1.0, each / room) if self._service.has_cache and ready else None,
            waiting=max(0.0, each - room) * len(ready) if self._service.has_cache and ready else None,
            num_ready=len(ready),
            capacity_per_s=self._capacity((self._answered - answered) / seconds),
        )

    def _capacity(self, per_s: float) -> float:
        """What a pod answered per second while the pods were busy, at the most."""
        ready = self._ready()
        limit = self._limit_of(ready) or FIRST_PERMITS
        self._num_ready.append(len(ready))
        if self._inflight + self._num_queued >= BUSY_SHARE * limit and any(self._num_ready):
            self._busy.append((self._now, per_s * len(self._num_ready) / sum(self._num_ready)))
        while self._busy and self._busy[0][0] < self._now - CAPACITY_S:
            self._busy.popleft()
        return max([one for _, one in self._busy], default=0.0)

    def _readings(self) -> Readings:
        has_prometheus = self._faults.has_prometheus(self._now)
        return {
            trigger.name: float(sum(one.count() for one in self._recent))
            if trigger.name == ARRIVALS
            else self._read[trigger.name](self._seen)
            if has_prometheus
            else None
            for trigger in self._scaling.triggers
        }

    def _set_pods(self, number: int) -> None:
        if number == len(self._pods):
            return
        self.outcome.counts.append((self._now, number))
        if not self._pods:
            self.outcome.woken_at.append(self._now)
        if not number:
            self.outcome.zeroed_at.append(self._now)
        for _ in range(number - len(self._pods)):
            self._pods.append(Pod(self._now + self._service.start_s))
        # Those that are not ready go first, then the youngest.
        del self._pods[number:]
