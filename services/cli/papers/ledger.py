"""The papers' ledger: every table, figure, method and protocol, with its published numbers and its command.

The rows are data: `ledger/*.toml`, one file a chapter or paper, and `ledger/data.toml` for what their commands read.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.core.refusals import Refused, first_complaint
from services.core.text_files import read_toml

FOLDER = Path(__file__).parent / "ledger"

Status = Literal["runs", "needs data", "not runnable"]
Kind = Literal["table", "figure", "method", "protocol"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Published(_Part):
    """Numbers of one published table, or of a text that says what a figure shows; a dash is a cell without one."""

    source: str
    page: int = Field(ge=1)
    columns: tuple[str, ...] = Field(min_length=1)
    rows: dict[str, tuple[float | Literal["–"], ...]] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_rectangular(self) -> Self:
        for name, cells in self.rows.items():
            if len(cells) != len(self.columns):
                raise ValueError(f"{self.source}: {name!r} has {len(cells)} numbers for {len(self.columns)} columns")
        return self

    def cells(self) -> Iterator[tuple[str, str, float]]:
        """Yield row, column and number of each cell that has one."""
        for row, numbers in self.rows.items():
            for column, number in zip(self.columns, numbers, strict=True):
                if not isinstance(number, str):
                    yield row, column, number


class Data(_Part):
    """Files that commands read: places below `--data`, and globs of all files of such a place by their source.

    A place without globs is a file itself.
    """

    paths: tuple[str, ...] = Field(min_length=1)
    files: dict[str, tuple[str, ...]] = Field(min_length=1)

    def lacking(self, place: Path | None) -> dict[str, list[str]]:
        """Return what of the files is not in a place, by source."""
        lacking: dict[str, list[str]] = {}
        for source, globs in self.files.items():
            for glob in globs or ("",):
                found = place is not None and (any(place.glob(glob)) if glob else place.is_file())
                if not found:
                    lacking.setdefault(source, []).append(f"/{glob}" if glob else "")
        return lacking

    @property
    def told(self) -> str:
        """List the places and, in a line each, who has which files."""
        return "\n  ".join(
            [" or ".join(self.paths), *(f"{', '.join(globs)} from {one}".strip() for one, globs in self.files.items())]
        )


class Comparison(_Part):
    """The places in a command's JSON of its own numbers for published cells.

    `key` leads from the document to the number; `{row}`, `{column}` and `{beside}` stand for the names that `rows` and
    `columns` give to published ones. `over` leads to what the number is divided by. `file` lies in the run's folder;
    without one the document is the last line that the command prints. `by` names another model than the run's.
    """

    source: str
    key: tuple[str, ...] = Field(min_length=1)
    over: tuple[str, ...] = ()
    file: str = ""
    rows: dict[str, str] = Field(min_length=1)
    columns: dict[str, str] = Field(min_length=1)
    factor: float = 1.0
    tolerance: float = Field(ge=0)
    by: str = ""


class Row(_Part):
    """One item of a paper. `models` stand in for the paper's, each beside the published row that names it.

    `recipes` are the trainings of published rows: the words for `{recipe}` in a step that writes `{out}/run`.
    """

    id: str
    kind: Kind
    title: str
    page: int = Field(ge=1)
    status: Status
    why: str = ""
    steps: tuple[tuple[str, ...], ...] = ()
    models: dict[str, str] = {}
    recipes: dict[str, tuple[str, ...]] = {}
    weights: str = ""
    data: dict[str, Data] = {}
    published: tuple[Published, ...] = ()
    compare: tuple[Comparison, ...] = ()
    recorded: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _says_what_its_status_needs(self) -> Self:
        if (self.status == "not runnable") is bool(self.steps):
            raise ValueError(f"{self.id}: a row has steps unless it is not runnable")
        if self.status != "runs" and not (self.why or self.weights or self.data):
            raise ValueError(f"{self.id}: {self.status}, but neither why, weights nor data say what is missing")
        for comparison in self.compare:
            if comparison.source not in {one.source for one in self.published}:
                raise ValueError(f"{self.id}: compares with {comparison.source}, of which it has no numbers")
        return self

    def steps_for(self, beside: str, model: str) -> tuple[tuple[str, ...], ...]:
        """Return all steps, with the published row's recipe; of a model that is there, those after its training."""
        if model or not self.recipes:
            return self.steps[
                max((place for place, step in enumerate(self.steps, 1) if "{recipe}" in step), default=0) :
            ]
        words = {"{recipe}": self.recipes[beside]}
        return tuple(tuple(one for word in step for one in words.get(word, (word,))) for step in self.steps)


class Paper(_Part):
    """The rows of one chapter or paper, and the document that has them."""

    paper: str
    document: str
    row: tuple[Row, ...]

    @model_validator(mode="before")
    @classmethod
    def _rows_have_the_data_of_their_steps(cls, paper: Any) -> Any:
        for row in paper["row"]:
            words = str([row.get("steps"), row.get("recipes")])
            row["data"] = {name: one for name, one in _data().items() if f"{{data.{name}}}" in words}
        return paper


@cache
def papers() -> tuple[Paper, ...]:
    """Read all files of the ledger. Raises Refused for an invalid one."""
    return tuple(_read(path) for path in sorted(FOLDER.glob("[1-9]-*.toml")))


@cache
def _data() -> dict[str, Any]:
    return read_toml(FOLDER / "data.toml")


def rows() -> dict[str, Row]:
    """Return the rows of all papers by id."""
    return {row.id: row for paper in papers() for row in paper.row}


def count_by_status() -> dict[Status, int]:
    return {status: sum(row.status == status for row in rows().values()) for status in get_args(Status)}


def _read(path: Path) -> Paper:
    try:
        return Paper.model_validate(read_toml(path))
    except ValidationError as invalid:
        raise Refused(f"{path.name}: {first_complaint(invalid, 'the file')}") from None
