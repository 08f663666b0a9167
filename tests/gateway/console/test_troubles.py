"""The console where something goes wrong: keys, limits, outages, and texts that mean harm."""

import base64
import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import pytest

from tests.contract.processes import Process
from tests.contract.running_fovea import Fovea
from tests.gateway.console.visits import (
    ANSWERED,
    FIRST,
    KEY,
    MAX_BODY_BYTES,
    give_key,
    guarded_gateway,
    open_view,
    second_gateway,
    visit,
)

LONG_NOTE = "word" * 2000
pytestmark = [pytest.mark.process, pytest.mark.slow]
MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def guarded(fovea: Fovea) -> str:
    """The URL of a gateway that wants a key and takes small bodies only."""
    return guarded_gateway(fovea).url


def cancelled(process: Process) -> float:
    """Count the requests that a gateway or a service gave up because their client had gone."""
    text = httpx2.get(f"{process.url}/metrics").text
    (line,) = [one for one in text.splitlines() if one.startswith('fovea_cancelled_total{reason="disconnect"}')]
    return float(line.split()[-1])


def wait_until_cancelled(page: Any, process: Process, number: float) -> None:
    for _ in range(6000):
        if cancelled(process) >= number:
            return
        page.wait_for_timeout(50)  # nobody is told when it has noticed
    raise TimeoutError(f"{cancelled(process)} requests were given up, not {number}.")


def test_answers_are_cancelled_by_stop_and_by_other_documents_and_the_service_hears_of_it(
    page: Any, fovea: Fovea
) -> None:
    open_view(page, "ask")
    page.wait_for_load_state("networkidle")  # the first answers' tokens have come too
    gateway, generate = fovea.processes["gateway"], fovea.processes["generate"]
    of_gateway, of_service = cancelled(gateway), cancelled(generate)
    ask = page.get_by_role("button", name="Ask", exact=True)
    generate.process.send_signal(signal.SIGSTOP)
    try:
        ask.click()
        page.get_by_role("button", name="Stop").click()
        ask.wait_for()
        assert page.get_by_text("Stopped.").count() == 2
        wait_until_cancelled(page, gateway, of_gateway + 2)
        ask.click()
        page.get_by_text("Answering …").wait_for()
        page.get_by_label("Document 1", exact=True).first.fill("Otto Berg comes from Sweden.")
        assert page.get_by_text("Stopped.").count() == 0
        ask.click()
        wait_until_cancelled(page, gateway, of_gateway + 4)
    finally:
        generate.process.send_signal(signal.SIGCONT)
    page.locator(ANSWERED).first.wait_for()
    assert page.get_by_text("Stopped.").count() == 0
    wait_until_cancelled(page, generate, of_service + 4)


def test_a_wrong_key_is_told_and_a_right_one_stays_in_memory_alone(browser: Any, guarded: str) -> None:
    with visit(browser, guarded) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto("/console")
        page.get_by_role("dialog").get_by_text("A key is required").wait_for()
        give_key(page, "wrong")
        page.get_by_role("dialog").get_by_text("The key is invalid.").wait_for()
        give_key(page, KEY)
        page.locator(FIRST["score"]).first.wait_for()
        page.get_by_role("button", name="Copy as curl").click()
        page.get_by_text("Copied as curl.").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert '"Authorization: Bearer $KEY"' in copied
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
        assert KEY not in copied + kept
        page.reload()
        page.get_by_role("dialog").get_by_text("A key is required").wait_for()


def test_with_a_key_collections_are_made_and_their_images_shown(browser: Any, fovea: Fovea, guarded: str) -> None:
    httpx2.delete(f"{fovea.url}/collections/console-examples")  # which another test may have made
    with visit(browser, guarded) as page:
        page.goto("/console#search")
        give_key(page, KEY)
        page.get_by_role("button", name="Make the example collection").click()
        # The examples are too many for one body of this gateway's limit, and are refused and then sent one by one.
        page.locator(".hit").first.wait_for()
        drawn = page.wait_for_function("() => [...document.querySelectorAll('.hit img')].find(i => i.naturalWidth)")
        assert drawn.get_property("src").json_value().startswith("blob:")
        assert page.get_by_text("not added").count() == 0
        page.locator("nav a[href='#status']").press("Enter")
        told = page.locator(".own-key")
        told.wait_for()
        assert {"visitor", "admin"} <= set(told.locator("dd, .tag").all_inner_texts())
        assert re.search(r"5000/hour: 4\d\d\d of 5000 left", told.inner_text())
        assert re.search(r"embed: \d+", told.inner_text())


