"""The routes of collections over a library in memory."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings
from services.embed.collections.http.routes import collections_router
from tests.embed.collections.in_memory import LIMITS, PHOTO, InMemory, as_base64


@pytest.fixture
def library() -> InMemory:
    """With one empty collection, `things`."""
    library = InMemory()
    library.stored["things"] = {}
    return library


@pytest.fixture
def client(library: InMemory) -> Iterator[TestClient]:
    parts = AppParts("embed", "test", Metrics("embed"), Health(), routers=[collections_router(library, LIMITS)])
    with TestClient(
        create_app(ProcessSettings(port=0), parts), raise_server_exceptions=False, base_url="http://localhost"
    ) as client:
        yield client


@pytest.fixture
def filled(client: TestClient) -> TestClient:
    """With the images 00.png to 07.png."""
    images = [{"id": f"{n:02}.png", "image": as_base64(PHOTO), "metadata": {"n": n}} for n in range(8)]
    assert client.post("/collections/things/images", json={"images": images}).status_code == 201
    return client
