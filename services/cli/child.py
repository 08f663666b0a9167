"""Run a package as `python -m` would, and end it when its parent process has ended.

The parent keeps the writing end of this process's stdin open and never writes. The system closes it however the parent
ends, `kill -9` included, so no process is left behind; unlike Linux's parent-death signal this works on every POSIX
system.
"""

import gc
import os
import runpy
import signal
import sys
import threading
import time

# Longer than any drain; after it a process that ignores SIGTERM is killed.
LAST_RESORT_S = 120.0


def _end_with_starter() -> None:
    # Not sys.stdin: its lock, held by a waiting thread, would break the interpreter's shutdown.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_RESORT_S)
    os._exit(1)


if __name__ == "__main__":
    # Modules and their classes stay, so collections while they are imported find nothing; the server enables them.
    gc.disable()
    threading.Thread(target=_end_with_starter, name="starter-watch", daemon=True).start()
    package = sys.argv[1]
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(package, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        from services.core.settings import SettingsError

        if not isinstance(ended, SettingsError):
            raise
        print(ended, file=sys.stderr)  # noqa: T201 as Python prints it
        sys.exit(os.EX_CONFIG)  # a status that tells the parent not to try again