def test_a_picture_beyond_the_limit_is_refused_as_the_api_says_it(browser: Any, guarded: str, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    large.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2 * MAX_BODY_BYTES))
    with visit(browser, guarded) as page:
        page.goto("/console")
        give_key(page, KEY)
        page.locator(FIRST["score"]).first.wait_for()
        page.locator("input[type=file]").set_input_files(large)
        told = page.get_by_role("alert").filter(has_text="FOVEA_MAX_BODY_BYTES")
        told.wait_for()
        assert str(MAX_BODY_BYTES) in told.inner_text()


def test_an_offline_gateway_is_told_and_nothing_is_lost(browser: Any, fovea: Fovea) -> None:
    gateway = second_gateway(fovea, "fleeting")
    with visit(browser, gateway.url) as page:
        open_view(page, "predict")
        gateway.process.kill()
        gateway.process.wait()
        page.get_by_label("premise").fill("Nobody listens.")
        page.get_by_role("button", name="Predict", exact=True).click()
        page.get_by_role("alert").get_by_text("can't be reached").wait_for()
        assert page.get_by_label("premise").input_value() == "Nobody listens."
        assert page.locator(FIRST["predict"]).count() == 3


def test_a_service_that_is_killed_is_told_and_answers_again_when_it_is_back(page: Any, fovea: Fovea) -> None:
    open_view(page, "predict")
    old = fovea.processes["predict"]
    old.process.kill()
    old.process.wait()
    page.get_by_role("button", name="Predict", exact=True).click()
    page.get_by_role("alert").filter(has_text="predict").wait_for()
    page.locator("nav a[href='#status']").click()
    page.locator("tr", has_text="predict").get_by_text("not ready").wait_for()
    fovea.start("predict", port=old.port).wait_until_ready()
    page.locator("tr", has_text="predict").get_by_text("● ready").wait_for()
    page.locator("nav a[href='#predict']").click()
    page.get_by_role("button", name="Predict", exact=True).click()
    page.wait_for_function("() => [...document.querySelectorAll('[role=alert]')].every(one => one.innerText === '')")


def test_a_page_opened_while_a_service_is_down_is_whole_once_it_is_back(page: Any, fovea: Fovea) -> None:
    open_view(page, "status")
    page.locator("tr", has_text="generate").get_by_text("● ready").wait_for()
    old = fovea.processes["generate"]
    old.process.kill()
    old.process.wait()
    card = page.locator(".models > li", has=page.get_by_text("generate", exact=True))
    card.get_by_text("its service is not ready").wait_for()
    page.goto("about:blank")
    page.goto("/console#ask")
    page.get_by_text("is still starting, or does not run").wait_for()
    assert page.get_by_text("The model that answers").count() == 0
    fovea.start("generate", port=old.port).wait_until_ready()
    page.get_by_text("The model that answers").wait_for()
    page.locator(FIRST["ask"]).first.wait_for()
    after = page.locator(".documents li").nth(4).locator(".share .number").nth(1)
    assert float(after.inner_text().removesuffix(" %")) > 90
    page.wait_for_function("() => [...document.querySelectorAll('[role=alert]')].every(one => one.innerText === '')")
    assert page.get_by_text("is still starting").count() == 0
    page.wait_for_load_state("networkidle")


