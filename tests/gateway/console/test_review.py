"""The review in the console: by keyboard, with keys and tokens, and in whatever window."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.contract.running_fovea import Fovea, running_fovea
from tests.curate.review.browsers import accessibility_violations
from tests.curate.review.reviews import Served, write_review
from tests.gateway.console.visits import DESKTOP, KEY, PHONE, give_key, guarded_gateway, visit
from tests.kept_port import kept_port

pytestmark = [pytest.mark.process, pytest.mark.slow]
IS_SHOWN = (
    "image => [...document.querySelectorAll('main div')]"
    ".some(one => one.shadowRoot?.querySelector(image)?.naturalWidth > 0)"
)


@pytest.fixture(scope="module")
def served(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A review that is not started yet, on a port that a gateway knows."""
    folder = tmp_path_factory.mktemp("review")
    write_review(folder)
    with kept_port() as port:
        review = Served(folder, port)
        yield review
        review.__exit__()


@pytest.fixture(scope="module")
def fovea(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fovea]:
    """A gateway without services."""
    known = {"FOVEA_GATEWAY_REVIEW_URL": served.url, "FOVEA_GATEWAY_PROBE_INTERVAL_S": "0.05"}
    with running_fovea(tmp_path_factory.mktemp("fovea"), gateway=known, settings=known) as running:
        yield running


def shown(page: Any) -> str:
    return str(page.get_by_role("heading", level=2).inner_text()).split()[1]


def press(page: Any, key: str, pair: str) -> None:
    page.keyboard.press(key)
    page.get_by_role("heading", name=f"Pair {pair}").wait_for()


def test_a_review_is_in_the_navigation_once_it_runs_and_is_judged_by_keyboard(
    browser: Any, fovea: Fovea, served: Served
) -> None:
    with visit(browser, fovea.url) as page:
        page.goto("/console#review")
        page.get_by_text("fovea curate review pairs.jsonl").wait_for()
        page.goto("/console#status")
        assert page.locator("nav a[href='#review']").count() == 0
        served.start()
        page.locator("nav a[href='#review']").press("Enter")  # Status looks every few seconds
        page.get_by_label("Your name").fill("Anna")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Pair chelsea-1").wait_for()
        page.wait_for_url("**#review?reviewer=Anna")
        press(page, "1", "chelsea-2")
        served.end(signal.SIGKILL)
        page.keyboard.press("2")
        page.get_by_role("alert").filter(has_text="may not be saved").wait_for()
        assert shown(page) == "chelsea-2"
        served.start()
        press(page, "2", "chelsea-3")
        press(page, "3", "chelsea-4")
        press(page, "u", "chelsea-3")
        page.wait_for_function(IS_SHOWN, arg="img[src^=review]")
        page.locator("nav a[href='#status']").press("Enter")
        page.get_by_role("row").filter(has_text="review").get_by_text("● ready").wait_for()
        page.keyboard.press("1")  # is no verdict outside of the view
        page.goto("/console#review?reviewer=Ben", wait_until="commit")
        page.get_by_role("heading", name="Pair chelsea-1").wait_for()
        assert page.get_by_text("Ben", exact=True).is_visible()
    lines = httpx2.get(f"{fovea.url}/review/verdicts.jsonl", timeout=60).text.splitlines()
    assert [(one["id"], one["reviewer"], one["verdict"]) for one in map(json.loads, lines)] == [
        ("chelsea-1", "Anna", "valid"),
        ("chelsea-2", "Anna", "false_negative"),
    ]


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_it_is_accessible_and_no_wider_than_its_window(
    browser: Any, fovea: Fovea, served: Served, size: dict[str, int], scheme: str
) -> None:
    if not served.is_running:
        served.start()
    with visit(browser, fovea.url, size=size, scheme=scheme) as page:
        page.goto("/console#review")
        page.get_by_label("Your name").wait_for()
        assert accessibility_violations(page) == []
        page.get_by_label("Your name").fill("Carla")
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=2).wait_for()
        page.get_by_text("Progress and agreement").click()
        page.get_by_text("Pairs complete").wait_for()
        assert accessibility_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.fixture(scope="module")
def guarded(fovea: Fovea, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A review that needs a token, behind a gateway that needs a key: the gateway's address and the token."""
    folder = tmp_path_factory.mktemp("guarded")
    write_review(folder)
    with kept_port() as port, Served(folder, port, "--token-file", "token") as review:
        gateway = guarded_gateway(fovea, FOVEA_GATEWAY_REVIEW_URL=review.url)
        yield gateway.url, (folder / "token").read_text().strip()


def test_with_a_key_and_a_token_its_images_are_shown_and_its_verdicts_saved(
    browser: Any, guarded: tuple[str, str]
) -> None:
    url, token = guarded
    with visit(browser, url) as page:
        page.goto("/console#review?reviewer=Anna")
        give_key(page, KEY)
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Pair chelsea-1").wait_for()
        page.wait_for_function(IS_SHOWN, arg="img[src^=blob]")
        press(page, "1", "chelsea-2")
        page.get_by_text("Progress and agreement").press("Enter")
        with page.expect_download() as download:
            page.get_by_text("Download all verdicts").press("Enter")
        (line,) = Path(download.value.path()).read_text().splitlines()
        assert json.loads(line)["verdict"] == "valid"
        assert page.evaluate("document.cookie") == ""


def test_models_that_come_after_the_review_leave_its_token_where_it_is_typed(
    browser: Any, guarded: tuple[str, str]
) -> None:
    url, token = guarded
    with visit(browser, url) as page:
        held: dict[str, Any] = {}
        page.route("**/review.css", lambda route: held.update(style=route))
        with page.expect_request("**/review.css"):
            page.goto("/console#review?reviewer=Ben", wait_until="commit")
        page.get_by_role("dialog", name="API key").wait_for()
        page.route("**/v1/models", lambda route: held.update(models=route))
        with page.expect_request("**/v1/models"):
            give_key(page, KEY)
        held["style"].continue_()
        page.get_by_label("Token").fill(token)
        with page.expect_response("**/v1/models"):
            held["models"].continue_()
        page.get_by_label("Token").press("Enter")
        page.get_by_role("heading", name="Pair chelsea").wait_for()
