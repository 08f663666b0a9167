"""Rejections of jobs: errors in their inputs, not in the jobs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

MAX_NAMES_SHOWN = 8


class Refused(ValueError):
    """A request that can't be carried out; the message can be shown in place of a traceback."""


@contextmanager
def readable_weights(path: Path) -> Iterator[None]:
    """Raises Refused, naming `path`, if safetensors that are read in this block are damaged."""
    try:
        yield
    except SafetensorError as error:
        raise Refused(f"{path}: the weights are damaged ({error})") from error


def shown_names(names: Sequence[str]) -> str:
    """List names for a message, the first few of many."""
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    return shown if len(names) <= MAX_NAMES_SHOWN else f"{shown} and {len(names) - MAX_NAMES_SHOWN} more"
