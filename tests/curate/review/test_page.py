"""The page of a review in a real browser, by keyboard."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.curate.review.browsers import accessibility_violations, chromium
from tests.curate.review.reviews import PAIRS, Served, write_review
from tests.kept_port import kept_port

pytestmark = pytest.mark.process

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def served(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A review, with the options that a test sets as this fixture's parameter."""
    write_review(tmp_path)
    with kept_port() as port, Served(tmp_path, port, *getattr(request, "param", ())) as started:
        yield started


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """A page whose console stays empty and that asks no other server for anything."""
    complaints: list[str] = []
    opened = browser.new_page(viewport=DESKTOP)
    requested: list[str] = []
    opened.on("request", lambda one: requested.append(one.url))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda line: complaints.append(line.text))
    yield opened
    opened.close()
    # A server that was killed on purpose is no fault of the page's.
    assert [text for text in complaints if "ERR_CONNECTION" not in text] == []
    assert [url for url in requested if not url.startswith(served.url)] == []


def begin(page: Any, served: Served, reviewer: str) -> None:
    page.goto(f"{served.url}/?reviewer={reviewer}")
    page.get_by_role("heading", level=2).wait_for()


def shown(page: Any) -> str:
    """The id of the pair on the page."""
    text: str = page.get_by_role("heading", level=2).inner_text()
    return text.split()[1]


def press(page: Any, key: str) -> None:
    """Press a key and wait until the page has what came of it."""
    before = page.get_by_role("heading", level=2).inner_text()
    page.keyboard.press(key)
    page.wait_for_function("before => document.querySelector('h2').innerText !== before", arg=before)


def exported(served: Served) -> list[dict[str, Any]]:
    return [json.loads(line) for line in httpx2.get(f"{served.url}/review/verdicts.jsonl").text.splitlines()]


def test_twenty_verdicts_by_keyboard_survive_a_kill_and_are_undone_and_agreed_upon(page: Any, served: Served) -> None:
    page.goto(served.url)
    page.get_by_label("Your name").wait_for()
    page.keyboard.type("Anna")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="chelsea-1").wait_for()
    given: dict[str, str] = {}
    for place in range(len(PAIRS)):
        if place == 7:
            served.end(signal.SIGKILL)
            page.keyboard.press("2")
            page.get_by_role("alert").get_by_text("may not be saved").wait_for()
            served.start()
        id = shown(page)
        given[id] = "2" if id.endswith("5") else "1"
        press(page, given[id])
    assert page.get_by_role("heading", level=2).inner_text() == "No pair for you"
    served.end(signal.SIGKILL)
    served.start()
    assert {one["id"]: one["verdict"] for one in exported(served)} == {
        pair.id: "false_negative" if pair.id.endswith("5") else "valid" for pair in PAIRS
    }

    press(page, "u")
    assert shown(page) == "rocket-5"
    page.keyboard.press("n")
    page.keyboard.type("1 or 2? They are rods")
    page.keyboard.press("Escape")
    press(page, "2")

    begin(page, served, "Ben")
    for _ in PAIRS[:-1]:
        press(page, "1")
    press(page, "3")
    assert page.get_by_role("heading", level=2).inner_text() == "The second round"
    page.get_by_text("Progress and agreement").press("Enter")
    told = page.get_by_text("Cohen's kappa").locator("xpath=following-sibling::dd[1]")
    # Both say valid of 16 of 20; Anna has 16 and 4 false negatives, Ben 19 and 1 unclear: p_o 0.8, p_e 0.76.
    assert told.inner_text() == "0.167, over 20 pairs"
    page.get_by_role("heading", level=2).focus()
    press(page, "Space")
    seen = [shown(page)]
    assert "Anna: False negative" in page.get_by_role("list").inner_text()
    for _ in range(3):
        press(page, "2")
        seen += re.findall(r"Pair (\S+)", page.get_by_role("heading", level=2).inner_text())
    assert seen == ["chelsea-5", "coffee-5", "astronaut-5", "rocket-5"]
    assert "“1 or 2? They are rods”" in page.get_by_role("list").inner_text()

    with page.expect_download() as download:
        page.get_by_text("Download all verdicts").press("Enter")
    lines = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert lines == exported(served)
    assert len(lines) == 2 * len(PAIRS) + 3


def test_a_pair_is_left_for_later_and_a_held_key_judges_one_pair(page: Any, served: Served) -> None:
    begin(page, served, "Anna")
    press(page, "Space")
    assert shown(page) == "chelsea-2"
    page.keyboard.down("1")
    page.get_by_role("heading", name="chelsea-3").wait_for()
    for _ in range(5):
        page.keyboard.down("1")  # as the keyboard repeats it
    page.keyboard.up("1")
    press(page, "Space")
    assert shown(page) == "chelsea-4"
    assert [one["id"] for one in exported(served)] == ["chelsea-2"]


def test_a_space_after_a_click_leaves_the_pair_and_does_not_press_the_button_again(page: Any, served: Served) -> None:
    begin(page, served, "Anna")
    page.get_by_role("button", name="Unclear").click()
    page.get_by_role("heading", name="chelsea-2").wait_for()
    press(page, "Space")
    assert shown(page) == "chelsea-3"
    assert [one["id"] for one in exported(served)] == ["chelsea-1"]


