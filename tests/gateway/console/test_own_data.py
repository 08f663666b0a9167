"""The console with the visitor's own pictures, questions and documents."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.contract.running_fovea import Fovea
from tests.gateway.console.visits import ANSWERED, make_examples, open_view, paste, write_pictures

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def own(fovea: Fovea) -> Iterator[str]:
    """The name of a collection that is not there yet."""
    yield "own-pictures"
    for name in ("own-pictures", "empty"):
        httpx2.delete(f"{fovea.url}/collections/{name}")


def query(page: Any, name: str) -> None:
    """Wait until an image of the collection is the query, and has results."""
    page.locator(".search .picture + .hint").filter(has_text=name).wait_for()
    page.locator(".hit").first.wait_for()
    assert page.locator(".column .wrong").count() == 0


def test_own_pictures_are_searched_with_and_those_left_out_are_told(
    page: Any, fovea: Fovea, own: str, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    write_pictures(folder, 3)
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("no picture")
    httpx2.put(f"{fovea.url}/collections/empty").raise_for_status()
    make_examples(page)
    page.get_by_text("Make or fill a collection").click()
    page.get_by_text("Add images …").click()
    page.get_by_text("Type a name for the collection first.").wait_for()
    files = page.locator("input[accept='image/*'][multiple]")
    files.set_input_files(folder / "0.png")
    assert page.locator(".added").count() == 0 or "console-examples" in page.locator(".added").inner_text()
    page.get_by_label("Name of the collection").fill(own)
    files.set_input_files(sorted(folder.iterdir()))
    page.get_by_text(f"3 images stored in {own}.").wait_for()
    page.get_by_text("Make or fill a collection").click()
    assert page.locator(".added summary").inner_text() == "2 not added"
    assert {text.split(":")[0] for text in page.locator(".added li").all_inner_texts()} == {"broken.png", "notes.txt"}
    query(page, "0.png")
    page.get_by_role("button", name="Search with 2.png").click()
    query(page, "2.png")
    collections = page.locator(".collection select")
    collections.select_option("console-examples")
    query(page, "purple-heart.jpg")
    collections.select_option(own)
    query(page, "0.png")
    collections.select_option("empty")
    page.get_by_text("No picture to search with").wait_for()
    assert page.locator(".column .wrong").count() == 0
    page.goto("about:blank")
    page.goto(f"/console#search?collection={own}&id=gone.png")
    query(page, "0.png")


def test_results_of_an_index_that_is_being_built_do_not_count_its_images(page: Any) -> None:
    make_examples(page)

    def building(route: Any) -> None:
        body = route.fetch().json()
        body["index"].update(size=0, state="building", exact=True)
        route.fulfill(json=body)

    page.route("**/search", building)
    open_view(page, "search")
    assert page.locator(".column .hint").first.inner_text() == "all images compared; the index is being built"


def test_what_an_example_expects_is_forgotten_with_it_and_what_was_typed_is_kept(page: Any) -> None:
    open_view(page, "ask")
    expected = page.get_by_label("Expected answer")
    page.get_by_label("Document 5", exact=True).first.focus()
    page.keyboard.press("Alt+ArrowUp")
    page.locator(".gold input").nth(3).and_(page.locator(":checked")).wait_for()
    assert expected.input_value() == "Anna Berg"
    page.get_by_label("Question", exact=True).fill("Who comes from Peru?")
    page.wait_for_function("() => !document.querySelector('.gold :checked')")
    assert expected.input_value() == ""
    page.keyboard.press("Enter")
    page.get_by_label("Calibrated", exact=True).get_by_text("Anna Lindt").wait_for()
    assert page.locator(".answer .right, .answer .wrong").count() == 0
    assert page.get_by_role("button", name="Try all places").get_attribute("aria-disabled") == "true"
    expected.fill("Anna Lindt")
    page.get_by_label("Document 1", exact=True).first.fill("Otto Berg comes from Sweden.")
    assert expected.input_value() == "Anna Lindt"


def test_pasted_lines_become_documents_and_all_are_cleared_once_confirmed(page: Any) -> None:
    open_view(page, "ask")
    texts = page.locator(".documents textarea")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Clear all").click()
    assert texts.count() == 10
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Clear all").click()
    page.wait_for_function("() => document.activeElement === document.querySelector('.documents textarea')")
    assert [one.input_value() for one in texts.all()] == [""]
    paste(texts.first, "A sentence that\nis wrapped.")
    paste(texts.first, "Ida has a cat.\nOtto has a dog.\n\tMira has a bird.\n")
    page.wait_for_function("() => document.querySelectorAll('.documents textarea').length === 3")
    assert [one.input_value() for one in texts.all()] == ["Ida has a cat.", "Otto has a dog.", "Mira has a bird."]
    page.get_by_label("Question", exact=True).fill("Who has a dog?")
    texts.nth(1).focus()
    page.keyboard.press("Control+Enter")
    page.locator(ANSWERED).first.wait_for()
    assert [one.input_value() for one in texts.all()] == ["Ida has a cat.", "Otto has a dog.", "Mira has a bird."]


def test_rankings_of_an_earlier_question_are_marked_until_it_is_ranked_again(page: Any) -> None:
    open_view(page, "rerank")
    outdated = page.get_by_text("Outdated:")
    assert outdated.count() == 0
    page.get_by_label("Question", exact=True).fill("Who owns the amber falcon?")
    outdated.wait_for()
    page.get_by_label("Document 1", exact=True).focus()
    page.keyboard.press("Control+Enter")
    outdated.wait_for(state="detached")
    page.locator(".ranking[aria-label=calibrated] li:first-child", has_text="amber falcon").wait_for()
    page.get_by_label("Document 1", exact=True).fill("Nobody owns the amber falcon.")
    outdated.wait_for()
