"""Filters on metadata: what a request may ask for, and the conditions of SQLite and PostgreSQL that find it.

A clause is either true or false for an image, also where the field is missing, so `Not` selects exactly the others.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.core.errors import InvalidField
from services.embed.collections.storage.metadata import json_text, searchable

MAX_CLAUSES = 64
MAX_FILTER_DEPTH = 8

JOINS: Mapping[str, Literal["AND", "OR"]] = {"$and": "AND", "$or": "OR"}
BOUNDS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
OPERATORS = ("$eq", "$ne", "$in", "$nin", *BOUNDS, "$exists")

# PostgreSQL looks each of so many values up in its index; with more, every image of the collection is compared.
MAX_INDEXED_VALUES = 32

_SQLITE_FIELD = "SELECT 1 FROM json_each(images.metadata) AS field WHERE field.key = ?"
_SQLITE_HAS = (
    f"EXISTS ({_SQLITE_FIELD} AND (iif(field.type = 'real', 'integer', field.type), field.atom)"
    " IN (SELECT iif(type = 'real', 'integer', type), atom FROM json_each(?)))"
)
_SQLITE_LACKS = f"NOT EXISTS ({_SQLITE_FIELD} AND field.type <> 'null')"
_POSTGRES_FIELD = "(searchable -> %s::text -> %s::text)"
_POSTGRES_IS = "searchable @> %s::jsonb"
_POSTGRES_IS_ONE_OF = f"coalesce({_POSTGRES_FIELD} = ANY (%s::jsonb[]), FALSE)"
_POSTGRES_LACKS = f"coalesce({_POSTGRES_FIELD}, 'null') = 'null'"
_POSTGRES_TEXT = '(searchable -> %s::text ->> %s::text) COLLATE "C"'


@dataclass(frozen=True)
class OneOf:
    """The field has one of these values; null is also that of a missing field."""

    field: str
    values: Sequence[Any]


@dataclass(frozen=True)
class Bound:
    """The field is a number beyond a number, or a string beyond a string by code points; `operator` is SQL's."""

    field: str
    operator: str
    value: str | float


@dataclass(frozen=True)
class Exists:
    """The field is there, also with null."""

    field: str


@dataclass(frozen=True)
class Not:
    clause: "Clause"


@dataclass(frozen=True)
class Joined:
    """All clauses (AND) or at least one (OR); AND of none is true."""

    word: Literal["AND", "OR"]
    clauses: Sequence["Clause"]


Leaf = OneOf | Bound | Exists
Clause = Leaf | Not | Joined
# An SQL condition and its arguments.
Condition = tuple[str, list[Any]]


def parsed_filter(given: Mapping[str, Any]) -> Clause:
    """Read a filter. Values are strings, numbers (1 equals 1.0), booleans (true does not equal 1) and null.

    Raises InvalidField that names the clause at fault, or the filter if it has more than MAX_CLAUSES.
    """
    clause = _filter(given, "filter", 1)
    if (number := _num_leaves(clause)) > MAX_CLAUSES:
        raise InvalidField(f"The filter has {number} clauses; the limit is {MAX_CLAUSES}.", param="filter")
    return clause


def sqlite_condition(given: Mapping[str, Any]) -> Condition:
    """Build SQLite's condition on a row of `images`. Raises what `parsed_filter` raises."""
    return _condition(parsed_filter(given), _in_sqlite)


def postgres_condition(collection: int, given: Mapping[str, Any]) -> Condition:
    """Build PostgreSQL's condition, as `sqlite_condition` builds SQLite's."""
    return _condition(parsed_filter(given), lambda leaf: _in_postgres(collection, leaf))


def _filter(given: object, path: str, depth: int) -> Clause:
    if not isinstance(given, Mapping):
        raise InvalidField("A filter must be a JSON object of fields and conditions on them.", param=path)
    if depth > MAX_FILTER_DEPTH:
        raise InvalidField(f"Filters are nested deeper than {MAX_FILTER_DEPTH} levels.", param=path)
    return Joined("AND", [_member(name, value, path, depth) for name, value in given.items()])


def _member(name: str, value: object, path: str, depth: int) -> Clause:
    json_text(name, path)
    path = f"{path}.{name}"
    if name == "$not":
        return Not(_filter(value, path, depth + 1))
    if name in JOINS:
        if not isinstance(value, list) or not value:
            raise InvalidField(f"{name} takes a list of one or more filters.", param=path)
        filters = [_filter(one, f"{path}.{index}", depth + 1) for index, one in enumerate(value)]
        return Joined(JOINS[name], filters)
    if name.startswith("$"):
        raise InvalidField(f"{name[:64]!r} is no operator on filters; those are $and, $or, $not.", param=path)
    if not isinstance(value, Mapping):
        return OneOf(name, _values(value if isinstance(value, list) else [value], path))
    for operator in value:
        if operator not in OPERATORS:
            json_text(operator, path)
            told = f"{operator[:64]!r} is no operator; those on a field are {', '.join(OPERATORS)}"
            raise InvalidField(f"{told}. Only top-level fields are compared.", param=f"{path}.{operator}")
    if not value:
        raise InvalidField(f"The object is empty; operators on a field are {', '.join(OPERATORS)}.", param=path)
    return Joined("AND", [_compared(name, operator, operand, path) for operator, operand in value.items()])


