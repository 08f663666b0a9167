"""Filters on metadata as PostgreSQL's conditions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.embed.collections.storage.metadata import checked_filter, json_text

# Each of so many values is looked up in the index; with more, every image of the collection is compared.
MAX_INDEXED_VALUES = 32

_IS = "searchable @> %s::jsonb"
_IS_ONE_OF = "searchable -> %s::text -> %s::text = ANY (%s::jsonb[])"
_LACKS = "coalesce(searchable -> %s::text -> %s::text, 'null') = 'null'"


def searchable(collection: int, metadata: str) -> str:
    """Make the document that is indexed from the JSON text of metadata.

    It begins with the collection, because an entry of the index is a hash of a value and the path to it: images of
    other collections have other entries.
    """
    return f'{{"{collection}":{metadata}}}'


def filter_condition(collection: int, fields: Mapping[str, Any]) -> tuple[str, list[object]]:
    """Build the condition, with arguments, that each field has its value or one of its list.

    Raises what `checked_filter` raises.
    """
    conditions = ["TRUE"]
    bound: list[object] = []
    for name, values in checked_filter(fields).items():
        condition, arguments = _condition_of(collection, name, values)
        conditions.append(condition)
        bound += arguments
    return " AND ".join(conditions), bound


def _condition_of(collection: int, name: str, values: Sequence[Any]) -> tuple[str, list[object]]:
    path = [str(collection), name]
    given = [value for value in values if value is not None]
    alternatives: list[str] = []
    bound: list[object] = []
    if len(given) > MAX_INDEXED_VALUES:
        alternatives.append(_IS_ONE_OF)
        bound += [*path, [json.dumps(value, ensure_ascii=False) for value in given]]
    else:
        alternatives += [_IS] * len(given)
        bound += [searchable(collection, json_text({name: value}, f"filter.{name}")) for value in given]
    if len(given) < len(values):
        alternatives.append(_LACKS)
        bound += path
    return f"({' OR '.join(alternatives)})" if alternatives else "FALSE", bound
