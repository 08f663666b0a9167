"""Rejections of inputs from outside, in words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_NAMES_SHOWN = 8


class Refused(ValueError):
    """A request that can't be carried out; the message can be shown in place of a traceback."""


def shown_names(names: Sequence[str]) -> str:
    """List names for a message, the first few of many."""
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    return shown if len(names) <= MAX_NAMES_SHOWN else f"{shown} and {len(names) - MAX_NAMES_SHOWN} more"


def first_complaint(invalid: "ValidationError", whole: str) -> str:
    """Return `field: message` for the first error, with `whole` in place of a field if it is about none."""
    first = invalid.errors(include_url=False, include_input=False)[0]
    told = "Input should be an object" if first["type"] == "model_type" else first["msg"]  # of which it names the class
    return f"{'.'.join(map(str, first['loc'])) or whole}: {told}"
