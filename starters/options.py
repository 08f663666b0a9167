"""Parsers of the options of trainings."""

from collections.abc import Callable

import typer


def multiple_of(unit: int) -> Callable[[int], int]:
    """Accept a positive multiple of `unit`."""

    def check(value: int) -> int:
        if value < 1 or value % unit:
            raise typer.BadParameter(f"{value} is not a positive multiple of {unit}")
        return value

    return check
