"""Parsing of a model's replies, which are lines with a label, such as `New sentence: …`.

Models add blank lines, bullets, bold type and quotation marks, and leave out the label where only one thing was asked
for; all of that is accepted. Whether the text is usable is decided by the checks.
"""

import json
import re

# A label of at most four words before a colon, after a bullet or a number, in bold type or not.
_LINE = re.compile(r"^[\s>*#\-\d.)]*\**\s*([A-Za-z]+(?: [A-Za-z]+){0,3})\s*\**\s*:\s*\**\s*(.*)$")
_QUOTES = "\"'“”‘’«»`*"
LABELS = frozenset(("possible", "concepts", "chosen", "new", "new sentence", "sentence"))


class Unreadable(ValueError):
    """A reply that lacks what was asked for."""


def labelled(reply: str) -> dict[str, str]:
    """Return the text behind each known label, in lower case; of one that occurs twice, the first."""
    found: dict[str, str] = {}
    for line in reply.splitlines():
        match = _LINE.match(line)
        if match and match[1].lower() in LABELS:
            found.setdefault(match[1].lower(), match[2].strip())
    return found


def one_text(reply: str, label: str) -> str:
    """Return the text of a label, or the whole reply if it is one line without any. Raises Unreadable."""
    found = labelled(reply)
    lines = [line for line in reply.splitlines() if line.strip()]
    text = found.get(label) or (lines[0] if len(lines) == 1 and not found else "")
    text = unquoted(text)
    if not text:
        raise Unreadable(label)
    return text


def concepts_of(reply: str) -> list[str]:
    """Return the list of concepts: JSON, or words between commas. Raises Unreadable.

    An empty list is `[]`; that is different from a reply without a list.
    """
    text = labelled(reply).get("concepts")
    if text is None:
        lines = [line.strip() for line in reply.splitlines() if line.strip()]
        text = lines[0] if len(lines) == 1 and lines[0].startswith("[") else ""
    if not text:
        raise Unreadable("concepts")
    try:
        found = json.loads(text)
    except ValueError:
        found = text.strip("[]() .").split(",")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Unreadable("concepts")
    return list(dict.fromkeys(text for one in found if (text := unquoted(one))))


def unquoted(text: str) -> str:
    """Remove quotation marks and bold type around a text."""
    text = text.strip()
    while len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return text.strip("*`").strip()
