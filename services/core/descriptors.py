"""File descriptors: raising their limit to what the system allows, and logging when none is left."""

import errno
import math
import os
import resource
import time

import structlog

from services.core.errors import Overloaded

# A bound, because some libraries loop over all descriptors.
MAX_DESCRIPTORS = 2**20
REPORT_EVERY_S = 60.0

log = structlog.get_logger("fovea.descriptors")


def raise_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one, and return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, MAX_DESCRIPTORS) if hard != resource.RLIM_INFINITY else MAX_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # some systems allow less than they report
            return soft
        return wanted
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def is_exhaustion(error: OSError) -> bool:
    """Whether this process, or the whole machine, has no descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class ExhaustionLog:
    """Logs that no descriptor was left at one place, once in REPORT_EVERY_S at most."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._reported_at_s = -math.inf

    def report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_at_s < REPORT_EVERY_S:
            return
        self._reported_at_s = now_s
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        log.error("file_descriptors_exhausted", where=self._where, limit=limit, remedy="raise `ulimit -n`")


def out_of_descriptors() -> Overloaded:
    """Return the error for a request that needed a descriptor."""
    return Overloaded("This server has reached its limit of open files and connections.", code="too_many_open_files")


def check_descriptors(exhaustion: ExhaustionLog) -> None:
    """Report when none can be opened: the event loop silently drops connections that it has no descriptor for."""
    try:
        os.close(os.dup(2))
    except OSError as error:
        if is_exhaustion(error):
            exhaustion.report()
