"""`python -m tests.curate.review.screenshots` takes the guide's pictures of the review's page anew."""

import tempfile
from pathlib import Path

import httpx2

from tests.curate.review.browsers import chromium
from tests.curate.review.reviews import PAIRS, Served, write_review
from tests.kept_port import kept_port

IMAGES = Path(__file__).parents[3] / "docs" / "images"
DESKTOP = {"width": 1100, "height": 700}
PHONE = {"width": 390, "height": 844}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, kept_port() as port, chromium() as browser:
        write_review(Path(folder))
        with Served(Path(folder), port) as served:
            page = browser.new_page()

            def take(name: str, reviewer: str, size: dict[str, int], scheme: str, *keys: str) -> None:
                page.set_viewport_size(size)
                page.emulate_media(color_scheme=scheme)
                page.goto(f"{served.url}/?reviewer={reviewer}")
                page.get_by_role("heading", level=2).wait_for()
                for key in keys:
                    before = page.get_by_role("heading", level=2).inner_text()
                    page.keyboard.press(key)
                    page.wait_for_function("before => document.querySelector('h2').innerText !== before", arg=before)
                page.wait_for_function("() => document.querySelector('img')?.complete")
                page.screenshot(path=IMAGES / f"{name}.jpg", type="jpeg", quality=72)

            take("review-desktop", "Anna", DESKTOP, "light", "1")
            take("review-phone-dark", "Ben", PHONE, "dark", "1", *["Space"] * 9)
            for reviewer, verdict in (("Anna", "valid"), ("Ben", "false_negative")):
                for pair in PAIRS:
                    differs = pair.id in ("coffee-5", "astronaut-5")
                    body = {"reviewer": reviewer, "id": pair.id, "round": 1, "verdict": verdict if differs else "valid"}
                    if differs and reviewer == "Ben":
                        body["note"] = "An astronaut is a person." if pair.id == "astronaut-5" else "Golden fits, too."
                    httpx2.post(f"{served.url}/review/verdicts", json=body).raise_for_status()
            take("review-phone", "Anna", PHONE, "light", "Space")
            take("review-desktop-dark", "Anna", DESKTOP, "dark", "Space", "Space")


if __name__ == "__main__":
    main()
