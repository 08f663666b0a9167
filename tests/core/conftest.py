from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.s3_servers import S3Server, moto_server, rclone_server
from tests.core.served_process import ServedProcess
from tests.core.store_places import StorePlace


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with rclone_server(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture(
    params=[
        "file",
        "memory",
        pytest.param("s3-without-conditions", marks=pytest.mark.process),
        pytest.param("s3-with-conditions", marks=pytest.mark.process),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """An empty store of each sort."""
    if request.param == "file":
        return StorePlace((tmp_path / "store").as_uri())
    if request.param == "memory":
        return StorePlace("memory://")
    name = "rclone" if request.param == "s3-without-conditions" else "moto"
    server: S3Server = request.getfixturevalue(name)
    return StorePlace(server.url(f"{tmp_path.parent.name}-{tmp_path.name}"), server.options)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedProcess]]:
    """Starts real server processes with the settings it is given; none outlives the test."""
    processes: list[ServedProcess] = []

    def start(**settings: Any) -> ServedProcess:
        process = ServedProcess(tmp_path / f"log-{len(processes)}", **settings)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
