"""The limit on requests in flight converges as expected before simulated servers, on a clock of the test's own."""

import random
from collections.abc import Callable, Sequence

from services.core.admission.concurrency_limit import ConcurrencyLimit

FLOOR = 32
CEILING = 1024


def on_cpu(items: float) -> float:
    """Seconds for a batch that a few items keep busy: throughput is the same whatever the batch."""
    return 0.005 + 0.030 * items


def on_gpu(items: float) -> float:
    """Seconds for a batch that hardly takes longer than one item: throughput grows with the batch."""
    return 0.008 + 0.0002 * items


class BatchServer:
    """Computes one batch of requests after the other; each of `offered` clients always has a request in flight.

    `costs` are those of the kinds of requests, one of which each request is, by chance; `noise` is the standard
    deviation of a batch's time, as a share of it.
    """

    def __init__(
        self,
        seconds_for: Callable[[float], float],
        *,
        max_batch_size: int = 64,
        costs: Sequence[float] = (1.0,),
        noise: float = 0.0,
    ) -> None:
        self.seconds_for = seconds_for
        self.max_batch_size = max_batch_size
        self.costs = costs
        self.noise = noise
        self.now = 0.0
        self.num_answered = 0
        self.limits: list[int] = []
        self.limit = ConcurrencyLimit(floor=FLOOR, ceiling=CEILING, clock=lambda: self.now)
        self._chance = random.Random(1)
        self._waiting: list[tuple[float, float]] = []

    def run(self, num_batches: int, *, offered: int = 2 * CEILING) -> None:
        for _ in range(num_batches):
            while len(self._waiting) < min(self.limit.limit, offered):
                self._waiting.append((self._chance.choice(self.costs), self.now))
                self.limit.note_begun(len(self._waiting))
            batch, self._waiting = self._waiting[: self.max_batch_size], self._waiting[self.max_batch_size :]
            seconds = self.seconds_for(sum(cost for cost, _ in batch))
            self.now += seconds * self._chance.lognormvariate(0, self.noise)
            for cost, began in batch:
                self.limit.note_answered(cost, began)
            self.num_answered += len(batch)
            self.limits.append(self.limit.limit)

    @property
    def mean_limit(self) -> float:
        return sum(self.limits) / len(self.limits)


def test_a_server_that_more_requests_make_no_faster_keeps_the_least() -> None:
    server = BatchServer(on_cpu)
    server.run(1000)
    assert server.mean_limit < 1.1 * FLOOR
    assert max(server.limits) <= 1.5 * FLOOR


def test_noise_is_not_taken_for_speed() -> None:
    server = BatchServer(on_cpu, noise=0.3)
    server.run(3000)
    assert server.mean_limit < 1.5 * FLOOR


def test_a_server_that_larger_batches_make_faster_gets_enough_to_fill_them() -> None:
    server = BatchServer(on_gpu)
    server.run(2000)
    full_batches_per_s = 64 / on_gpu(64)
    assert server.num_answered / server.now > 0.9 * full_batches_per_s
    assert max(server.limits) <= 3 * 64


def test_requests_that_run_side_by_side_at_little_cost_are_let_in_up_to_the_most() -> None:
    """As the answers of a language model on a GPU, of which each step makes a token for all."""
    server = BatchServer(lambda items: 2.0 + 0.001 * items, max_batch_size=CEILING)
    server.run(200)
    assert max(server.limits) == CEILING


def test_requests_of_a_thousandfold_cost_among_others_change_nothing() -> None:
    server = BatchServer(on_cpu, costs=[1.0] * 99 + [100.0])
    server.run(2000)
    assert server.mean_limit < 1.5 * FLOOR
    fast = BatchServer(on_gpu, costs=[1.0] * 9 + [10.0])
    fast.run(5000)
    assert fast.mean_limit > 1.25 * FLOOR


def test_light_requests_after_heavy_ones_are_not_taken_for_a_faster_server() -> None:
    server = BatchServer(on_cpu, costs=[10.0])
    server.run(500)
    server.costs = [1.0]
    server.limits.clear()
    server.run(500)
    assert server.mean_limit < 1.1 * FLOOR


def test_a_limit_stays_while_fewer_requests_come_than_it_lets_in() -> None:
    server = BatchServer(on_gpu)
    server.run(500)
    reached = server.limit.limit
    assert reached > 1.25 * FLOOR
    server.run(2000, offered=4)
    assert server.limit.limit == reached


def test_a_server_that_becomes_slower_gets_less() -> None:
    server = BatchServer(on_gpu)
    server.run(500)
    server.seconds_for = on_cpu
    server.run(500)
    server.limits.clear()
    server.run(1000)
    assert server.mean_limit < 1.2 * FLOOR


def test_the_least_is_not_over_the_most() -> None:
    limit = ConcurrencyLimit(floor=32, ceiling=4)
    assert limit.limit == 4
