import signal
import subprocess
import sys

import pytest

# The signal arrives inside a finalizer, where Python discards the exception of its handler.
LOSING = """
import os, signal, time
from services.cli.signals import end_on_signals

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), {number})

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background bequeaths that it is ignored
end_on_signals()
try:
    Finalized()
    print("alive", flush=True)
    time.sleep(60)
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_lost_in_a_finalizer_ends_the_process_all_the_same(number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-c", LOSING.format(number=int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == status
    assert ended.stdout.splitlines() == ["alive", "cleaned up"]
    assert "Exception ignored" not in ended.stderr


def test_other_errors_of_finalizers_are_reported_as_before() -> None:
    failing = LOSING.replace("os.kill(os.getpid(), {number})", "raise ValueError").replace("time.sleep(60)", "")
    ended = subprocess.run([sys.executable, "-c", failing], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert "ValueError" in ended.stderr
