"""How many items run side by side.

Items that run together share what a step costs whatever its number of items; that is all that they gain. Where most of
the time goes into admitting them (long prompts, short answers), more of them side by side are answered later and no
faster. So the breadth is held where steps take about a tenth of the time: narrower costs more, wider gains little.
"""

# Steps that take less than this share of the time are hardly worth sharing further, those that take more are.
LEAST_SHARE = 0.06
MOST_SHARE = 0.12
# Narrower than this it never gets; it begins with the second.
MIN_BREADTH = 4.0
FIRST_BREADTH = 16.0
# A decision needs so much time of computing, in turns behind which somebody waited.
WINDOW_S = 0.5
NARROWER = 0.7
WIDER = 1.4


class Breadth:
    """`limit` is how many items may run while others wait."""

    def __init__(self) -> None:
        self.limit = FIRST_BREADTH
        self._admit_s = 0.0
        self._step_s = 0.0

    def note(self, num_running: int, admit_s: float, step_s: float) -> None:
        """A turn behind which somebody waited admitted for so long and stepped for so long."""
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
