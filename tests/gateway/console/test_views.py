"""Each view of the console in a real browser, against the real gateway and services."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import pytest

from tests.contract.running_fovea import Fovea
from tests.gateway.console.visits import (
    ANSWERED,
    FIRST,
    make_examples,
    open_view,
    paste,
    visit,
    write_pictures,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]
TYPE_AND_RELOAD = (
    "text => { const field = document.querySelector('.documents textarea'); field.value = text; "
    "field.dispatchEvent(new Event('input', { bubbles: true })); location.reload(); }"
)
COLOR, SHAPE = "What is the color of the object?", "What is the shape of the object?"


def brightness(page: Any, *places: tuple[float, float]) -> list[int]:
    """The sums of red, green and blue of the large spotlight at places (x, y), in shares of its sides."""
    found: list[int] = page.locator(".overlay canvas").evaluate(
        "(canvas, places) => { "
        "const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); "
        "return places.map(([x, y]) => { const i = 4 * (Math.floor(y * canvas.height) * canvas.width + "
        "Math.floor(x * canvas.width)); return data[i] + data[i + 1] + data[i + 2]; }); }",
        places,
    )
    return found


def test_score_shows_the_true_caption_at_once_and_where_each_word_looks(page: Any) -> None:
    page.goto("/console")
    best = page.locator(".scores .best")
    assert "a blue square left of a yellow circle" in best.inner_text()
    assert page.locator(".words li").count() == 8
    assert page.get_by_text("bright is where the word matches the picture").is_visible()
    circle, background = (0.74, 0.5), (0.05, 0.05)
    page.get_by_role("button", name="Attention of circle").hover()
    page.locator(".overlay canvas").wait_for()
    page.wait_for_function("() => document.querySelector('.overlay canvas').height > 200")
    of_circle, of_background = brightness(page, circle, background)
    assert of_circle > of_background
    page.get_by_role("heading", level=1).hover()
    assert page.locator(".overlay canvas").count() == 0


def test_hard_negatives_join_the_captions_at_one_click_and_lose(page: Any) -> None:
    open_view(page, "score")
    page.get_by_role("button", name="Add hard negatives").click()
    page.locator(".scores .tag").first.wait_for()
    assert page.locator(".scores li").count() > 3
    assert "a blue square left of a yellow circle" in page.locator(".scores .best").inner_text()
    assert page.locator(".scores .best .tag").count() == 0


def test_captions_are_scored_by_keyboard_alone_and_a_link_shows_them_to_another(
    page: Any, browser: Any, fovea: Fovea
) -> None:
    open_view(page, "score")
    page.get_by_role("heading", level=1).focus()
    captions = page.get_by_label("Captions, one a line")
    while not captions.evaluate("element => element === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("two red stars\na yellow circle & a blue square = 100 %?")
    page.keyboard.press("Control+Enter")
    page.locator(".scores li").filter(has_text="= 100 %?").wait_for()
    with visit(browser, fovea.url) as other:
        page.wait_for_url("**captions=**two+red+stars**")
        other.goto(page.url)
        other.locator(".scores li").first.wait_for()
        assert other.get_by_label("Captions, one a line").input_value() == captions.input_value()
        assert other.locator(".scores").inner_text() == page.locator(".scores").inner_text()


def test_calibration_changes_an_answer_and_the_bars_tell_why(page: Any) -> None:
    open_view(page, "ask")
    assert "Anna Berg" not in page.get_by_label("Uncalibrated", exact=True).inner_text()
    assert "Anna Berg" in page.get_by_label("Calibrated", exact=True).inner_text()
    text = page.get_by_label("Uncalibrated", exact=True).locator(".text")
    tokens = text.locator(".token")
    tokens.first.wait_for()
    assert "".join(tokens.all_text_contents()) == text.inner_text()
    assert min(float(token.get_attribute("title").removesuffix(" %")) for token in tokens.all()) < 90
    gold = page.locator(".documents li").nth(4).locator(".share .number")
    before, after = (float(text.removesuffix(" %")) for text in gold.all_inner_texts())
    assert after > 90 > before
    shares = [float(text.removesuffix(" %")) for text in page.locator(".share:first-child .number").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.6)

    page.get_by_text("Attention by layer").click()
    before, of_dummies, after = (page.get_by_role("region", name=name) for name in ("Before", "Bias of", "After"))
    deciding = before.locator("tr", has=page.locator("abbr"))
    deciding.wait_for()
    assert [float(text) for text in deciding.locator("td").all_inner_texts()] == pytest.approx(shares, abs=0.6)
    assert before.locator("tbody tr").count() == 6
    assert of_dummies.locator("tbody tr").count() == 2  # what follows the last layer that decides is not measured
    assert [float(text) for text in after.locator("td.marked").all_inner_texts()] == [100, 100]
    page.wait_for_url("**layers=true**")


def test_the_document_that_answers_goes_through_all_places(page: Any) -> None:
    open_view(page, "ask")
    page.get_by_role("button", name="Try all places").click()
    page.locator("tbody tr").nth(9).wait_for()
    uncalibrated, calibrated = (int(text.split()[0]) for text in page.locator(".total .number").all_inner_texts())
    assert calibrated > uncalibrated
    assert page.locator("tbody tr").count() == 10


def test_documents_have_titles_that_pastes_links_and_drafts_keep(page: Any) -> None:
    titled = [{"title": "Corin Blackwood", "text": "Corin owns the parrot."}, "Belan owns the otter."]
    open_view(page, "ask", f"?query=Who%20owns%20the%20otter%3F&expected=Belan&documents={quote(json.dumps(titled))}")
    titles = page.locator(".documents .title")
    assert [one.input_value() for one in titles.all()] == ["Corin Blackwood", ""]
    paste(
        page.get_by_label("Document 2", exact=True).first,
        "# Danis Crowley\nDanis owns\nthe falcon.\n\n# Elra\n\nElra owns the badger.",
    )
    page.wait_for_function("() => document.querySelectorAll('.documents .title').length === 4")
    titles.nth(1).fill("Belan Ashford")
    with page.expect_request("**/generate") as sent:
        page.get_by_role("button", name="Ask", exact=True).click()
    assert sent.value.post_data_json["documents"] == [
        titled[0],
        {"title": "Belan Ashford", "text": "Belan owns the otter."},
        {"title": "Danis Crowley", "text": "Danis owns the falcon."},
        {"title": "Elra", "text": "Elra owns the badger."},
    ]
    page.locator(FIRST["ask"]).first.wait_for()
    page.wait_for_load_state("networkidle")  # what a reload breaks off is no part of this
    page.reload()
    page.locator(FIRST["ask"]).first.wait_for()
    page.wait_for_load_state("networkidle")
    assert [one.input_value() for one in titles.all()] == ["Corin Blackwood", "Belan Ashford", "Danis Crowley", "Elra"]


def test_documents_are_moved_by_keys_and_by_dragging_and_pasted(page: Any) -> None:
    open_view(page, "ask")
    texts = page.locator(".documents textarea")
    page.get_by_label("Document 5", exact=True).first.focus()
    page.keyboard.press("Alt+ArrowUp")
    page.wait_for_function("() => document.querySelectorAll('.documents textarea')[3].value.startsWith('Anna Berg')")
    assert page.evaluate("document.activeElement.value") == "Anna Berg comes from Germany."
    assert page.locator(".gold input").nth(3).is_checked()
    page.locator(".handle").nth(3).drag_to(page.locator(".documents li").nth(0))
    page.wait_for_function("() => document.querySelectorAll('.documents textarea')[0].value.startsWith('Anna Berg')")
    page.get_by_role("button", name="Add a document").click()
    page.wait_for_function("() => [...document.querySelectorAll('.documents textarea')][10] === document.activeElement")
    paste(texts.nth(10), "One.\n\nTwo.")
    page.wait_for_function("() => document.querySelectorAll('.documents textarea').length === 12")
    assert [texts.nth(i).input_value() for i in (10, 11)] == ["One.", "Two."]
    page.wait_for_load_state("networkidle")  # what a reload breaks off is no part of this
    page.reload()
    page.locator(ANSWERED).first.wait_for()
    page.wait_for_load_state("networkidle")
    assert [texts.nth(i).input_value() for i in (0, 11)] == ["Anna Berg comes from Germany.", "Two."]


def test_what_is_typed_just_before_a_reload_is_kept_and_its_link_is_still_one(page: Any) -> None:
    link = f"/console#ask?documents={quote(json.dumps(['Of the link.', 'Another.']))}"
    first = page.locator(".documents textarea").first
    page.goto(link)
    first.wait_for()
    for text in ("Typed.", "Typed again."):
        with page.expect_navigation():
            page.evaluate(TYPE_AND_RELOAD, text)
        first.wait_for()
        assert first.input_value() == text
    page.wait_for_url("**#ask?*Typed+again*")
    page.goto("about:blank")
    page.goto(link)
    assert first.input_value() == "Of the link."


def test_a_reload_that_begins_just_before_the_address_follows_what_was_typed_keeps_it(page: Any) -> None:
    # as the page itself writes it, so that it is not rewritten in the meantime
    documents = json.dumps(["Of the link.", "Another."], separators=(",", ":"))
    page.goto(f"/console#ask?{urlencode({'documents': documents})}")
    first = page.locator(".documents textarea").first
    first.wait_for()
    before = page.evaluate("location.hash")
    first.fill("Typed in the meantime.")
    page.wait_for_url("**#ask?*Typed*")
    with page.expect_navigation():
        page.evaluate("hash => { history.replaceState(null, '', hash); location.reload(); }", before)
    page.wait_for_function("() => document.querySelector('.documents textarea')?.value === 'Typed in the meantime.'")


def test_a_search_under_several_conditions_has_a_column_for_each(page: Any) -> None:
    make_examples(page)

    def ids(condition: str) -> list[str]:
        names = page.get_by_label(condition, exact=True).locator(".hit img").all()
        return [image.get_attribute("alt") for image in names]

    assert all(name.startswith("purple-") for name in ids(COLOR)[:3])
    assert all(name.endswith("-heart.jpg") for name in ids(SHAPE)[:5])
    page.get_by_role("button", name="+ What is the size of the object?").click()
    page.get_by_label("What is the size of the object?", exact=True).locator(".hit").first.wait_for()
    page.get_by_role("button", name="Remove the column no condition").click()
    assert page.locator(".column").count() == 4
    page.get_by_label("Filter on metadata").fill("color=red")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.hit img')].every(image => image.alt.startsWith('red-'))"
    )


def test_a_result_is_shown_in_full_size_with_its_vectors_and_searched_with(page: Any, fovea: Fovea) -> None:
    make_examples(page)
    open_view(page, "search")
    first = page.get_by_label(SHAPE, exact=True).locator(".hit").first
    name = first.locator("img").get_attribute("alt")
    first.press("Enter")
    panel = page.get_by_role("dialog", name=name)
    page.wait_for_function("() => document.querySelector('.panel img').naturalWidth === 256")
    assert SHAPE in panel.inner_text()
    assert name.split("-")[0] in panel.locator("dd").all_inner_texts()
    panel.get_by_text("The vector itself").click()
    vectors = panel.locator(".vectors li")
    vectors.nth(3).wait_for()
    asked = httpx2.post(
        f"{fovea.url}/embed", json={"images": [{"id": f"console-examples/{name}"}], "condition": SHAPE}
    ).json()["data"][0]["embedding"]
    of_shape = vectors.filter(has_text=SHAPE).inner_text()
    assert f"{len(asked)} numbers, norm 1.000" in of_shape
    assert ", ".join(f"{one:.4f}" for one in asked[:6]) in of_shape
    panel.get_by_role("button", name="Search with this").press("Enter")
    page.locator(".search .picture + .hint").filter(has_text=name).wait_for()
    page.wait_for_url(f"**id={name}**")
    page.locator(".hit").first.click()
    page.get_by_role("dialog").locator("dd button").first.click()
    page.wait_for_url("**filter=**")


def test_pictures_and_texts_are_searched_with(page: Any) -> None:
    make_examples(page)
    page.get_by_label("a text").check()
    page.get_by_label("Text", exact=True).fill("a green star")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.column .hit img').alt === 'green-star.jpg'")
    page.get_by_label("a picture").check()
    page.locator("input[type=file]:not([multiple])").set_input_files(
        Path(__file__).parents[3] / "docs/images/blue-star.jpg"
    )
    page.wait_for_function("() => document.querySelectorAll('.column')[1].querySelector('img').alt.startsWith('blue-')")


def test_a_search_is_filtered_by_values_and_by_json(page: Any) -> None:
    make_examples(page)

    def found(asked: str, shape: str) -> list[str]:
        page.get_by_label("Filter on metadata").fill(asked)
        page.keyboard.press("Enter")
        first = "(shape) => document.querySelector('.column .hit img')?.alt.endsWith(`-${shape}.jpg`)"
        page.wait_for_function(first, arg=shape)
        names: list[str] = page.locator(".column .hit img").evaluate_all("images => images.map(({ alt }) => alt)")
        return names

    assert all(name.endswith("-star.jpg") for name in found("shape=star", "star"))
    circles = found('{"shape": {"$gte": "ci", "$lt": "cj"}, "color": {"$ne": "red"}}', "circle")
    assert all(name.endswith("-circle.jpg") and not name.startswith("red-") for name in circles)
    page.get_by_label("Filter on metadata").fill('{"shape": ')
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="not valid JSON").wait_for()


def test_an_own_picture_is_still_there_after_a_reload(page: Any) -> None:
    open_view(page, "score")
    page.locator("input[type=file]").set_input_files(Path(__file__).parents[3] / "docs/images/red-star.jpg")
    page.get_by_alt_text("red-star.jpg").wait_for()
    page.locator(FIRST["score"]).first.wait_for()
    shown = page.locator(".scores").inner_text()
    page.reload()
    page.get_by_alt_text("red-star.jpg").wait_for()
    page.locator(FIRST["score"]).first.wait_for()
    assert page.locator(".scores").inner_text() == shown


def test_a_folder_of_two_hundred_images_becomes_a_collection_with_progress(page: Any, tmp_path: Path) -> None:
    write_pictures(tmp_path / "many", 200)
    (tmp_path / "many" / "broken.png").write_bytes(b"no picture")
    make_examples(page)
    page.get_by_text("Make or fill a collection").click()
    page.get_by_label("Name of the collection").fill("many")
    page.evaluate(
        "() => { window.told = new Set(); "
        "setInterval(() => window.told.add(document.querySelector('.filling').innerText.trim()), 5); }"
    )
    page.locator("input[webkitdirectory]").set_input_files(tmp_path / "many")
    page.get_by_text("1 not added").wait_for()
    page.locator(".collection option").filter(has_text="many (200 images)").wait_for(state="attached")
    assert page.locator(".added li").inner_text().startswith("many/broken.png: ")
    told = page.evaluate("[...window.told]")
    assert any(re.fullmatch(r"Stored \d+ of 201", text) for text in told)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete many").click()
    page.locator(".collection option").filter(has_text="many (").wait_for(state="detached")


def test_methods_rank_side_by_side(page: Any) -> None:
    open_view(page, "rerank")
    assert page.locator(".ranking").count() == 4
    assert "Belan Ashford" in page.locator("section.ranking[aria-label=calibrated] li").first.inner_text()
    page.locator("fieldset").get_by_label("relevance prompt").uncheck()
    page.get_by_role("button", name="Rank", exact=True).click()
    page.wait_for_function("() => document.querySelectorAll('.ranking').length === 3")


def test_the_form_of_each_task_predicts_with_probabilities_and_a_reason(page: Any) -> None:
    open_view(page, "predict")
    assert page.locator(".labels li").count() == 3
    assert page.get_by_text("Reason", exact=True).count() == 1
    page.get_by_label("word-problems").check()
    page.locator(".value").filter(has_text="= 7").wait_for()
    assert page.get_by_text("Numbers not used").count() == 1
    page.get_by_label("question").fill("")
    assert page.get_by_role("button", name="Predict", exact=True).get_attribute("aria-disabled") == "true"


def test_status_tells_what_is_served_and_how_it_does(page: Any) -> None:
    open_view(page, "score")
    open_view(page, "status")
    page.locator(".right", has_text="● ready").nth(3).wait_for()
    assert {"open-facts", "fsc-clip-scenes"} <= {
        text.split()[0] for text in page.locator(".models h3").all_inner_texts()
    }
    (model,) = page.locator(".models > li").filter(has_text="fsc-clip-scenes").all()
    version = model.locator(".versions li").filter(has_text="● serving")
    version.wait_for()
    assert "latest" in version.locator(".tag").all_inner_texts()
    assert model.locator("dd").first.inner_text() == "score"
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="/score"))
    assert "≤" in row.inner_text()
    page.get_by_role("rowheader", name="/v1/models/{model}/versions", exact=True).wait_for()


def test_what_was_asked_is_copied_as_a_command_that_answers_the_same(page: Any, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_view(page, "score", "?captions=" + '["it\'s a \\"red\\" star", "two; things, $HOME"]')
    shown = page.locator(".scores .number").all_inner_texts()
    page.get_by_role("button", name="Copy as curl").click()
    page.get_by_text("Copied as curl.").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [float(text) for text in re.findall(r'"probability":([\d.e-]+)', done.stdout)]
    assert [f"{100 * one:.1f} %" for one in found] == shown
    page.get_by_role("button", name="Copy as Python").click()
    page.get_by_text("Copied as Python.").wait_for()
    compile(page.evaluate("navigator.clipboard.readText()"), "copied", "exec")


def test_the_documentation_of_the_api_sends_a_request_under_its_policy(page: Any, fovea: Fovea) -> None:
    page.goto("/docs")
    page.locator(".opblock-get", has_text="/v1/models").first.click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status", has_text="200").wait_for()
    policy = httpx2.get(f"{fovea.url}/docs").headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self' 'sha256-" in policy
