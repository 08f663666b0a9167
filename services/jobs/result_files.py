"""Results of evaluations in files: a JSON list of records, so that several runs come together in one table."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from services.core.durable_files import write_durably

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ResultT = TypeVar("ResultT", bound="DataclassInstance")


class ResultFiles(Generic[ResultT]):
    """Files of results of one kind, a dataclass whose fields JSON can hold.

    `merge` makes one result of those that are of the same thing, in the order of their first appearance.
    """

    def __init__(self, kind: type[ResultT], merge: Callable[[Iterable[ResultT]], list[ResultT]]) -> None:
        self._kind = kind
        self._merge = merge

    def load(self, paths: Sequence[Path]) -> list[ResultT]:
        """The results of files that `save` wrote, merged. Raises OSError, or ValueError for another content."""
        results = []
        for path in paths:
            try:
                results += [self._kind(**entry) for entry in json.loads(path.read_text())]
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path} holds no results: {error}") from error
        return self._merge(results)

    def save(self, results: Sequence[ResultT], path: Path) -> None:
        """Write results, beside those that the file holds already, into a folder that is made where it is missing.

        The file is whole at any time. Raises OSError, and ValueError where it holds something else.
        """
        earlier = self.load([path]) if path.is_file() else []
        self.write(self._merge([*earlier, *results]), path)

    def write(self, results: Sequence[ResultT], path: Path) -> None:
        """Write results in place of what the file holds. Raises OSError."""
        entries = [asdict(result) for result in results]
        write_durably(path, [json.dumps(entries, indent=2).encode() + b"\n"])
