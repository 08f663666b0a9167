"""A browser that the tests drive, where this machine has one."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("axe-core@4.14.1",)
FOLDER = Path(sys.prefix) / "node"
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium, or skip the test with what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"needs a browser: {', '.join(NAMES)}")
    # Its sandbox does not start as root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


def accessibility_violations(page: Any) -> list[str]:
    """The violations that axe-core finds on a page as it is now, one line for each element."""
    script = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        pytest.skip(f"needs npm install --prefix {FOLDER} {' '.join(PACKAGES)}")
    page.evaluate(script.read_text())
    # It would copy the style sheets of a shadow root inline, which the page's policy forbids, for rules that are off.
    found = page.evaluate("axe.run({ preload: false }).then(({ violations }) => violations)")
    return [f"{rule['id']}: {node['html']}: {node['failureSummary']}" for rule in found for node in rule["nodes"]]
