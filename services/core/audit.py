"""The audit log: a line in the process's log for every change and, where a file is named, two lines in that file.

The first line says that a change begins, and is on disk before it does; where it can't be written, the change is
refused. The second says how it ended. Processes on one machine may share a file: one write appends each line.
"""

import asyncio
import getpass
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import structlog

from services.core.durable_files import opened_file
from services.core.errors import FoveaError, Overloaded
from services.core.exchange import current_caller
from services.core.printable import json_line

Entry = dict[str, Any]


class AuditFailed(Overloaded):
    """The change was not begun because it could not be recorded."""

    def __init__(self) -> None:
        super().__init__("The audit log can't be written, so nothing was changed.", code="audit_failed")


class AuditLog:
    """Records changes, from any thread. Without a path they are in the process's log only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._writing = threading.Lock()
        self._is_torn = False

    @asynccontextmanager
    async def change(self, action: str, **what: object) -> AsyncIterator[Entry]:
        """Record a change that the block makes for the current caller; the block may add details to its entry.

        Raises AuditFailed, and then the block has not begun.
        """
        caller = current_caller()
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        who = {"tenant": caller.tenant, "key": caller.key_name, "client": caller.client, "request_id": request_id}
        entry: Entry = {"action": action, **who, **what}
        try:
            await asyncio.to_thread(self._begin, entry)
        except AuditFailed as failed:
            _log().error("audit log not written, change refused", action=action, reason=str(failed.__cause__))
            raise
        try:
            yield entry
        except BaseException as error:
            await self._end_logged(_ended(entry, error))
            raise
        await self._end_logged(_ended(entry, None))

    @contextmanager
    def command(self, action: str, **what: object) -> Iterator[Entry]:
        """Record a change that the block makes for the user of a command, in the file only.

        Raises AuditFailed as `change` does, and OSError where the change was made and its end can't be recorded.
        """
        entry: Entry = {"action": action, "user": _user(), **what}
        self._begin(entry)
        try:
            yield entry
        except BaseException as error:
            self._append(_ended(entry, error))
            raise
        self._append(_ended(entry, None))

    def _begin(self, entry: Entry) -> None:
        try:
            self._append({**entry, "outcome": "begun"})
        except OSError as error:
            raise AuditFailed from error

    async def _end_logged(self, entry: Entry) -> None:
        # every log line of the request has its id already
        _log().info("change", **{name: value for name, value in entry.items() if name != "request_id"})
        try:
            await asyncio.to_thread(self._append, entry)
        except OSError as error:  # the change itself is kept
            _log().error("audit log lacks how a change ended", reason=str(error), entry=entry)

    def _append(self, entry: Entry) -> None:
        """Put a line on disk. Raises OSError."""
        if self._path is None:
            return
        line = json_line(orjson.dumps({"time": datetime.now(UTC).isoformat(), **entry}, default=str))
        # opened each time, so that the file may be rotated
        with self._writing, opened_file(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
            # a truncated line must not swallow this one
            written = os.write(descriptor, b"\n" + line if self._is_torn else line)
            self._is_torn = written < len(line)
            if self._is_torn:
                raise OSError(f"only {written} of {len(line)} bytes could be written")
            os.fsync(descriptor)


def _ended(entry: Entry, error: BaseException | None) -> Entry:
    if error is None:
        return {**entry, "outcome": "done"}
    code = error.code if isinstance(error, FoveaError) else None
    return {**entry, "outcome": "failed", "error": code or type(error).__name__}


def _log() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger("fovea.audit")
    return logger


def _user() -> str:
    """Return the name of the user who runs the command, or the user id where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
