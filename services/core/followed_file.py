"""Files that are read again when they change: keys, pools, signing secrets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from services.core.durable_files import read_regular_file
from services.core.refusals import first_complaint
from services.core.settings import SettingsError
from services.core.text_files import json_of

ContentT = TypeVar("ContentT")
ModelT = TypeVar("ModelT", bound=BaseModel)

log = structlog.get_logger(__name__)


def parse_file(model: type[ModelT], what: str, content: bytes, source: str) -> ModelT:
    """Parse the JSON of a file or an answer. Raises ValueError that names the source and the field."""
    try:
        return model.model_validate(json_of(content, source))
    except ValidationError as invalid:
        raise ValueError(f"{source} is not a {what}: {first_complaint(invalid, 'the file')}.") from None


class FollowedFile(Generic[ContentT]):
    """A file that a setting names, and its content as `parse` reads it, given its bytes and its name.

    A file that is missing or invalid at first prevents the start, with SettingsError. One that becomes so later leaves
    the content as it was.
    """

    def __init__(self, path: Path, parse: Callable[[bytes, str], ContentT], *, variable: str, cure: str) -> None:
        """`variable` is the setting's name in the environment, `cure` what to do where there is no file.

        `parse` raises ValueError with one sentence that names the file.
        """
        self._path = path.expanduser()
        self._parse = parse
        self._is_current = True
        try:
            self._stamp = self._look()
            self.content = self._read()
        except FileNotFoundError:
            raise SettingsError(f"{variable}: there is no file {self._path}; {cure}.") from None
        except (OSError, ValueError) as broken:
            raise SettingsError(f"{variable}: {broken}") from None

    def reload(self) -> bool:
        """Read the file if it has changed since, and return whether it had. Raises OSError and ValueError.

        A file that could not be read counts as changed: restoring its owner or mode leaves no other trace.
        """
        try:
            # Before reading, so that a change in between is seen at the next poll.
            stamp = self._look()
            has_changed = stamp != self._stamp
            if has_changed:
                self.content = self._read()
                self._stamp = stamp
        except (OSError, ValueError):
            self._is_current = False
            raise
        self._is_current = True
        return has_changed

    def check(self) -> tuple[bool, str]:
        """Return whether the file could be read when it was last looked at; if not, `content` is that of before."""
        return self._is_current, "followed" if self._is_current else "as before: it can't be read; the log says why"

    def _read(self) -> ContentT:
        return self._parse(read_regular_file(self._path), str(self._path))

    def _look(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size


async def changes(reload: Callable[[], bool], poll_s: float, name: str) -> AsyncIterator[None]:
    """Poll `reload`, which raises what `FollowedFile.reload` does, and yield whenever it has taken over a change.

    An error is logged once, as `NAME_not_reloaded`, not at each poll.
    """
    reported: str | None = None
    while True:
        await asyncio.sleep(poll_s)
        try:
            has_changed = await asyncio.to_thread(reload)
            reported = None
        except (OSError, ValueError) as broken:
            has_changed = False
            if (reason := str(broken)) != reported:
                log.error(f"{name}_not_reloaded", reason=reason)
            reported = reason
        if has_changed:
            yield
