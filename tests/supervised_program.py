"""A process as `fovea up` starts them, in little: `/readyz` on a port, and notes of what befell it in a file.

The notes get a line at each start, signal and end. `/readyz` has a check named `b`, which is well once a file
`b-is-known` lies beside the notes. PROGRAM_MODE: `serve`, `fail` (end at once), `misset` (end for its settings),
`stubborn` (ignore SIGTERM), `load` (never get to its end).
"""

import http.server
import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType

from services.core.settings import SettingsError

NAME = os.environ["PROGRAM_NAME"]
NOTES = Path(os.environ["PROGRAM_NOTES"])
MODE = os.environ["PROGRAM_MODE"]


def note(what: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(f"{NAME} {what} {os.getpid()}\n")


class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/livez":
            print("asked whether it lives")
        is_found = self.path in ("/readyz", "/livez", "/startupz")
        is_loading = MODE == "load" and self.path != "/livez"
        self.send_response(503 if is_loading else 200 if is_found else 404)
        self.end_headers()
        is_known = (NOTES.parent / "b-is-known").exists()
        self.wfile.write(json.dumps({"checks": {"b": {"ok": is_known, "detail": "no b yet"}}}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> int:
    if MODE == "fail":
        note("started")
        print(f"hello from {NAME}")
        print("cannot go on")
        return 7
    if MODE == "misset":
        note("started")
        raise SettingsError("FOVEA_NOSUCH: there is no such setting")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PROGRAM_PORT"])), Ready)

    def on_signal(number: int, frame: FrameType | None) -> None:
        note(signal.Signals(number).name)
        if MODE != "stubborn":
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    # From here on a signal is noted, however soon it comes.
    note("started")
    print(f"hello from {NAME}")
    print("\x1b[2Jcleared\u202e")
    server.serve_forever(poll_interval=0.02)
    note("ended")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
