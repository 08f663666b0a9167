"""File descriptors: as many as the system allows, and a line in the log when there are none left."""

import errno
import os
import resource
import time

import structlog

from services.core.errors import Overloaded

# Loops over all descriptors, as some libraries have, must not become slow.
MAX_DESCRIPTORS = 2**20
REPORT_EVERY_S = 60.0

log = structlog.get_logger("fovea.descriptors")
_reported_at_s = -REPORT_EVERY_S


def raise_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one, and return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, MAX_DESCRIPTORS) if hard != resource.RLIM_INFINITY else MAX_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # some systems allow less than they say
            return soft
        return wanted
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def is_exhaustion(error: OSError) -> bool:
    """Whether this process, or the whole machine, has no descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def report_exhaustion(where: str) -> None:
    """Log that there was no descriptor left, once a minute at most."""
    global _reported_at_s
    now_s = time.monotonic()
    if now_s - _reported_at_s < REPORT_EVERY_S:
        return
    _reported_at_s = now_s
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    log.error("file_descriptors_exhausted", where=where, limit=limit, remedy="raise `ulimit -n`")


def out_of_descriptors() -> Overloaded:
    """The answer to a request that needed one."""
    return Overloaded("This server has as many files and connections open as it may.", code="too_many_open_files")


def check_descriptors() -> None:
    """Report when none can be opened: the event loop drops connections that it has no descriptor for in silence."""
    try:
        os.close(os.dup(2))
    except OSError as error:
        if is_exhaustion(error):
            report_exhaustion("accept")
