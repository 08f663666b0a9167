"""Results of evaluations in files: a JSON list of records, so that several runs can be combined in one table."""

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from services.core.durable_files import write_durably
from services.core.refusals import first_complaint
from services.core.text_files import BadFile, read_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ResultT = TypeVar("ResultT", bound="DataclassInstance")


class ResultFiles(Generic[ResultT]):
    """Files of results of one kind, a dataclass with fields that JSON can represent.

    Results have the same subject if `subject` gives the same value. Two of them are combined by `combine` if they have
    the same `settings`; otherwise the later one replaces the earlier.
    """

    def __init__(
        self,
        kind: type[ResultT],
        subject: Callable[[ResultT], Hashable],
        combine: Callable[[ResultT, ResultT], ResultT],
        settings: Callable[[ResultT], object] = attrgetter("settings"),
    ) -> None:
        self._kind = kind
        self._subject = subject
        self._settings = settings
        self._combine = combine

    def merge(self, results: Iterable[ResultT]) -> list[ResultT]:
        """Combine results of the same subject, in the order of their first appearance."""
        merged: dict[Hashable, ResultT] = {}
        for result in results:
            subject = self._subject(result)
            earlier = merged.get(subject)
            is_same = earlier is not None and self._settings(earlier) == self._settings(result)
            merged[subject] = self._combine(earlier, result) if earlier is not None and is_same else result
        return list(merged.values())

    def load(self, paths: Iterable[Path]) -> list[ResultT]:
        """Read and merge the results of files that `save` wrote. Raises BadFile for other content."""
        results = []
        for path in paths:
            entries = read_json(path, may_have_nan=True)  # a score of nothing is NaN
            try:
                results += TypeAdapter(list[self._kind]).validate_python(entries)  # type: ignore[name-defined]
                [self._kind(**entry) for entry in entries]  # which refuses unknown fields
            except ValidationError as invalid:
                raise BadFile(f"{path} does not contain results: {first_complaint(invalid, 'the file')}") from None
            except TypeError as error:
                raise BadFile(f"{path} does not contain results: {error}") from None
        return self.merge(results)

    def save(self, results: Sequence[ResultT], path: Path) -> None:
        """Add results to those that the file holds already; its folder is made if it is missing.

        The file is always complete. Raises OSError, and BadFile if it holds something else.
        """
        earlier = self.load([path]) if path.is_file() else []
        self.write(self.merge([*earlier, *results]), path)

    def write(self, results: Sequence[ResultT], path: Path) -> None:
        """Replace the file's content with results. Raises OSError."""
        entries = [asdict(result) for result in results]
        write_durably(path, [json.dumps(entries, indent=2).encode() + b"\n"])
