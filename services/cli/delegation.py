"""Commands whose modules are imported only when they run, so that the command line starts quickly."""

import importlib
import signal
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from services.cli.one_line import errors_in_one_line


class Delegate(TyperCommand):
    """A command of another module, which is imported when it runs or when a shell completes its arguments."""

    load: Callable[[], TyperCommand | TyperGroup]

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
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def run_delegate(context: typer.Context) -> None:
        command = f"{context.parent.command_path if context.parent else group.info.name} {name}"
        with errors_in_one_line(command, extra):
            try:
                loaded = load()
            except KeyboardInterrupt:
                typer.echo("Stopped before the work began.", err=True)
                raise typer.Exit(128 + signal.SIGINT) from None
            loaded.main(context.args, prog_name=command)
