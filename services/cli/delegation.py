"""Commands whose modules are imported only when they run, and whose errors are told in one line.

The command line starts quickly so. Errors in one line are refused inputs, and packages that this installation does not
have.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from services.core.printable import printable
from services.core.refusals import Refused
from services.core.store.errors import StoreError

# What each process imports from its extra, by import name.
EMBED = ("torch", "open_clip", "safetensors", "numpy", "PIL", "aiohttp", "python_multipart", "msgpack")
MODULES = {
    "gateway": ("aiohttp", "limits"),
    "predict": ("torch", "transformers", "safetensors", "numpy", "aiohttp", "yaml", "sentencepiece"),
    "generate": ("torch", "transformers", "safetensors", "numpy", "jinja2", "sentencepiece", "aiohttp", "PIL"),
    "embed": EMBED,
    "score": (*EMBED, "textblob"),
}
# Packages of an extra that a command can do without until an option asks for them.
OPTIONAL = {
    "faiss": "search",
    "psycopg": "cluster",
    "psycopg_pool": "cluster",
    "opentelemetry": "telemetry",
    "ray": "ray",
}


def missing_module(name: str) -> str | None:
    """Return a module that a process needs and this installation does not have, if there is one."""
    return next((module for module in MODULES[name] if not _is_installed(module)), None)


def needs(command: str, module: str, extra: str | None) -> str:
    """Say what a command lacks and how to install it, or in which image it is."""
    extra = OPTIONAL.get(module.partition(".")[0], extra)
    image = ", or use the image fovea-jobs" if extra in ("train", "evaluate") else ""
    return f"{command}: {module} is not installed; pip install 'fovea-serving{f'[{extra}]' if extra else ''}'{image}"


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


def _warn_of_unknown_variables(command: str) -> None:
    """Tell of variables that nobody reads: a process refuses them, and a command would take a default in silence."""
    if any(name.startswith("FOVEA_") for name in os.environ):
        from services.core.settings import ServiceSettings, unknown_variables

        for complaint in unknown_variables(ServiceSettings):
            typer.echo(f"{command}: warning: {complaint}", err=True)


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


class Delegate(TyperCommand):
    """A command of another module, which is imported when it runs or when a shell completes its arguments."""

    load: Callable[[], TyperCommand | TyperGroup]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave all arguments to the other module; parsed here, a `--` would be lost."""
        ctx.args = list(args)
        return args

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        command, words = self.load(), list(ctx.args)
        while words and words[0] in (commands := getattr(command, "commands", {})):
            command = commands[words.pop(0)]
        inner = command.make_context(command.name, words, resilient_parsing=True)
        return command.shell_complete(inner, incomplete)


def delegate(group: typer.Typer, name: str, module: str, summary: str, extra: str | None) -> None:
    """Add a command whose arguments, including `--help`, are passed to the Typer app of a module imported on demand.

    `extra` is the one whose packages the module imports.
    """

    def load() -> Any:
        command = typer.main.get_command(importlib.import_module(module).app)
        # A module with several jobs has them as subcommands of its app, by the same names.
        return getattr(command, "commands", {}).get(name, command)

    @group.command(
        name,
        cls=type("Delegate", (Delegate,), {"load": staticmethod(load)}),
        help=summary,
        add_help_option=False,
    )
    def run_delegate(context: typer.Context) -> None:
        command = f"{context.parent.command_path if context.parent else group.info.name} {name}"
        with errors_in_one_line(command, extra):
            try:
                loaded = load()
            except KeyboardInterrupt:
                typer.echo("Stopped before the work began.", err=True)
                raise typer.Exit(128 + signal.SIGINT) from None
            _warn_of_unknown_variables(command)
            loaded.main(context.args, prog_name=command)
