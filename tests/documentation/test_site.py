"""The documentation site builds without a warning and needs nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.blocks import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it; a broken link, a dead anchor or a page out of the nav fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_part_of_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = page.relative_to(ROOT / "docs").with_suffix(".html")
        built = built.with_stem("index") if built.stem == "README" else built
        assert (site / built).is_file(), built


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = [
        found
        for page in site.rglob("*.html")
        for found in re.findall(r"<(?:script|img|link)[^>]+?(?:src|href)=\"?(?:https?:)?//[^>]*>", page.read_text())
    ]
    assert loaded == []


def test_settings_and_routes_are_found_by_search(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for text in ("FOVEA_REDIS_URL", "/hard-negatives", "FoveaQueueFull", "fovea store rollback"):
        assert text in index, text
