"""`python -m tests.gateway.console.screenshots` takes the pictures of the console's views in README and guide anew."""

import tempfile
from pathlib import Path
from typing import Any

from tests.contract.processes import SERVICES
from tests.contract.running_fovea import running_fovea
from tests.curate.review.browsers import chromium
from tests.curate.review.reviews import Served, write_review
from tests.gateway.console.visits import (
    DESKTOP,
    FIRST,
    KEY,
    PHONE,
    give_key,
    guarded_gateway,
    make_examples,
    open_view,
    visit,
)
from tests.kept_port import kept_port

WHOLE = ("score", "ask")  # what matters is below the first screen, too
IMAGES = Path(__file__).parents[3] / "docs" / "images"


def main() -> None:
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        running_fovea(Path(folder) / "fovea", *SERVICES) as fovea,
        kept_port() as port,
    ):
        write_review(Path(folder))
        with Served(Path(folder), port) as review:
            take_with_a_key(browser, guarded_gateway(fovea, FOVEA_GATEWAY_REVIEW_URL=review.url).url)
        for size, scheme, names in (
            (DESKTOP, "light", ("score", "ask", "search", "rerank", "predict")),
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


def take_with_a_key(browser: Any, url: str) -> None:
    """Take the views that tell of the key, or of a review."""
    with visit(browser, url) as page:
        page.goto("/console#review?reviewer=Anna")
        give_key(page, KEY)
        page.get_by_role("heading", level=2).wait_for()
        page.keyboard.press("1")
        page.get_by_text("Saved: Valid.").wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=IMAGES / "console-review.jpg", type="jpeg", quality=65)
        for name in ("score", "predict", "status"):
            page.locator(f"nav a[href='#{name}']").press("Enter")
            page.locator(FIRST[name]).first.wait_for()
        page.locator(".versions li").nth(3).wait_for()
        page.locator(".own-key").wait_for()
        page.screenshot(path=IMAGES / "console-status.jpg", type="jpeg", quality=50, full_page=True)


def prepare(page: Any, name: str) -> None:
    """Bring a view to what its picture shows, and wait until all of its images are there."""
    if name == "score":
        page.get_by_role("button", name="Attention of circle").focus()
        page.locator(".overlay canvas").wait_for()
    if name == "ask":
        page.get_by_text("Attention by layer").click()
        page.locator(".heat").first.wait_for()
        page.get_by_role("button", name="Try all places").click()
        page.locator(".places tbody tr").nth(9).wait_for()
    page.evaluate("() => window.scrollTo(0, 0)")
    is_phone = page.viewport_size["width"] < DESKTOP["width"]
    if name == "search" or is_phone:
        shown = page.locator(".answers" if is_phone else ".search")
        shown.evaluate("element => window.scrollTo(0, element.getBoundingClientRect().top - 16)")
    page.wait_for_function("() => [...document.images].every(image => image.complete)")


if __name__ == "__main__":
    main()
