"""`fovea up`: run the gateway and every service as child processes until Ctrl-C."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from services.cli.programs import Program
from services.core.backoff import backoff_s
from services.core.printable import printable

READY_POLL_S = 0.1
LIVENESS_POLL_S = 1.0
PROBE_TIMEOUT_S = 2.0
# Added to the time that a child has for its own drain.
STOP_MARGIN_S = 5.0
COLOURS = (36, 32, 33, 35, 34)  # ANSI foregrounds that are legible on dark and on light backgrounds


@dataclass(frozen=True)
class RestartPolicy:
    """Timing of restarts: delays double from `first_delay_s` to `max_delay_s`, and are reset after `stable_after_s`.

    A program that ends `max_failed_starts` times without ever having been ready ends everything, and so does one that
    ends for its settings, with status EX_CONFIG. One that has started and whose `/livez` then goes unanswered, or
    fails, for `hung_after_s` is restarted; 0: never.
    """

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    stable_after_s: float = 60.0
    max_failed_starts: int = 3
    hung_after_s: float = 60.0


class PortTaken(Exception):
    """A port in use; the message names the program, the port and the setting to change."""


class Supervisor:
    """Runs programs until it is told to stop; the first one is stopped first, and the others after it has ended."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        output: TextIO,
        drain_timeout_s: float = 30.0,
        policy: RestartPolicy | None = None,
        remind_s: float = 15.0,
    ) -> None:
        self._children = [_Child(program, output, colour) for program, colour in _coloured(programs, output)]
        self._drain_timeout_s = drain_timeout_s
        self._policy = policy or RestartPolicy()
        self._remind_s = remind_s
        self._output = output
        self._stopping = asyncio.Event()
        self._has_failed = False

    async def run(self, farewell: str = "") -> int:
        """Start all programs, print `farewell` once all are ready, and stop all on SIGINT or SIGTERM.

        Returns the exit status: 0 after being told to stop, 1 where a program could not be started. Raises
        PortTaken before anything has been started.
        """
        for child in self._children:
            require_free_port(child.program)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        keepers = [asyncio.create_task(self._keep_running(child)) for child in self._children]
        announcement = asyncio.create_task(self._announce(farewell))
        await self._stopping.wait()
        announcement.cancel()
        if not self._has_failed:
            limit = f"up to {self._drain_timeout_s:g} s"
            self._print(f"Stopping; requests in progress have {limit}. Another Ctrl-C stops at once.")
        await self._stop_all()
        await asyncio.gather(*keepers)
        return 1 if self._has_failed else 0

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            for child in self._children:
                child.kill()
        self._stopping.set()

    async def _keep_running(self, child: "_Child") -> None:
        num_ends = failed_starts = 0
        while not self._stopping.is_set():
            began_s = time.monotonic()
            status = await child.run_once(self._policy.hung_after_s)
            if self._stopping.is_set():
                return
            failed_starts = 0 if child.was_ready else failed_starts + 1
            is_hopeless = status == os.EX_CONFIG
            if failed_starts == self._policy.max_failed_starts or is_hopeless:
                times = "for its settings" if is_hopeless else f"{failed_starts} times before it was ready"
                child.say(f"exited with status {status} {times}; giving up")
                self._has_failed = True
                self._stopping.set()
                return
            num_ends = 1 if time.monotonic() - began_s > self._policy.stable_after_s else num_ends + 1
            delay_s = backoff_s(num_ends, self._policy.first_delay_s, self._policy.max_delay_s)
            child.say(f"exited with status {status}; restarting it in {delay_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _announce(self, farewell: str) -> None:
        began_s = time.monotonic()
        shown: list[_Child] = []
        while late := [child for child in self._children if not child.ready.is_set()]:
            try:
                async with asyncio.timeout(self._remind_s):  # `wait_for` may lose a cancellation, until Python 3.12
                    await late[0].ready.wait()
            except TimeoutError:
                troubles = await _troubles(late)
                told = _told(troubles)
                well = [child for child in self._children if child not in troubles]
                if well and well != shown:
                    told += ["Ready:", *_addresses(well)]
                    shown = well
                self._print(f"Still starting after {time.monotonic() - began_s:.0f} s:", *told)
        ready_s = time.monotonic() - began_s
        # what the gateway needs has been waited for, and a program that is not ours tells no details
        troubles = await _troubles([one for one in self._children if not (one.program.needs or one.program.probe)])
        lines = [*_addresses(self._children), *(["Not served:", *_told(troubles)] if troubles else [])]
        self._print(f"\nReady in {ready_s:.1f} s:", *lines, farewell)

    def _print(self, *lines: str) -> None:
        """Print lines that no program's line comes between."""
        self._output.write("".join(f"{line}\n" for line in lines))
        self._output.flush()

    async def _stop_all(self) -> None:
        first, *others = self._children
        limit_s = self._drain_timeout_s + STOP_MARGIN_S
        await first.stop(limit_s)
        await asyncio.gather(*(child.stop(limit_s) for child in others))


class _Child:
    """One program and the process that runs it now, if any."""

    def __init__(self, program: Program, output: TextIO, colour: int | None) -> None:
        self.program = program
        self.ready = asyncio.Event()
        self._output = output
        prefix = f"{program.name:<9}| "
        self._prefix = prefix if colour is None else f"\x1b[{colour}m{prefix}\x1b[0m"
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    @property
    def was_ready(self) -> bool:
        return self.ready.is_set()

    async def run_once(self, hung_after_s: float) -> int:
        """Start the process, pass its output on, and return its exit status when it ends."""
        self._is_stopping = False
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # or a folder `services` in the working directory would shadow ours
            "-m",
            "services.cli.child",
            self.program.package,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.program.environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C must reach only the supervisor: a child would take the SIGTERM that follows for a second signal.
            start_new_session=True,
        )
        probing = [asyncio.create_task(self._wait_until_ready())]
        if hung_after_s:
            probing.append(asyncio.create_task(self._restart_when_hung(hung_after_s)))
        try:
            await self._forward_output(process)
            return await process.wait()
        finally:
            for task in probing:
                task.cancel()

    async def stop(self, limit_s: float) -> None:
        self._is_stopping = True
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), limit_s)
        except TimeoutError:
            self.say(f"did not exit within {limit_s:g} s; killing it")
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            # With what it has started, such as vLLM.
            os.killpg(self._process.pid, signal.SIGKILL)

    def say(self, line: str) -> None:
        self._output.write(f"{self._prefix}{line}\n")
        self._output.flush()

    async def _forward_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        # Read in pieces, since a line may be longer than any buffer.
        rest = b""
        while piece := await process.stdout.read(65536):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._pass_on(line)
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: bytes) -> None:
        self.say(printable(line.decode(errors="replace").removesuffix("\r"), keep="\t"))

    async def _wait_until_ready(self) -> None:
        while not await _is_ready(self.program):  # noqa: ASYNC110 another process sets no event here
            await asyncio.sleep(READY_POLL_S)
        self.ready.set()

    async def _restart_when_hung(self, hung_after_s: float) -> None:
        """Stop the process, which is then started again, once it has started and hung for this long."""
        while not await _is_well(self.program, "/startupz"):  # noqa: ASYNC110 as above
            await asyncio.sleep(READY_POLL_S)
        hung_since_s: float | None = None
        while hung_since_s is None or time.monotonic() - hung_since_s < hung_after_s:
            await asyncio.sleep(min(LIVENESS_POLL_S, hung_after_s))
            if not await _is_hung(self.program):
                hung_since_s = None
            elif hung_since_s is None:
                hung_since_s = time.monotonic()
        if not self._is_stopping:
            self.say(f"has failed /livez for {hung_after_s:g} s; stopping it")
            await self.stop(STOP_MARGIN_S)


