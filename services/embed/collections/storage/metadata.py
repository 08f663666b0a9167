"""An image's metadata, a JSON object: its canonical text, and filters on its fields."""

import json
import re
from collections.abc import Mapping
from typing import Any

from services.core.errors import InvalidField

MAX_FILTER_FIELDS = 64
# More than metadata needs, and less than the limits of JSON parsers.
MAX_DEPTH = 32

# PostgreSQL looks each of so many values up in its index; with more, every image of the collection is compared.
MAX_INDEXED_VALUES = 32

_SQLITE_HAS = (
    "EXISTS (SELECT 1 FROM json_each(images.metadata) AS field WHERE field.key = ?"
    " AND (iif(field.type = 'real', 'integer', field.type), field.atom)"
    " IN (SELECT iif(type = 'real', 'integer', type), atom FROM json_each(?)))"
)
_SQLITE_LACKS = (
    "NOT EXISTS (SELECT 1 FROM json_each(images.metadata) AS field WHERE field.key = ? AND field.type <> 'null')"
)
_POSTGRES_IS = "searchable @> %s::jsonb"
_POSTGRES_IS_ONE_OF = "searchable -> %s::text -> %s::text = ANY (%s::jsonb[])"
_POSTGRES_LACKS = "coalesce(searchable -> %s::text -> %s::text, 'null') = 'null'"

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


def checked_filter(fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values that each field of a filter accepts.

    Values are strings, numbers (1 equals 1.0), booleans (true does not equal 1) and null, which also matches a missing
    field. Raises InvalidField for any other value, and for more than MAX_FILTER_FIELDS fields.
    """
    if len(fields) > MAX_FILTER_FIELDS:
        raise InvalidField(f"The filter names {len(fields)} fields; the limit is {MAX_FILTER_FIELDS}.", param="filter")
    accepted = {}
    for name, value in fields.items():
        json_text(name, "filter")
        param = f"filter.{name}"
        values = value if isinstance(value, list) else [value]
        if any(not isinstance(one, str | int | float | bool | None) for one in values):
            raise InvalidField(
                "The filter of a field must be a string, a number, a boolean, null, or a list of these.", param=param
            )
        json_text(values, param)
        accepted[name] = values
    return accepted


def sqlite_condition(fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Build SQLite's condition, with arguments, that each field of a row of `images` has its value or one of its list.

    Raises what `checked_filter` raises.
    """
    conditions, bound = ["TRUE"], []
    for name, values in checked_filter(fields).items():
        # numbers are passed to SQLite as text, like those of the metadata, so that both are parsed in the same way
        condition, arguments = _SQLITE_HAS, [name, json_text(values, f"filter.{name}")]
        if None in values:
            condition, arguments = f"({condition} OR {_SQLITE_LACKS})", [*arguments, name]
        conditions.append(condition)
        bound += arguments
    return " AND ".join(conditions), bound


def postgres_condition(collection: int, fields: Mapping[str, Any]) -> tuple[str, list[object]]:
    """Build PostgreSQL's condition, as `sqlite_condition` builds SQLite's."""
    conditions = ["TRUE"]
    bound: list[object] = []
    for name, values in checked_filter(fields).items():
        path = [str(collection), name]
        given = [value for value in values if value is not None]
        if len(given) > MAX_INDEXED_VALUES:
            alternatives = [_POSTGRES_IS_ONE_OF]
            bound += [*path, [json.dumps(value, ensure_ascii=False) for value in given]]
        else:
            alternatives = [_POSTGRES_IS] * len(given)
            bound += [searchable(collection, json_text({name: value}, f"filter.{name}")) for value in given]
        if len(given) < len(values):
            alternatives.append(_POSTGRES_LACKS)
            bound += path
        conditions.append(f"({' OR '.join(alternatives)})" if alternatives else "FALSE")
    return " AND ".join(conditions), bound


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
