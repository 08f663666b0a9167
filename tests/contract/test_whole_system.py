"""Whatever is replaced, lost and put back under load, no request fails: the drills that operators play."""

from collections.abc import Iterator

import pytest

from benchmarks.drills import DRILLS, Deployment, deployed, drilled, missing_packages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    if missing := missing_packages():
        pytest.skip(f"not installed: {', '.join(missing)}")
    with deployed(tmp_path_factory.mktemp("drills")) as site:
        yield site


@pytest.mark.slow
@pytest.mark.parametrize("name", DRILLS)
async def test_a_drill_ends_with_nothing_lost(name: str, site: Deployment) -> None:
    outcome = await drilled(name, site)
    assert outcome.failures == []
    assert outcome.answered > 100