async def _is_ready(program: Program) -> bool:
    """Whether `/readyz` answers 200 and the checks that the program needs pass."""
    try:
        status, body = await get(program, "/readyz")
        checks = json.loads(body)["checks"] if program.needs else {}
        return status == 200 and all(checks[name]["ok"] for name in program.needs)
    except (OSError, ValueError, KeyError):
        # Refused, cut off or timed out: not yet.
        return False


async def _trouble(program: Program, others: Collection[str]) -> str | None:
    """Return the reasons that `/readyz` gives for a program itself, not for others; None where it is ready."""
    try:
        status, body = await get(program, "/readyz")
        failing = {name: str(check["detail"]) for name, check in json.loads(body)["checks"].items() if not check["ok"]}
    except (OSError, ValueError, KeyError):
        return "starting"
    own = [detail if status != 200 else f"{name}: {detail}" for name, detail in failing.items() if name not in others]
    told = [one for one in dict.fromkeys(own) if not any(other.startswith(f"{one} ") for other in own)]
    return "; ".join(told) or (None if status == 200 else "starting")


async def _troubles(late: Sequence["_Child"]) -> dict["_Child", str]:
    """Return why programs are not ready, in their own words; one that only waits for others is not to blame."""
    names = {child.program.name for child in late}
    troubles = [(child, await _trouble(child.program, names - {child.program.name})) for child in late]
    return {child: trouble for child, trouble in troubles if trouble is not None}


def _told(troubles: Mapping["_Child", str]) -> list[str]:
    return [f"  {child.program.name:<9}{printable(trouble)}" for child, trouble in troubles.items()]


def _addresses(children: Sequence["_Child"]) -> list[str]:
    return [f"  {child.program.name:<9}{child.program.url}" for child in children]


async def _is_well(program: Program, path: str) -> bool:
    try:
        return (await get(program, path))[0] == 200
    except (OSError, ValueError):
        return False


async def _is_hung(program: Program) -> bool:
    """Whether `/livez` is unanswered or fails; a refused connection means that the process is shutting down."""
    try:
        return (await get(program, "/livez"))[0] != 200
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):
        return True


async def get(program: Program, path: str) -> tuple[int, bytes]:
    """Return the status and body of an answer, without importing an HTTP client. Raises OSError and ValueError."""
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(program.reachable_host, program.port)
        with contextlib.closing(writer):
            writer.write(
                f"GET {program.probe or path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    return int(head[9:12]), body


def require_free_port(program: Program) -> None:
    family = socket.AF_INET6 if ":" in program.host else socket.AF_INET
    try:
        socket.create_server((program.host, program.port), family=family).close()
    except OSError as refused:
        reason = (refused.strerror or str(refused)).partition(" (while")[0]
        raise PortTaken(
            f"{program.name} cannot listen on {program.host}:{program.port} ({reason}). "
            f"Choose another port with {program.port_variable}."
        ) from None


def _coloured(programs: Sequence[Program], output: TextIO) -> Iterator[tuple[Program, int | None]]:
    for number, program in enumerate(programs):
        yield program, COLOURS[number % len(COLOURS)] if output.isatty() else None
