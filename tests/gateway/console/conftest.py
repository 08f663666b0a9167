"""A browser and a Fovea for all tests; one that stops a service starts it again at its address."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.processes import SERVICES
from tests.contract.running_fovea import Fovea, running_fovea
from tests.curate.review.browsers import chromium
from tests.gateway.console.visits import visit


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="package")
def fovea(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fovea]:
    with running_fovea(tmp_path_factory.mktemp("fovea"), *SERVICES) as running:
        yield running


@pytest.fixture
def page(browser: Any, fovea: Fovea) -> Iterator[Any]:
    with visit(browser, fovea.url) as opened:
        yield opened
