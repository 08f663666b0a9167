"""A real supervisor over real child processes, with real signals."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from services.cli.supervisor import STOP_MARGIN_S
from tests.kept_port import kept_port

pytestmark = pytest.mark.process

POLL_S = 0.02
ROOT = Path(__file__).parents[2]


def until(condition: Callable[[], bool]) -> None:
    """Poll until it holds, since other processes send no events; the test's timeout bounds the wait."""
    while not condition():
        time.sleep(POLL_S)


class Supervised:
    """One supervisor process, the notes of its children and what it printed."""

    def __init__(
        self,
        folder: Path,
        modes: dict[str, str],
        *,
        ports: dict[str, int],
        needs: dict[str, list[str]],
        drain_timeout_s: float,
        hung_after_s: float,
    ) -> None:
        self.folder = folder
        self._notes = folder / "notes"
        self._notes.touch()
        self._output = folder / "output"
        programs = [
            {
                "name": name,
                "package": "tests.supervised_program",
                "host": "127.0.0.1",
                "port": ports[name],
                "port_variable": f"FOVEA_{name.upper()}_PORT",
                "needs": needs.get(name, []),
                "environment": {
                    "PROGRAM_NAME": name,
                    "PROGRAM_NOTES": str(self._notes),
                    "PROGRAM_MODE": mode,
                    "PROGRAM_PORT": str(ports[name]),
                },
            }
            for name, mode in modes.items()
        ]
        arguments = json.dumps({"programs": programs, "drain_timeout_s": drain_timeout_s, "hung_after_s": hung_after_s})
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.supervising", arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=subprocess.STDOUT,
                # Of its own group, so that a Ctrl-C can be sent to it and whatever shares its terminal.
                start_new_session=True,
            )

    def output(self) -> str:
        return self._output.read_text()

    def notes(self) -> list[tuple[str, str]]:
        """Program and what befell it, in order."""
        return [(line.split()[0], line.split()[1]) for line in self._notes.read_text().splitlines()]

    def pids(self, name: str) -> list[int]:
        lines = [line.split() for line in self._notes.read_text().splitlines()]
        return [int(pid) for program, what, pid in lines if (program, what) == (name, "started")]

    def until_ready(self) -> None:
        until(lambda: "all set" in self.output())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        # The children end with it; nothing may be left for the next test.
        until(lambda: not any(is_running(pid) for name in "abc" for pid in self.pids(name)))


