"""Adaptive limit on a service's concurrent requests: as many as raise its throughput, and no more.

By Little's law latency is the number of requests in flight divided by the throughput. Beyond what a service can work
on at once, another request in flight does not raise the throughput; it only makes all others wait. Where that begins
depends on the model, the device and the mix of requests, so it is measured, as in Envoy's adaptive concurrency filter
(gradient controller): latency with few requests in flight, measured again from time to time, is compared with latency
now.
https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/adaptive_concurrency_filter

Two things differ, because requests are computed in batches:

- The latency to compare with is that of `floor` requests in flight, not of a single one: a request that shares a batch
  takes longer than alone, and yet costs less.
- Latency may rise as long as throughput rises with it. What must not fall is Kleinrock's power, throughput over
  latency. With n times the floor in flight, throughput must be at least sqrt(n) times as high, so latency at most
  sqrt(n) times as long. Where a batch takes as long as its items do one by one, throughput stays the same, and the
  limit stays at the floor; where a batch takes hardly longer than one item, the limit rises until batches are full.
  L. Kleinrock, Power and deterministic rules of thumb for probabilistic problems in computer communications, ICC 1979.

Requests differ a thousandfold in cost, so each is compared with others of its kind.
"""

import math
import time
from collections.abc import Callable, Hashable

GROWTH = 1.4
# With n times the floor in flight, latency may be this power of n times that at the floor.
SLOWDOWN_EXPONENT = 1 / 2
# The limit falls only where latency exceeds what it may be by this factor: every window is noisy.
TOLERANCE = 1.1
# A window of means lasts at least this long, and covers at least twice as many requests as the limit.
MIN_WINDOW_S = 0.5
# Requests that never had this share of the limit in flight beside them tell nothing about the limit.
FULL_SHARE = 0.9
# How long a limit over the floor is trusted before the latency at the floor is measured again: in seconds, and in
# windows, so that long requests do not spend their time on measuring.
BASELINE_AGE_S = 10.0
BASELINE_AGE_WINDOWS = 50
# Windows that a limit is kept after a higher one did not help: doubled each time, up to the greatest.
MAX_PATIENCE = 64
# Weight of the newest window in the latencies at the floor.
BASELINE_SMOOTHING = 0.25


class ConcurrencyLimit:
    """Keeps `limit` between `floor` and `ceiling`; must be told of every request as it begins and as it is answered."""

    def __init__(self, *, floor: int, ceiling: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.floor = min(floor, ceiling)
        self.limit = self.floor
        self._ceiling = ceiling
        self._clock = clock
        self._baselines: dict[Hashable, float] = {}
        self._baselines_taken_at = clock()
        self._num_windows = 0  # since then
        self._after_baseline = self.floor
        self._patience = 1
        self._num_to_keep = 0
        self._last_full_at = -math.inf
        self._begin_window()

    def note_begun(self, num_inflight: int) -> None:
        """Note that a request has begun, with which `num_inflight` are in flight."""
        if num_inflight >= FULL_SHARE * self.limit:
            self._last_full_at = self._clock()

    def note_answered(self, kind: Hashable, began: float) -> None:
        """Note that a request of this kind, which began at this reading of the clock, is answered now.

        Requests that began before the limit last changed are left out, and so are those during which the limit was
        never nearly reached: they tell nothing about it.
        """
        if self._last_full_at < began or began < self._window_began:
            return
        num, total_s = self._window.get(kind, (0, 0.0))
        self._window[kind] = (num + 1, total_s + self._clock() - began)
        self._num_recorded += 1
        if self._num_recorded >= 2 * self.limit and self._clock() >= self._window_began + MIN_WINDOW_S:
            self._end_window()
            self._begin_window()

    def _begin_window(self) -> None:
        self._window: dict[Hashable, tuple[int, float]] = {}
        self._num_recorded = 0
        self._window_began = self._clock()

    def _end_window(self) -> None:
        self._num_windows += 1
        if self.limit == self.floor:
            self._take_baselines()
            self._leave_floor()
            return
        slowdown = self._slowdown()
        allowed = (self.limit / self.floor) ** SLOWDOWN_EXPONENT
        if slowdown is None or self._are_baselines_old():
            self._after_baseline = self.limit
            self.limit = self.floor
        elif slowdown > TOLERANCE * allowed:
            self.limit = max(self.floor, int(self.limit / GROWTH))
            self._num_to_keep = self._patience
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        elif self._num_to_keep:
            self._num_to_keep -= 1
        elif slowdown <= allowed:
            self._grow()
            self._patience = 1

    def _take_baselines(self) -> None:
        for kind, (num, total_s) in self._window.items():
            known_s = self._baselines.get(kind, total_s / num)
            self._baselines[kind] = known_s + BASELINE_SMOOTHING * (total_s / num - known_s)
        self._baselines_taken_at = self._clock()
        self._num_windows = 0

    def _leave_floor(self) -> None:
        if self._after_baseline > self.floor:
            self.limit, self._after_baseline = self._after_baseline, self.floor
        elif self._num_to_keep:
            self._num_to_keep -= 1
        else:
            self._grow()

    def _grow(self) -> None:
        self.limit = min(self._ceiling, max(self.limit + 1, int(self.limit * GROWTH)))

    def _slowdown(self) -> float | None:
        """Return latency in this window over latency at the floor; None where most requests are of unknown kinds."""
        known = [
            (num, total_s, self._baselines[kind])
            for kind, (num, total_s) in self._window.items()
            if kind in self._baselines
        ]
        if 2 * sum(num for num, _, _ in known) < self._num_recorded:
            return None
        return sum(total_s for _, total_s, _ in known) / sum(num * baseline_s for num, _, baseline_s in known)

    def _are_baselines_old(self) -> bool:
        age_s = self._clock() - self._baselines_taken_at
        return age_s > BASELINE_AGE_S and self._num_windows > BASELINE_AGE_WINDOWS
