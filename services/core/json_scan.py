"""How many values a JSON body holds, counted piece by piece as it arrives, before anything is parsed.

A parser takes a hundred bytes and more for each value, however short its text, and lets no other thread run meanwhile.
Counting takes a few passes over the text: gigabytes a second through base64, a hundred megabytes through short texts.
"""

import re

from services.core.errors import TooLarge

# Of a body with too many values, what is kept to name the field that holds them.
MAX_NAMING_BYTES = 2 * 1024 * 1024
PIECE_BYTES = 64 * 1024

_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*(:?)|[\[\]{}]', re.DOTALL)


class JsonScan:
    """Counts list elements and object members, all levels together, by the commas and opening brackets outside of
    strings. What is no JSON is counted as well as it goes; the parser refuses it."""

    def __init__(self, max_values: int) -> None:
        self.num_values = 0
        self._max_values = max_values
        self._is_in_string = False
        self._has_odd_backslash = False
        self._head = bytearray()

    @property
    def is_over(self) -> bool:
        return self.num_values > self._max_values

    def feed(self, piece: bytes) -> None:
        """Count what follows."""
        if len(self._head) <= MAX_NAMING_BYTES:
            self._head += piece
        outside = self._outside_of_strings(piece)
        self.num_values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")

    def refusal(self, param: str | None = None) -> TooLarge:
        """The error for a body that is over; without `param` it names the field if that is near the body's beginning,
        which is best found out in a thread."""
        if param is None and len(self._head) <= MAX_NAMING_BYTES:
            param = _field_at_end(bytes(self._head))
        return TooLarge(
            f"{param or 'The JSON body'}: There are more than {self._max_values} values"
            " (FOVEA_MAX_JSON_VALUES), elements of lists and members of objects, up to here.",
            param=param,
            code="too_many_values",
        )

    def _outside_of_strings(self, piece: bytes) -> bytes:
        if self._has_odd_backslash:
            piece = b"\\" + piece
            self._has_odd_backslash = False
        if b"\\" in piece:
            num_last = len(piece) - len(piece.rstrip(b"\\"))
            if num_last % 2:  # what it escapes comes with the next piece
                piece = piece[:-1]
                self._has_odd_backslash = True
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        if b'"' not in piece:
            return b"" if self._is_in_string else piece
        parts = piece.split(b'"')
        outside = b"".join(parts[1::2] if self._is_in_string else parts[::2])
        self._is_in_string ^= len(parts) % 2 == 0
        return outside


def check_num_values(text: bytes, max_values: int, *, param: str) -> None:
    """Raises TooLarge for JSON of more values; a text that is too short for so many is not looked at."""
    if len(text) <= max_values:
        return
    scan = JsonScan(max_values)
    for start in range(0, len(text), PIECE_BYTES):
        scan.feed(text[start : start + PIECE_BYTES])
        if scan.is_over:
            raise scan.refusal(param)


def _field_at_end(head: bytes) -> str | None:
    """The member of the outermost object in which the text breaks off."""
    depth, name = 0, None
    for token in _TOKEN.finditer(head):
        bracket = token[0]
        if bracket in b"[{":
            depth += 1
        elif bracket in b"]}":
            depth -= 1
        elif depth == 1 and token[2]:
            name = token[1]
    return name.decode("utf-8", "replace")[:100] if name and depth else None
