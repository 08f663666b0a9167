"""Chat templates rendered in separate processes, which are killed if a template exceeds its limits.

A template comes with a checkpoint and is a program: it can loop forever or turn three words into gigabytes of text, and
a thread that does so can't be stopped.
"""

import atexit
import functools
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from services.core.errors import DeadlineExceeded, InvalidRequest, Overloaded

WORKER = Path(__file__).with_name("template_worker.py")
LENGTH = struct.Struct("<Q")
READ_BYTES = 1024 * 1024
# Attempts of a rendering whose process was killed from outside, e.g. by the kernel's OOM killer, perhaps while idle.
ATTEMPTS = 2


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one rendering: CPU and wall-clock seconds, memory and length of its text.

    A rendering normally takes a millisecond; `wall_s` only ends one that waits without computing, and `wait_s` is the
    longest wait for a process while others are rendered.
    """

    cpu_s: int = 2
    wall_s: float = 20.0
    wait_s: float = 5.0
    memory_bytes: int = 512 * 1024 * 1024
    max_characters: int = 16 * 1024 * 1024
    num_processes: int = 2
    start_s: float = 60.0


class _Ended(Exception):
    """The process ended before it answered: `is_late` if it exceeded its time, else it was killed from outside."""

    def __init__(self, reason: str, *, is_late: bool) -> None:
        super().__init__(reason)
        self.is_late = is_late


class BoundedTemplates:
    """Processes that render templates, each started on first use and restarted after it had to be killed.

    May be called from any thread.
    """

    def __init__(self, limits: TemplateLimits | None = None) -> None:
        self.limits = limits or TemplateLimits()
        self._permits = threading.BoundedSemaphore(self.limits.num_processes)
        self._idle: list[_Process] = []

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        documents: Sequence[Mapping[str, str]],
        variables: Mapping[str, Any],
    ) -> str:
        """Render the template with messages and documents, as transformers does with a generation prompt.

        Raises InvalidRequest with an error of the template or its syntax, and if its text exceeds the limit of memory
        or characters; DeadlineExceeded if it takes too long; Overloaded if others take too long.
        """
        request = {
            **variables,
            "chat_template": template,
            "messages": list(messages),
            "documents": list(documents) or None,
        }
        if not self._permits.acquire(timeout=self.limits.wait_s):
            raise Overloaded("The service is busy rendering other chat templates.")
        try:
            answer = self._ask(request)
        finally:
            self._permits.release()
        if (text := answer.get("text")) is not None:
            return text
        if "exceeded" in answer:
            message = f"this conversation exceeds the checkpoint's chat template's limit of {answer['exceeded']}"
            raise InvalidRequest(message, param="messages", code="chat_template_too_long")
        message = f"the checkpoint's chat template refuses this conversation: {answer['refused']}"
        raise InvalidRequest(message, param="messages")

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            self._idle.pop().end()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, str]:
        for _ in range(ATTEMPTS):
            process = self._process()
            try:
                answer = process.ask(request)
            except _Ended as ended:
                self._replace(process)
                structlog.get_logger(__name__).warning("chat template process ended", reason=str(ended))
                if ended.is_late:
                    message = (
                        f"The checkpoint's chat template did not finish within {self.limits.cpu_s} s of processor time."
                    )
                    raise DeadlineExceeded(message, param="messages", code="chat_template_timeout") from None
            except BaseException:
                process.end()
                raise
            else:
                self._idle.append(process)
                return answer
        raise Overloaded("The service has no memory left to render a chat template.")

    def _replace(self, process: "_Process") -> None:
        """Replace a process; its successor starts while the error is reported."""
        process.end()
        with suppress(OSError):
            self._idle.append(_Process(self.limits))

    def _process(self) -> "_Process":
        with suppress(IndexError):
            return self._idle.pop()
        try:
            return _Process(self.limits)
        except OSError as error:
            raise Overloaded("The service cannot start a process to render a chat template.") from error


@functools.cache
def templates_of_this_process() -> BoundedTemplates:
    """Return the instance shared by all checkpoints: each call includes its template, and starting takes a second."""
    templates = BoundedTemplates()
    atexit.register(templates.close)
    return templates


class _Process:
    def __init__(self, limits: TemplateLimits) -> None:
        """Raises OSError if no process can be started."""
        self._limits = limits
        self._is_new = True
        bounds = (limits.cpu_s, limits.memory_bytes, limits.max_characters)
        # -P: files of this folder must not shadow libraries of the same name. In its own session, because a terminal's
        # interrupt is meant for the service, which then ends this process.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), *map(str, bounds)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._requests, False)

    def ask(self, request: Mapping[str, Any]) -> dict[str, str]:
        """Send a request and return the answer. Raises _Ended."""
        body = json.dumps(request).encode("ascii")
        deadline = time.monotonic() + self._limits.wall_s + (self._limits.start_s if self._is_new else 0)
        self._is_new = False
        self._write(LENGTH.pack(len(body)) + body, deadline)
        (num_bytes,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
        answer: dict[str, str] = json.loads(self._read(num_bytes, deadline))
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _write(self, body: bytes, deadline: float) -> None:
        left = memoryview(body)
        while left:
            self._wait(self._requests, select.POLLOUT, deadline)
            try:
                left = left[os.write(self._requests, left) :]
            except BrokenPipeError as error:
                raise self._ended() from error

    def _read(self, num_bytes: int, deadline: float) -> bytes:
        read = bytearray()
        while len(read) < num_bytes:
            self._wait(self._answers, select.POLLIN, deadline)
            part = os.read(self._answers, min(READ_BYTES, num_bytes - len(read)))
            if not part:
                raise self._ended()
            read += part
        return bytes(read)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise _Ended(f"no answer within {self._limits.wall_s:g} s", is_late=True)

    def _ended(self) -> _Ended:
        status = self._process.wait()
        return _Ended(f"exit status {status}", is_late=status == -signal.SIGXCPU)