def test_markup_in_texts_names_and_metadata_is_shown_and_never_run(page: Any, fovea: Fovea, tmp_path: Path) -> None:
    picture = (Path(__file__).parents[3] / "docs" / "images" / "red-star.jpg").read_bytes()
    ids = [f"{MARKUP}.jpg", "plain.jpg"]
    httpx2.put(f"{fovea.url}/collections/harm").raise_for_status()
    for name in ids:
        httpx2.post(
            f"{fovea.url}/collections/harm/images",
            json={
                "images": [
                    {
                        "id": name,
                        "image": encoded(picture + name.encode()),
                        "metadata": {MARKUP: MARKUP, "note": LONG_NOTE},
                    }
                ]
            },
        ).raise_for_status()

    def with_harmful_models(route: Any) -> None:
        body = route.fetch().json()
        for model in body["data"]:
            model.update(id=f"{model['id']}{MARKUP}", statement=MARKUP)
        body["data"] *= 2  # so that there is a choice
        route.fulfill(json=body)

    page.route("**/v1/models", with_harmful_models)
    open_view(page, "status")
    assert MARKUP in page.locator(".models").inner_text()
    page.goto("about:blank")
    page.goto(f"/console#score?captions={quoted([MARKUP, 'a red star'])}")
    page.locator(".scores li", has_text=MARKUP).wait_for()
    harmful = tmp_path / f"{MARKUP.replace('/', '')}.jpg"
    harmful.write_bytes(picture)
    page.locator("input[type=file]").set_input_files(harmful)
    page.locator(".picture img").wait_for()
    page.goto("about:blank")
    documents = quoted([{"title": MARKUP, "text": MARKUP}, "Otto owns the lamp."])
    page.goto(f"/console#ask?query={quoted(MARKUP)}&documents={documents}&expected=x&layers=true")
    page.locator(".answer .wrong, .answer .right").first.wait_for()
    page.locator(".heat").first.wait_for()
    for shown in (page.get_by_label("Title of document 1"), page.locator(".documents textarea").first):
        assert shown.input_value() == MARKUP
    page.goto("about:blank")
    page.goto(f"/console#rerank?query={quoted(MARKUP)}&documents={documents}")
    page.locator(".ranking li b", has_text=MARKUP).first.wait_for()
    page.goto("about:blank")
    page.goto(
        f"/console#predict?inputs={quoted(json.dumps({'inferences': {'premise': MARKUP, 'hypothesis': MARKUP}}))}"
    )
    page.locator(FIRST["predict"]).first.wait_for()
    page.goto("about:blank")
    page.goto(f"/console#search?collection=harm&id=plain.jpg&conditions={quoted(['', MARKUP])}")
    page.locator(".hit").first.click()
    assert MARKUP in page.locator(".panel h2").inner_text()
    assert MARKUP in page.locator(".panel dd").first.inner_text()
    note = page.locator(".panel dd details")
    assert note.inner_text() == f"{LONG_NOTE[:200]}…"
    note.locator("summary").click()
    assert LONG_NOTE in note.inner_text()
    page.locator(".panel .more summary").click()
    page.locator(".panel .vectors li", has_text=MARKUP).wait_for()
    assert "owned" not in page.title()
    assert page.evaluate("document.querySelectorAll('main script, main img[src=x], dialog img[src=x]').length") == 0


@pytest.mark.parametrize(
    ("view", "fields"),
    [
        ("score", {"picture": 5, "captions": 3, "model": ["x"]}),
        ("ask", {"documents": {"length": 9}, "gold": "one", "temperature": 5}),
        ("search", {"by": "constructor", "conditions": [None], "k": "many", "filter": 1}),
        ("rerank", {"methods": "all", "documents": [1, 2]}),
        ("predict", {"inputs": '{"inferences": {"premise": 3}}', "task": "__proto__", "rationale": "yes"}),
        ("predict", {"inputs": "null"}),
        ("status", {"x": "%E0%A4%A"}),
        ("__proto__", {}),
    ],
)
def test_a_link_with_fields_of_another_form_opens_its_view_as_by_default(
    page: Any, view: str, fields: dict[str, Any]
) -> None:
    page.goto(f"/console#{view}?{urlencode({name: json.dumps(value) for name, value in fields.items()})}")
    shown = {**FIRST, "search": "summary", "predict": ".answer .text"}
    page.locator(shown.get(view, FIRST["score"])).first.wait_for()


def test_the_policy_stops_a_script_that_got_into_the_page(browser: Any, fovea: Fovea) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{fovea.url}/console")
    page.locator(FIRST["score"]).first.wait_for()
    stopped = page.evaluate(
        "() => { try { document.body.innerHTML = '<img src=x onerror=\"document.title=1\">'; return 'written'; }"
        " catch (refused) { return refused.name; } }"
    )
    assert stopped == "TypeError"
    page.evaluate(
        "() => { const one = document.createElement('a'); one.setAttribute('href', 'javascript:document.title=1');"
        " document.body.append(one); one.click(); }"
    )
    page.wait_for_timeout(200)
    assert page.title() == "Score · Fovea console"
    context.close()


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def quoted(value: Any) -> str:
    return quote(json.dumps(value))
