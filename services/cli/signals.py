"""Signals that end a process, also where Python would lose them.

Python discards an exception that a signal's handler raises inside a finalizer or a weak reference's callback; importing
a module runs such callbacks. The process would go on as if nobody had asked it to end.
"""

import signal
import sys
import threading
from types import FrameType

# Time for the finalizer that lost a signal to return.
REDELIVERY_DELAY_S = 0.05


class Terminated(SystemExit):
    """The end of the process by SIGTERM, with status 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def end_on_signals() -> None:
    """Raise Terminated at SIGTERM, and send SIGTERM and SIGINT again if their exception was discarded.

    Must be called in the main thread. Servers and trainings install handlers of their own later.
    """
    # PID 1 of a container ignores signals without a handler.
    signal.signal(signal.SIGTERM, _terminate)
    report = sys.unraisablehook

    def redeliver(discarded: "sys.UnraisableHookArgs") -> None:
        number = _number(discarded.exc_value)
        if number is None:
            report(discarded)
            return
        again = threading.Timer(REDELIVERY_DELAY_S, signal.pthread_kill, (threading.main_thread().ident, number))
        again.daemon = True
        again.start()

    sys.unraisablehook = redeliver


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _number(error: BaseException | None) -> signal.Signals | None:
    """Return the signal whose handler raised this error."""
    if isinstance(error, Terminated):
        return signal.SIGTERM
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