def test_single_keys_can_be_switched_off(page: Any, served: Served) -> None:
    begin(page, served, "Anna")
    page.get_by_label("Judge by single keys").click()
    page.get_by_role("heading", level=2).focus()
    page.keyboard.press("1")
    page.get_by_role("button", name="Valid").focus()
    press(page, "Enter")
    assert [one["id"] for one in exported(served)] == ["chelsea-1"]


CHOICE = ("--task", "choice", "--reviewers-per-pair", "1")
GRAMMAR = ("--task", "grammar", "--reviewers-per-pair", "1", "--theirs", "pairs.jsonl")


@pytest.mark.parametrize("served", [CHOICE], indirect=True)
def test_a_person_chooses_the_true_caption_by_keyboard_without_a_hint_of_which_it_is(page: Any, served: Served) -> None:
    begin(page, served, "Anna")
    true = {pair.caption: pair.id for pair in PAIRS}
    for number in range(1, len(PAIRS) + 1):
        assert page.get_by_role("heading", level=2).inner_text().strip() == f"Pair {number}"
        assert page.get_by_text("Which caption describes the image?").is_visible()
        assert page.locator("mark").count() == 0
        first, second = page.locator(".caption p").all_inner_texts()
        assert (first in true) is not (second in true)
        page.keyboard.press("3")  # a tie is no answer to a forced choice
        press(page, "1" if first in true else "2")
    assert page.get_by_text("Nothing is left to judge.").is_visible()
    lines = exported(served)
    assert {one["id"] for one in lines} == {pair.id for pair in PAIRS}
    assert {one["is_right"] for one in lines} == {True}
    assert {one["first"] for one in lines} == {"caption", "negative_caption"}
    assert {one["verdict"] for one in lines} == {"first", "second"}


@pytest.mark.parametrize("served", [GRAMMAR], indirect=True)
def test_a_person_says_which_of_two_negatives_is_better_or_that_they_tie(page: Any, served: Served) -> None:
    begin(page, served, "Anna")
    for key in "123":
        assert page.get_by_text("Which text is better English, grammatical and fluent?").is_visible()
        assert page.locator(".caption h3").all_inner_texts() == ["Caption", "First", "Second"]
        assert page.locator("img").count() == 0
        press(page, key)
    assert sorted((one["verdict"], one["quality"]) for one in exported(served)) == [
        ("first", "grammar"),
        ("second", "grammar"),
        ("tie", "grammar"),
    ]
    press(page, "u")
    assert len(exported(served)) == 2


def test_differing_words_are_marked_in_both_captions(page: Any, served: Served) -> None:
    begin(page, served, "Anna")
    assert page.locator("mark").all_inner_texts() == ["cat", "dog"]


def test_a_missing_image_is_told(page: Any, served: Served, tmp_path: Path) -> None:
    (tmp_path / "images" / "chelsea.png").unlink()
    begin(page, served, "Anna")
    told = page.get_by_role("alert").filter(has_text="chelsea.png")
    assert told.inner_text() == "The image 'chelsea.png' is not in the folder of images."


def test_the_name_is_kept_for_the_next_visit(page: Any, served: Served) -> None:
    begin(page, served, "Anna")
    page.goto(served.url)
    page.get_by_role("heading", name="chelsea-1").wait_for()
    assert page.url == f"{served.url}/?reviewer=Anna"


@pytest.mark.parametrize("served", [CHOICE, GRAMMAR], indirect=True, ids=["choice", "grammar"])
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_measurements_of_people_are_accessible_and_no_wider_than_their_window(
    page: Any, served: Served, scheme: str, size: dict[str, int]
) -> None:
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    page.goto(served.url)
    page.get_by_label("Your name").fill("Anna")
    assert accessibility_violations(page) == []
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=2).wait_for()
    press(page, "1")
    page.get_by_text("Progress and agreement").press("Enter")
    page.get_by_text("Pairs complete").wait_for()
    assert accessibility_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_view_is_accessible_and_no_wider_than_its_window(
    page: Any, served: Served, scheme: str, size: dict[str, int]
) -> None:
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)

    def check() -> None:
        assert accessibility_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]

    page.goto(served.url)
    page.get_by_label("Your name").wait_for()
    check()
    for reviewer, key in (("Anna", "1"), ("Ben", "2")):
        begin(page, served, reviewer)
        page.get_by_text("Progress and agreement").press("Enter")
        page.get_by_text("Pairs complete").wait_for()
        check()
        page.get_by_role("heading", level=2).focus()
        for _ in PAIRS:
            press(page, key)
        check()
    press(page, "Space")
    assert page.get_by_text("Verdicts so far").is_visible()
    check()


def test_a_review_with_a_token_opens_by_its_address_alone(browser: Any, tmp_path: Path) -> None:
    write_review(tmp_path)
    with kept_port() as port, Served(tmp_path, port, "--token-file", "token") as served:
        served.end()
        address = served.start()
        page = browser.new_page()
        page.goto(served.url)
        page.get_by_label("Token").wait_for()
        page.goto("about:blank")
        page.goto(address)
        page.get_by_label("Your name").fill("Anna")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="chelsea-1").wait_for()
        assert page.url == f"{served.url}/?reviewer=Anna"
        page.wait_for_function("() => document.querySelector('img')?.naturalWidth > 0")
        page.close()
