"""Text of unknown origin for terminals and readers of lines: what moves the cursor or ends a line is escaped."""

import re

# Controls of ASCII and Latin-1 (ESC and CSI among them), the line and paragraph separators, marks that change the
# direction of text, and halves of surrogate pairs, which no terminal can be sent.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# NEL and the separators of lines and paragraphs in UTF-8, which JSON need not escape.
_LINE_ENDS = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")


def json_line(document: str | bytes) -> bytes:
    """Make a line of a JSON document for clients that end lines also where Unicode does; these are in texts alone."""
    plain = document.encode() if isinstance(document, str) else document
    return _LINE_ENDS.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), plain) + b"\n"


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with each such character as Python escapes it (`\x1b`, `\u202e`), except those in `keep`."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or else its kind."""
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]
