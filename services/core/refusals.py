"""Rejections of jobs: errors in their inputs, not in the jobs."""

from collections.abc import Sequence

MAX_NAMES_SHOWN = 8


class Refused(ValueError):
    """A request that can't be carried out; the message can be shown in place of a traceback."""


def shown_names(names: Sequence[str]) -> str:
    """List names for a message, the first few of many."""
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    return shown if len(names) <= MAX_NAMES_SHOWN else f"{shown} and {len(names) - MAX_NAMES_SHOWN} more"
