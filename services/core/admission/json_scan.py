"""Count of the values in a JSON body, made piece by piece as the body arrives and before it is parsed.

A parser takes a hundred bytes and more for each value, however short its text, and lets no other thread run meanwhile.
Counting takes a few passes over the text: gigabytes a second for base64, a hundred megabytes for short strings.
"""

import re

from services.core.errors import TooLarge

# Bounds of the search for the field that holds too many values: bytes, and members of the body.
MAX_NAMING_BYTES = 64 * 1024
MAX_NAMING_MEMBERS = 16
PIECE_BYTES = 64 * 1024

# Names of bounded length only, so that no text makes the search slow.
_NO_OPENING, _NO_CLOSING = (bytes(set(range(256)) - set(brackets)) for brackets in (b"[{", b"]}"))
_LIST_OR_OBJECT = re.compile(rb'"(\w{1,64})"\s{0,8}:\s{0,8}[\[{]')


class OutsideOfStrings:
    """Picks what is outside of strings from a JSON text that comes in pieces, however it is cut."""

    def __init__(self) -> None:
        self.is_in_string = False
        self.has_odd_backslash = False

    def pick(self, piece: bytes) -> bytes:
        """Return what the next piece of the text has outside of strings."""
        if self.has_odd_backslash:
            piece = b"\\" + piece
            self.has_odd_backslash = False
        if b"\\" in piece:
            num_last = len(piece) - len(piece.rstrip(b"\\"))
            if num_last % 2:  # what it escapes comes with the next piece
                piece = piece[:-1]
                self.has_odd_backslash = True
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        if b'"' not in piece:
            return b"" if self.is_in_string else piece
        parts = piece.split(b'"')
        outside = b"".join(parts[1::2] if self.is_in_string else parts[::2])
        self.is_in_string ^= len(parts) % 2 == 0
        return outside


class JsonScan:
    """Counts list elements and object members, all levels together, by the commas and opening brackets outside of
    strings, and each member once more by its colon: it takes a parser four times as long as an element.

    The count of a text that is not JSON means nothing; the parser refuses it.
    """

    def __init__(self, max_values: int) -> None:
        self.num_values = 0
        self._max_values = max_values
        self._strings = OutsideOfStrings()
        self._head = bytearray()

    @property
    def is_over(self) -> bool:
        return self.num_values > self._max_values

    def feed(self, text: bytes) -> None:
        """Count the values in the next piece of the body."""
        for start in range(0, len(text), PIECE_BYTES):
            piece = text[start : start + PIECE_BYTES]
            if len(self._head) < MAX_NAMING_BYTES:
                self._head += piece[: MAX_NAMING_BYTES - len(self._head)]
            outside = self._strings.pick(piece)
            self.num_values += sum(map(outside.count, (b",", b"[", b"{", b":")))
            if self.is_over:
                return

    def refusal(self, param: str | None = None) -> TooLarge:
        """Return the error for a body with too many values. Without `param` it names the last
        field that begins near the beginning."""
        param = param or _last_field(bytes(self._head))
        return TooLarge(
            f"{param or 'The JSON body'}: There are more than {self._max_values} values"
            " (FOVEA_MAX_JSON_VALUES), where members of objects count twice.",
            param=param,
            code="too_many_values",
        )


def check_num_values(text: bytes, max_values: int, *, param: str) -> None:
    """Raises TooLarge for JSON with more values; a text that is too short to hold more is not scanned."""
    if len(text) <= max_values:
        return
    scan = JsonScan(max_values)
    scan.feed(text)
    if scan.is_over:
        raise scan.refusal(param)


def _last_field(head: bytes) -> str | None:
    """Return the last list or object among the outermost object's members; None where it has too many members."""
    name = None
    for num_seen, member in enumerate(_LIST_OR_OBJECT.finditer(head)):
        if num_seen == MAX_NAMING_MEMBERS:
            return None
        strings = OutsideOfStrings()
        outside = strings.pick(head[: member.start()])
        depth = len(outside.translate(None, _NO_OPENING)) - len(outside.translate(None, _NO_CLOSING))
        if depth == 1 and not strings.is_in_string:
            name = member[1].decode("utf-8", "replace")
    return name
