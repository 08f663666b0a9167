"""Rejections of jobs: errors in their inputs, not in the jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


class Refused(ValueError):
    """A request that can't be carried out; the message can be shown in place of a traceback."""


@contextmanager
def readable_weights(path: Path) -> Iterator[None]:
    """Raises Refused, naming `path`, if safetensors that are read in this block are damaged."""
    try:
        yield
    except SafetensorError as error:
        raise Refused(f"{path}: the weights are damaged ({error})") from error
