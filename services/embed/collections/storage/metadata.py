"""An image's metadata, a JSON object, and its canonical text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from services.core.errors import InvalidField

# More than metadata needs, and less than the limits of JSON parsers.
MAX_DEPTH = 32

# an escaped NUL, after an even number of backslashes
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def metadata_text(metadata: Mapping[str, Any], param: str) -> str:
    """Return the JSON text of metadata, independent of the order of the fields.

    Raises InvalidField for what JSON or the databases can't hold: infinities and NaN, the character U+0000, half of a
    surrogate pair, and objects nested deeper than MAX_DEPTH.
    """
    if _depth_exceeds(metadata, MAX_DEPTH):
        raise InvalidField(f"Metadata is nested deeper than {MAX_DEPTH} levels.", param=param)
    return json_text(metadata, param)


def merged(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply changes as a JSON merge patch (RFC 7396): null removes a field, an object changes one, others replace."""
    result = {name: value for name, value in metadata.items() if name not in changes}
    for name, value in changes.items():
        if isinstance(value, Mapping):
            before = metadata.get(name)
            result[name] = merged(before if isinstance(before, Mapping) else {}, value)
        elif value is not None:
            result[name] = value
    return result


def searchable(collection: int, metadata: str) -> str:
    """Make the document that PostgreSQL indexes from the JSON text of metadata.

    It begins with the collection, because an entry of the index is a hash of a value and the path to it: images of
    other collections have other entries.
    """
    return f'{{"{collection}":{metadata}}}'


def json_text(value: object, param: str) -> str:
    """Return canonical JSON. Raises InvalidField for what JSON or the databases can't hold."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        text.encode()
    except ValueError as error:
        raise InvalidField("It contains a value that JSON can't represent.", param=param) from error
    if _NUL.search(text):
        raise InvalidField("It contains the character U+0000.", param=param)
    return text


def _depth_exceeds(value: object, levels: int) -> bool:
    if isinstance(value, Mapping):
        return levels == 0 or any(_depth_exceeds(one, levels - 1) for one in value.values())
    if isinstance(value, list):
        return levels == 0 or any(_depth_exceeds(one, levels - 1) for one in value)
    return False