def _compared(field: str, operator: str, operand: Any, path: str) -> Clause:
    path = f"{path}.{operator}"
    if operator in BOUNDS:
        if isinstance(operand, bool) or not isinstance(operand, str | int | float):
            raise InvalidField(f"{operator} takes a number or a string.", param=path)
        json_text(operand, path)
        return Bound(field, BOUNDS[operator], operand)
    if operator == "$exists":
        if not isinstance(operand, bool):
            raise InvalidField("$exists takes true or false.", param=path)
        return Exists(field) if operand else Not(Exists(field))
    takes_list = operator in ("$in", "$nin")
    if takes_list and not isinstance(operand, list):
        raise InvalidField(f"{operator} takes a list of values.", param=path)
    clause = OneOf(field, _values(operand if takes_list else [operand], path))
    return clause if operator in ("$eq", "$in") else Not(clause)


def _values(values: list[Any], path: str) -> list[Any]:
    if any(not isinstance(one, str | int | float | bool | None) for one in values):
        raise InvalidField(
            "A field is compared with a string, a number, a boolean or null, or with a list of these"
            " (one of which it has), or by an object of operators.",
            param=path,
        )
    json_text(values, path)
    return values


def _num_leaves(clause: Clause) -> int:
    match clause:
        case Not(inner):
            return _num_leaves(inner)
        case Joined(_, clauses):
            return sum(map(_num_leaves, clauses))
    return 1


def _condition(clause: Clause, translate: Callable[[Leaf], Condition]) -> Condition:
    match clause:
        case Not(inner):
            condition, bound = _condition(inner, translate)
            return f"NOT ({condition})", bound
        case Joined(word, clauses):
            found = [_condition(one, translate) for one in clauses]
            joined = f" {word} ".join(f"({condition})" for condition, _ in found)
            return joined or "TRUE", [value for _, bound in found for value in bound]
    return translate(clause)


def _in_sqlite(leaf: Leaf) -> Condition:
    match leaf:
        case Exists(field):
            return f"EXISTS ({_SQLITE_FIELD})", [field]
        case Bound(field, operator, value):
            types = "'text'" if isinstance(value, str) else "'integer', 'real'"
            beyond = f"field.type IN ({types}) AND field.atom {operator} (SELECT atom FROM json_each(?))"
            # numbers are passed to SQLite as text, like those of the metadata, so that both are parsed in the same way
            return f"EXISTS ({_SQLITE_FIELD} AND {beyond})", [field, json_text([value], "filter")]
        case OneOf(field, values):
            has = [field, json_text(values, "filter")]
            return (f"{_SQLITE_HAS} OR {_SQLITE_LACKS}", [*has, field]) if None in values else (_SQLITE_HAS, has)


def _in_postgres(collection: int, leaf: Leaf) -> Condition:
    path: list[Any] = [str(collection), leaf.field]
    match leaf:
        case Exists():
            return f"{_POSTGRES_FIELD} IS NOT NULL", path
        case Bound(_, operator, str(value)):
            is_text = f"jsonb_typeof({_POSTGRES_FIELD}) = 'string'"
            return f"coalesce({is_text} AND {_POSTGRES_TEXT} {operator} %s::text, FALSE)", [*path, *path, value]
        case Bound(_, operator, value):
            is_number = f"jsonb_typeof({_POSTGRES_FIELD}) = 'number'"
            beyond = f"{_POSTGRES_FIELD} {operator} %s::jsonb"
            return f"coalesce({is_number} AND {beyond}, FALSE)", [*path, *path, json_text(value, "filter")]
        case OneOf(field, values):
            return _one_of_in_postgres(collection, field, values)


def _one_of_in_postgres(collection: int, field: str, values: Sequence[Any]) -> Condition:
    path: list[Any] = [str(collection), field]
    given = [value for value in values if value is not None]
    if len(given) > MAX_INDEXED_VALUES:
        alternatives = [_POSTGRES_IS_ONE_OF]
        bound = [*path, [json.dumps(value, ensure_ascii=False) for value in given]]
    else:
        alternatives = [_POSTGRES_IS] * len(given)
        bound = [searchable(collection, json_text({field: value}, "filter")) for value in given]
    if len(given) < len(values):
        alternatives.append(_POSTGRES_LACKS)
        bound += path
    return " OR ".join(alternatives) or "FALSE", bound
