"""Output of `fovea store`: tables and sentences for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from services.core.printable import printable


def text_of(value: Any) -> str:
    """Write a value of a manifest in a cell."""
    return value if isinstance(value, str) else json.dumps(value)


def report(content: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    """Print what was done, as a sentence or as JSON."""
    if as_json:
        print_json(content)
    else:
        typer.echo(printable(sentence))


def print_json(content: Any) -> None:
    """Print a JSON document."""
    typer.echo(json.dumps(content, default=datetime.isoformat, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their columns."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape(printable(cell, keep="\n")) for cell in row))
    # Piped output has no terminal width: ids and digests must not be cut.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table)
