"""Rejections of inputs from outside, in words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_NAMES_SHOWN = 8
# Comparing names takes the longer the longer they are, and a client chooses how long.
MAX_COMPARED_CHARACTERS = 64
SIMILARITY = 0.6
# What a value should be, by pydantic's error about its type.
OBJECT_ERRORS = ("model_type", "model_attributes_type", "dict_type")
TYPES = {
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    **dict.fromkeys(OBJECT_ERRORS, "an object"),
}


class Refused(ValueError):
    """A request that can't be carried out; the message can be shown in place of a traceback."""


def shown_names(names: Sequence[str]) -> str:
    """List names for a message, the first few of many."""
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    return shown if len(names) <= MAX_NAMES_SHOWN else f"{shown} and {len(names) - MAX_NAMES_SHOWN} more"


def near_names(name: str, known: Iterable[str], *, count: int = 1, similarity: float = SIMILARITY) -> list[str]:
    """Return the known names that are most like an unknown one, the nearest first, whatever their case."""
    spellings = {one.casefold(): one for one in known}
    found = get_close_matches(name[:MAX_COMPARED_CHARACTERS].casefold(), spellings, count, similarity)
    return [spellings[one] for one in found]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, which asks for the nearest known one; empty without one."""
    return "".join(f"; did you mean {near}?" for near in near_names(name, known))


def first_complaint(invalid: "ValidationError", whole: str) -> str:
    """Return `field: message` for the first error, with `whole` in place of a field if it is about none."""
    first = invalid.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {message_of(first)}"


def complaint_about(invalid: "ValidationError", given: Any, whole: str) -> str:
    """Return `field: message` for the most deeply nested invalid field of what was given, `whole` if it is about none.

    Unlike `first_complaint` it names fields as they stand there, without the members of unions.
    """
    field, told = deepest_complaint([{**one, "loc": ("body", *one["loc"])} for one in invalid.errors()], given)
    return f"{whole if field == 'body' else field}: {told}"


def message_of(error: Any) -> str:
    """Return the message of one of pydantic's errors without what it says of Python."""
    if error["type"] in OBJECT_ERRORS:
        return "Input should be an object"
    return str(error["msg"]).removeprefix("Value error, ")


def deepest_complaint(errors: Sequence[Any], body: Any) -> tuple[str, str]:
    """Return the most deeply nested invalid field and all its errors: a union reports one for each of its members."""
    located = [(tuple(_field_path(error, body)), error) for error in errors]
    deepest = max((path for path, _ in located), key=len)
    here = [error for path, error in located if path == deepest]
    # members of another type than the value's say nothing about it if one accepts its type and refuses the value
    about_value = [error for error in here if not error["type"].endswith(("_type", "_parsing"))]
    types = dict.fromkeys(TYPES.get(error["type"], "") for error in here)
    if not about_value and len(types) > 1 and all(types):
        return ".".join(deepest) or "body", f"Input should be {' or '.join(types)}"
    messages = dict.fromkeys(map(message_of, about_value or here))
    return ".".join(deepest) or "body", "; or: ".join(messages)


def _field_path(error: Any, body: Any) -> Iterator[str]:
    """Yield the parts of an error's location that name something the client sent, without pydantic's union members."""
    source, *parts = error["loc"]
    if source != "body":
        yield from map(str, parts)
        return
    value = body
    for part in parts:
        if _holds(value, part):
            value = value[part]
            yield str(part)
        elif error["type"] == "missing" and part == parts[-1]:
            yield str(part)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, Mapping) and part in value
