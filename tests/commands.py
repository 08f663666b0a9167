"""The program that has a training: `fovea`, or `python -m starters`."""

import typer

import services.cli.main
import starters.__main__


def trainer(name: str) -> tuple[typer.Typer, str]:
    """Return the app with a training of this name, and the module to run the app as a process."""
    has_it = name in services.cli.main.COMMANDS["train"]
    return (services.cli.main.app, "services.cli.main") if has_it else (starters.__main__.app, "starters")
