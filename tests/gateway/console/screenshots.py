"""`python -m tests.gateway.console.screenshots` takes the pictures of the console's views in README and guide anew."""

import tempfile
from pathlib import Path
from typing import Any

from tests.contract.processes import SERVICES
from tests.contract.running_fovea import running_fovea
from tests.curate.review.browsers import chromium
from tests.gateway.console.visits import DESKTOP, PHONE, make_examples, open_view, visit

WHOLE = ("score", "ask")  # what matters is below the first screen, too
IMAGES = Path(__file__).parents[3] / "docs" / "images"


def main() -> None:
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        running_fovea(Path(folder), *SERVICES) as fovea,
    ):
        for size, scheme, names in (
            (DESKTOP, "light", ("score", "ask", "search", "rerank", "predict", "status")),
            (PHONE, "dark", ("ask",)),
        ):
            with visit(browser, fovea.url, size=size, scheme=scheme) as page:
                make_examples(page)
                for name in names:
                    open_view(page, name)
                    prepare(page, name)
                    device = "-phone" if size is PHONE else ""
                    shade = "-dark" if scheme == "dark" else ""
                    path = IMAGES / f"console-{name}{device}{shade}.jpg"
                    page.screenshot(path=path, type="jpeg", quality=65, full_page=size is DESKTOP and name in WHOLE)


def prepare(page: Any, name: str) -> None:
    """Bring a view to what its picture shows, and wait until all of its images are there."""
    if name == "score":
        page.get_by_role("button", name="Attention of circle").hover()
        page.locator(".overlay canvas").wait_for()
    if name == "ask":
        page.get_by_text("Attention by layer").click()
        page.locator(".heat").first.wait_for()
        page.get_by_role("button", name="Try all places").click()
        page.locator("tbody tr").nth(9).wait_for()
    page.evaluate("() => window.scrollTo(0, 0)")
    is_phone = page.viewport_size["width"] < DESKTOP["width"]
    if name == "search" or is_phone:
        shown = page.locator(".answers" if is_phone else ".search")
        shown.evaluate("element => window.scrollTo(0, element.getBoundingClientRect().top - 16)")
    page.wait_for_function("() => [...document.images].every(image => image.complete)")


if __name__ == "__main__":
    main()
