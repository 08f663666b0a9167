"""The breadth of a running batch: how many items run side by side.

Items that run together gain only in that they share the fixed cost of a step. Where most of the time goes into
admitting them (long prompts, short answers), running more side by side delays them and raises no throughput. So the
breadth is held where steps take about a tenth of the time: narrower costs more, wider gains little.
"""

# The batch becomes narrower where steps take less than the first share of the time, wider where more than the second.
LEAST_SHARE = 0.06
MOST_SHARE = 0.12
# The minimum, and the breadth at the start.
MIN_BREADTH = 4.0
FIRST_BREADTH = 16.0
# Seconds of computing that a decision is based on, in turns during which items waited.
WINDOW_S = 0.5
NARROWER = 0.7
WIDER = 1.4


class Breadth:
    """Adapts `limit`, the number of items that may run while others wait."""

    def __init__(self) -> None:
        self.limit = FIRST_BREADTH
        self._admit_s = 0.0
        self._step_s = 0.0

    def note(self, num_running: int, admit_s: float, step_s: float) -> None:
        """Note how long a turn, during which items waited, took for admitting and for stepping."""
        self._admit_s += admit_s
        self._step_s += step_s
        seconds = self._admit_s + self._step_s
        if seconds < WINDOW_S:
            return
        share = self._step_s / seconds
        if share < LEAST_SHARE:
            self.limit = max(MIN_BREADTH, NARROWER * min(self.limit, num_running))
        elif share > MOST_SHARE:
            self.limit = max(self.limit, WIDER * num_running)
        self._admit_s, self._step_s = 0.0, 0.0
