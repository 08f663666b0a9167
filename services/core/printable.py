"""Text of unknown origin made safe for a terminal: characters that move the cursor or reorder text are escaped."""

import re

# Controls of ASCII and Latin-1 (ESC and CSI among them), the line and paragraph separators, marks that change the
# direction of text, and halves of surrogate pairs, which no terminal can be sent.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with each such character as Python escapes it (`\x1b`, `\u202e`), except those in `keep`."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or else its kind."""
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]
