"""Options of jobs and their parsers: values that would fail only at the end of the work are rejected before it begins.

A callback takes an option's value and returns it, or raises BadParameter; None, a missing option, is accepted.
"""

import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from services.core.refusals import did_you_mean

NameT = TypeVar("NameT", bound=str)
NumberT = TypeVar("NumberT", int, float)

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store-url", envvar="FOVEA_STORE_URL", help="Model store (file://, s3://, gs://). Default: ~/.fovea/store."
    ),
]

# Where `fovea up` listens.
LOCAL_URL = "http://127.0.0.1:8080"

# Seeds that torch and numpy both accept, with room for the numbers that jobs add to them.
MAX_SEED = 2**31


def command_line(*, help: str | None = None, no_args_is_help: bool = False) -> typer.Typer:
    """A job's command line: help and errors in plain text, without markup, drawn tracebacks or shell completion."""
    return typer.Typer(
        help=help,
        no_args_is_help=no_args_is_help,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
    )


def fovea_url(url: str) -> str:
    """Accept the address of a Fovea, of which the `/v1` of an OpenAI client's base URL is dropped."""
    if not url.lower().startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url} does not begin with http:// or https://")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def api_key(key: str | None) -> str | None:
    """Accept an API key, without the line break with which files end. What is refused is not shown."""
    key = key and key.strip()
    if key and not (key.isascii() and key.isprintable()):
        raise typer.BadParameter("the key holds a character that no header may hold")
    return key


def key_in(variable: str | None) -> str | None:
    """Read a key from the environment, as others can read a command line. Raises BadParameter."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise typer.BadParameter(f"{variable} is not set", param_hint="--key-variable")
    return key


def output_folder(path: Path | None) -> Path | None:
    """Accept a folder in which files can be written, or that can be made."""
    if path is not None:
        _check_writable(path)
    return path


def output_file(path: Path | None) -> Path | None:
    """Accept a file that can be written or replaced, in a folder that exists or can be made."""
    if path is not None:
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder, not a file")
        _check_writable(path.absolute().parent)
    return path


def results_file(load: Callable[[Sequence[Path]], object]) -> Callable[[Path | None], Path | None]:
    """Make an `output_file` that `load` can read if it exists, so that results can be added to it."""

    def check(path: Path | None) -> Path | None:
        output_file(path)
        try:
            if path is not None and path.exists():
                load([path])
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return path

    return check


def finite(value: float | None) -> float | None:
    """Reject infinity and NaN, which ranges do not exclude."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def positive(value: float | None) -> float | None:
    """Accept a finite number above 0."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"{value} is not a finite number above 0")
    return value


def split(text: str) -> tuple[str, ...]:
    """Split at commas and remove duplicates."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def among(text: str, known: Sequence[NameT], option: str) -> tuple[NameT, ...]:
    """Read comma-separated names, in the order of `known`. Raises BadParameter for none, and for an unknown one."""
    wanted = split(text)
    for name in wanted or (text,):
        if name not in known:
            told = f"{name!r} is not one of {', '.join(known)}{did_you_mean(name, known)}"
            raise typer.BadParameter(told, param_hint=option)
    return tuple(name for name in known if name in wanted)


def parse_numbers(text: str, kind: type[NumberT], option: str) -> tuple[NumberT, ...]:
    """Read comma-separated numbers without duplicates. Raises BadParameter for none, and for invalid numbers."""
    try:
        found = tuple(dict.fromkeys(kind(part) for part in split(text)))
    except ValueError:
        found = ()
    if not found:
        numbers = "whole numbers" if kind is int else "numbers"
        raise typer.BadParameter(f"{text!r} is not a comma-separated list of {numbers}", param_hint=option)
    return found


def json_object(text: str, option: str) -> dict[str, Any]:
    """Read a JSON object. Raises BadParameter for any other text."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON ({error})", param_hint=option) from None
    if not isinstance(found, dict):
        raise typer.BadParameter("not a JSON object", param_hint=option)
    return found


def _check_writable(folder: Path) -> None:
    """Check that files can be written in the folder, or in its nearest existing parent if it has to be made."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise typer.BadParameter(f"{existing} is a file, not a folder")
    try:
        with tempfile.TemporaryFile(dir=existing):
            return
    except OSError as error:
        raise typer.BadParameter(f"{existing} is not writable: {error.strerror}") from error
