"""Parsing of users' JSON and YAML: errors name the file and line, and an object may not repeat a key."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from services.predict.data.rows import BadData


class _RepeatedKey(ValueError):
    pass


def parse_json(text: str, path: Path, first_line: int | None = None, complaint: str = "not JSON") -> Any:
    """Parse a whole file, or the one line `first_line` of it. Raises BadData, which begins with `complaint`."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        line = error.lineno if first_line is None else first_line
        raise BadData(f"{path}:{line}: {complaint} ({error.msg} at column {error.colno})") from None
    except _RepeatedKey as error:
        place = f"{path}" if first_line is None else f"{path}:{first_line}"
        raise BadData(f"{place}: {error}") from None


def parse_yaml(content: bytes, path: Path) -> Any:
    """Parse a whole file. Raises BadData."""
    try:
        loader = _UniqueKeysLoader(content)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadData(f"{path}{f':{mark.line + 1}' if mark else ''}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise BadData(f"{path}: {' '.join(str(error).split())}") from None


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKey(_repeated(next(name for name in names if names.count(name) > 1)))
    return found


class _UniqueKeysLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=_repeated(key.value), problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _repeated(name: str) -> str:
    return f"the key {name!r} occurs twice"
