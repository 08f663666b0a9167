"""Sizes in bytes as people write and read them."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNITS: dict[str, int] = {"": 1, **{prefix: 1000 ** (i + 1) for i, prefix in enumerate("KMGT")}}
_BINARY_UNITS: dict[str, int] = {f"{prefix}i": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kKMGT]?i?)B?")


def parse_bytes(text: str) -> int:
    """Read a size such as `24GiB`, `80GB` or `512Mi`. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    scale = {**_UNITS, **_BINARY_UNITS}.get(found.group(2).replace("k", "K")) if found else None
    if found is None or scale is None or not float(found.group(1)):
        raise ValueError(f"{text!r} is not a size such as 24GiB or 80GB")
    return round(float(found.group(1)) * scale)


def _read_units(value: Any) -> Any:
    has_unit = isinstance(value, str) and not re.fullmatch(r"\s*[+-]?\d+\s*", value)
    return parse_bytes(value) if has_unit else value


# A setting's number of bytes, with or without a unit.
NumBytes = Annotated[int, BeforeValidator(_read_units)]


def binary_size(num_bytes: int) -> str:
    """Format a size with a unit of powers of 1,024, such as `12.6 GiB`."""
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{_short(size)} {unit}"
        size /= 1024
    return f"{_short(size)} GiB"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
