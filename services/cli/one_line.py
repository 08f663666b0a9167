"""Errors of commands in one line: refused inputs, and packages that this installation does not have."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import typer

from services.core.printable import printable
from services.core.refusals import Refused
from services.core.store.errors import StoreError

# What each process imports from its extra, by import name.
EMBED = ("torch", "open_clip", "safetensors", "numpy", "PIL", "aiohttp", "python_multipart", "msgpack")
MODULES = {
    "gateway": ("aiohttp", "limits"),
    "predict": ("torch", "transformers", "safetensors", "numpy", "aiohttp", "yaml", "sentencepiece"),
    "generate": ("torch", "transformers", "safetensors", "numpy", "jinja2", "sentencepiece", "aiohttp"),
    "embed": EMBED,
    "score": (*EMBED, "textblob"),
}
# Packages of an extra that a command can do without until an option asks for them.
OPTIONAL = {
    "faiss": "search",
    "psycopg": "cluster",
    "psycopg_pool": "cluster",
    "pymilvus": "cluster",
    "opentelemetry": "telemetry",
    "ray": "ray",
}


def missing_module(name: str) -> str | None:
    """Return a module that a process needs and this installation does not have, if there is one."""
    return next((module for module in MODULES[name] if not _is_installed(module)), None)


def needs(command: str, module: str, extra: str | None) -> str:
    """Say what a command lacks and how to install it."""
    extra = OPTIONAL.get(module.partition(".")[0], extra)
    return f"{command}: {module} is not installed; pip install 'fovea{f'[{extra}]' if extra else ''}'"


@contextmanager
def errors_in_one_line(command: str, extra: str | None) -> Iterator[None]:
    """Print a refused input, a failing system call or a missing package in one line, and exit with status 1."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None:
            raise
        _end(needs(command, missing.name, extra))
    except _refusals() as refused:
        _end(f"{command}: {' '.join(str(refused).split())}")


def _refusals() -> tuple[type[Exception], ...]:
    """The errors that are refusals. Of the optional packages, only one that was imported can have raised one."""
    damaged = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    return (StoreError, OSError, Refused) if damaged is None else (StoreError, OSError, Refused, damaged)


def _end(message: str) -> None:
    typer.echo(printable(message), err=True)
    raise typer.Exit(1) from None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
