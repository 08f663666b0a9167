"""The console for everybody: what axe finds, on a phone and a desktop, light and dark, and all by keyboard."""

from typing import Any

import pytest

from tests.contract.running_fovea import Fovea
from tests.curate.review.browsers import accessibility_violations
from tests.gateway.console.visits import DESKTOP, FIRST, PHONE, VIEWS, make_examples, open_view, visit

pytestmark = [pytest.mark.process, pytest.mark.slow]
MAX_TABS = 120


def check(page: Any, what: str) -> None:
    """A view as it is now, in both widths and both color schemes."""
    for size in (PHONE, DESKTOP):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], what
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert accessibility_violations(page) == [], (what, size, scheme)


def tab_to(page: Any, element: Any) -> None:
    """Go on by Tab until an element has the focus."""
    for _ in range(MAX_TABS):
        if element.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {element}")


def go_to_view(page: Any, name: str) -> None:
    page.evaluate("document.activeElement.blur()")
    tab_to(page, page.locator(f"nav a[href='#{name}']"))
    page.keyboard.press("Enter")
    page.locator(FIRST[name]).first.wait_for()


def test_every_view_is_accessible_and_no_wider_than_its_window(browser: Any, fovea: Fovea) -> None:
    with visit(browser, fovea.url) as page:
        make_examples(page)
        for name in VIEWS:
            page.locator(f"nav a[href='#{name}']").press("Enter")
            page.locator(FIRST[name]).first.wait_for()
            page.wait_for_load_state("networkidle")
            if name == "ask":
                page.get_by_role("button", name="Add titles").click()
                page.get_by_text("Attention by layer").click()
                page.locator(".heat").first.wait_for()
            check(page, name)
        open_view(page, "search")
        page.locator(".hit").first.click()
        page.get_by_role("dialog").get_by_text("The vector itself").click()
        page.locator(".vectors li").first.wait_for()
        check(page, "the panel of an image")


def test_each_view_s_main_path_goes_by_keyboard_alone(page: Any) -> None:
    make_examples(page)
    keyboard = page.keyboard
    go_to_view(page, "score")
    tab_to(page, page.get_by_label("Captions, one a line"))
    keyboard.press("ControlOrMeta+a")
    keyboard.type("a yellow circle")
    keyboard.press("Control+Enter")
    page.locator(".scores li", has_text="a yellow circle").wait_for()
    tab_to(page, page.get_by_role("button", name="Attention of circle"))
    page.locator(".overlay canvas").wait_for()

    go_to_view(page, "ask")
    tab_to(page, page.get_by_label("Question", exact=True))
    keyboard.press("ControlOrMeta+a")
    keyboard.type("Who comes from Peru?")
    keyboard.press("Enter")
    page.get_by_label("Calibrated", exact=True).get_by_text("Anna Lindt").wait_for()
    tab_to(page, page.get_by_label("Document 2", exact=True).first)
    keyboard.press("Alt+ArrowUp")
    page.wait_for_function("() => document.querySelector('.documents textarea').value.startsWith('Anna Lindt')")

    go_to_view(page, "search")
    hits = page.get_by_label("What is the shape of the object?", exact=True).locator(".hit img")
    first, second = (hits.nth(i).get_attribute("alt") for i in range(2))
    tab_to(page, page.get_by_label("What is the shape of the object?", exact=True).locator(".hit").first)
    keyboard.press("Enter")
    page.get_by_role("dialog", name=first).wait_for()
    keyboard.press("ArrowRight")
    panel = page.get_by_role("dialog", name=second)
    tab_to(page, panel.get_by_role("button", name="Search with this"))
    keyboard.press("Enter")
    page.locator(".search .picture + .hint", has_text=second).wait_for()

    go_to_view(page, "rerank")
    tab_to(page, page.get_by_label("Question", exact=True))
    keyboard.press("ControlOrMeta+a")
    keyboard.type("Who owns the amber falcon?")
    keyboard.press("Enter")
    page.locator(".ranking[aria-label=calibrated] li:first-child", has_text="amber falcon").wait_for()

    go_to_view(page, "predict")
    tab_to(page, page.get_by_label("premise"))
    keyboard.press("ControlOrMeta+a")
    keyboard.type("A man is outside.")
    keyboard.press("Control+Enter")
    page.get_by_role("button", name="Predict", exact=True).wait_for()

    go_to_view(page, "status")
    page.locator(".right", has_text="● ready").first.wait_for()