def is_running(pid: int) -> bool:
    """Whether a process still does anything: one that has ended but was not collected does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []
    ports_of_the_test = contextlib.ExitStack()

    def start(
        *,
        ports: dict[str, int] | None = None,
        needs: dict[str, list[str]] | None = None,
        drain_timeout_s: float = 30,
        hung_after_s: float = 3600,
        packages: Sequence[str] = (),
        **modes: str,
    ) -> Supervised:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        for name in packages:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text("raise SystemExit('not ours')")
        kept = {name: ports_of_the_test.enter_context(kept_port()) for name in modes}
        chosen = {**kept, **(ports or {})}
        limits = {"drain_timeout_s": drain_timeout_s, "hung_after_s": hung_after_s}
        started.append(Supervised(folder, modes, ports=chosen, needs=needs or {}, **limits))
        return started[-1]

    with ports_of_the_test:
        yield start
        for supervised in started:
            supervised.end()


Supervise = Callable[..., Supervised]


def test_all_programs_are_started_and_announced_once_all_are_ready(supervise: Supervise) -> None:
    supervised = supervise(a="serve", b="serve")
    supervised.until_ready()
    output = supervised.output()
    assert "a        | hello from a" in output
    assert "b        | hello from b" in output
    announcement = output[output.index("Ready in ") :]
    assert announcement.count("http://127.0.0.1:") == 2


def test_what_a_program_lacks_that_is_ready_nonetheless_is_told(supervise: Supervise) -> None:
    supervised = supervise(a="serve", c="serve", needs={"a": ["b"]})
    (supervised.folder / "b-is-known").touch()
    supervised.until_ready()
    assert "Not served:" not in supervised.output()
    lacking = supervise(c="serve")
    lacking.until_ready()
    announcement = lacking.output()[lacking.output().index("Ready in ") :]
    assert "Not served:\n  c        b: no b yet\n" in announcement


def test_packages_of_the_users_own_that_are_called_as_ours_are_not_taken_for_ours(supervise: Supervise) -> None:
    supervised = supervise(a="serve", packages=("services", "gateway"))
    supervised.until_ready()


def test_what_a_program_prints_moves_no_cursor(supervise: Supervise) -> None:
    supervised = supervise(a="serve")
    supervised.until_ready()
    assert r"a        | \x1b[2Jcleared\u202e" in supervised.output()
    assert not set("\x1b\u202e") & set(supervised.output())


def test_a_program_is_announced_once_what_it_needs_is_well_and_until_then_is_told_to_be_late(
    supervise: Supervise,
) -> None:
    supervised = supervise(a="serve", needs={"a": ["b"]})
    until(lambda: "hello from a" in supervised.output())
    until(
        lambda: supervised.output().count("  a        b: no b yet\n") >= 3
    )  # reminders, each longer than a look at the check
    assert "all set" not in supervised.output()
    (supervised.folder / "b-is-known").touch()
    supervised.until_ready()


def test_a_service_that_never_gets_ready_is_told_with_its_own_reason_and_the_others_with_their_addresses(
    supervise: Supervise,
) -> None:
    supervised = supervise(a="serve", b="load", c="serve", needs={"a": ["b"]})
    until(lambda: "  b        no b yet\n" in supervised.output())
    listed = r"Ready:\n  a +http://127\.0\.0\.1:\d+\n  c +http://127\.0\.0\.1:\d+\n"
    until(lambda: re.search(listed, supervised.output()) is not None)
    assert "  a        b:" not in supervised.output()


@pytest.mark.parametrize("how", ["terminated", "interrupted from the keyboard"])
def test_when_it_is_told_to_stop_the_first_program_stops_before_the_others(supervise: Supervise, how: str) -> None:
    supervised = supervise(a="serve", b="serve", c="serve")
    supervised.until_ready()
    if how == "terminated":
        supervised.process.terminate()
    else:
        os.killpg(supervised.process.pid, signal.SIGINT)
    assert supervised.process.wait() == 0
    assert "Stopping; requests in progress have up to 30 s. Another Ctrl-C stops at once.\n" in supervised.output()
    stopping = [note for note in supervised.notes() if note[1] != "started"]
    assert stopping[:2] == [("a", "SIGTERM"), ("a", "ended")]
    assert sorted(stopping[2:]) == [("b", "SIGTERM"), ("b", "ended"), ("c", "SIGTERM"), ("c", "ended")]


def test_a_program_that_dies_is_started_again_and_the_others_are_left_alone(supervise: Supervise) -> None:
    supervised = supervise(a="serve", b="serve")
    supervised.until_ready()
    os.kill(supervised.pids("b")[0], signal.SIGKILL)
    until(lambda: len(supervised.pids("b")) == 2)
    assert "b        | exited with status -9; restarting it in 0.05 s" in supervised.output()
    assert len(supervised.pids("a")) == 1


def test_a_program_that_was_stopped_is_killed_and_started_again(supervise: Supervise) -> None:
    supervised = supervise(a="serve", b="serve", hung_after_s=1)
    until(lambda: "b        | asked whether it lives" in supervised.output())
    os.kill(supervised.pids("b")[0], signal.SIGSTOP)
    until(lambda: len(supervised.pids("b")) == 2)
    assert "b        | has failed /livez for 1 s; stopping it" in supervised.output()
    assert "b        | exited with status -9; restarting it in 0.05 s" in supervised.output()
    assert len(supervised.pids("a")) == 1


def test_a_program_that_is_stopped_while_it_loads_is_left_alone(supervise: Supervise) -> None:
    supervised = supervise(a="load", b="serve", hung_after_s=0.5)
    until(lambda: "b        | asked whether it lives" in supervised.output() and bool(supervised.pids("a")))
    for name in "ab":
        os.kill(supervised.pids(name)[0], signal.SIGSTOP)
    until(lambda: len(supervised.pids("b")) == 2)  # by then the other, had it started, would be seen to hang
    assert len(supervised.pids("a")) == 1
    os.kill(supervised.pids("a")[0], signal.SIGCONT)


def test_a_program_that_never_gets_ready_ends_everything_with_a_failure(supervise: Supervise) -> None:
    supervised = supervise(a="serve", b="fail")
    assert supervised.process.wait() == 1
    assert supervised.output().count("b        | cannot go on") == 3
    assert "exited with status 7 3 times before it was ready" in supervised.output()
    assert supervised.notes()[-1] == ("a", "ended") or not supervised.pids("a")


def test_a_program_whose_settings_are_wrong_is_not_started_again(supervise: Supervise) -> None:
    supervised = supervise(a="serve", b="misset")
    assert supervised.process.wait() == 1
    assert "b        | FOVEA_NOSUCH: there is no such setting\n" in supervised.output()
    assert f"b        | exited with status {os.EX_CONFIG} for its settings; giving up\n" in supervised.output()
    assert len(supervised.pids("b")) == 1


def test_no_program_outlives_a_supervisor_that_was_killed(supervise: Supervise) -> None:
    supervised = supervise(a="serve", b="serve")
    supervised.until_ready()
    supervised.process.kill()
    until(lambda: {("a", "ended"), ("b", "ended")} <= set(supervised.notes()))


def test_a_program_that_ignores_the_signal_is_killed_after_its_drain_time(supervise: Supervise) -> None:
    supervised = supervise(a="stubborn", drain_timeout_s=0.1 - STOP_MARGIN_S)
    supervised.until_ready()
    supervised.process.terminate()
    assert supervised.process.wait() == 0
    assert "did not exit within" in supervised.output()
    assert not is_running(supervised.pids("a")[0])


def test_a_second_signal_kills_without_waiting(supervise: Supervise) -> None:
    supervised = supervise(a="stubborn", drain_timeout_s=3600)
    supervised.until_ready()
    supervised.process.terminate()
    until(lambda: ("a", "SIGTERM") in supervised.notes())
    supervised.process.terminate()
    assert supervised.process.wait() == 0


def test_a_taken_port_is_named_with_its_setting_before_anything_is_started(supervise: Supervise) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        supervised = supervise(a="serve", b="serve", ports={"b": port})
        assert supervised.process.wait() == 1
    assert f"b cannot listen on 127.0.0.1:{port}" in supervised.output()
    assert "FOVEA_B_PORT" in supervised.output()
    assert supervised.notes() == []
