"""Both kinds of stored collections, to be backed up and restored."""

from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from services.embed.collections.storage.catalog import Catalog
from services.embed.transfer.places import Place
from services.jobs.progress import Bars
from tests.conftest import empty_schema


@pytest.fixture
def bars() -> Bars:
    return Bars(Console(file=StringIO()))


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.process)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    """The function that makes an empty place of the kind."""
    made: list[Place] = []

    def make() -> Place:
        folder = tmp_path / f"place-{len(made)}"
        database = None
        if kind == "cluster":
            database = empty_schema(request.getfixturevalue("postgres_url"))
        made.append(Place(folder / "collections", database, (folder / "objects").as_uri(), None))
        return made[-1]

    return make


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


@pytest.fixture
def catalog(place: Place) -> Iterator[Catalog]:
    """The collections of the place, open as a service has them."""
    with closing(place.catalog()) as catalog:
        yield catalog
