"""A running Fovea with a console to visit, and pages that hold a visit to its promises."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from gateway.access import digest
from tests.contract.processes import SERVICES, Process
from tests.contract.running_fovea import Fovea

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 380, "height": 800}
VIEWS = ("score", "ask", "search", "rerank", "predict", "status")
# What a view shows once it has its first result; Search, once there is a collection.
FIRST = {
    "score": ".scores li",
    "ask": ".answer .right",
    "search": ".hit",
    "rerank": ".ranking li",
    "predict": ".labels li",
    "status": ".models li",
}
# An answer of Ask, whether one is expected or not.
ANSWERED = ".answer[aria-label=Calibrated] .token"
KEY = "a-key-of-the-tests"
MAX_BODY_BYTES = 60_000


def guarded_gateway(fovea: Fovea, **settings: str) -> Process:
    """Start a second gateway to the same services, with a key that has a limit, and a low limit on bodies."""
    key = {"name": "visitor", "sha256": digest(KEY), "scopes": ["admin"], "rate_limit": "5000/hour"}
    limits = {"FOVEA_GATEWAY_KEYS": json.dumps([key]), "FOVEA_MAX_BODY_BYTES": str(MAX_BODY_BYTES)}
    return second_gateway(fovea, "guarded", **limits, **settings)


def second_gateway(fovea: Fovea, name: str, **settings: str) -> Process:
    running = [service for service in SERVICES if service in fovea.processes]
    urls = {f"FOVEA_GATEWAY_{service.upper()}_URLS": fovea.processes[service].url for service in running}
    process = fovea.start("gateway", {**urls, **settings}, instance=name)
    process.wait_until_ready()
    return process


@contextmanager
def visit(browser: Any, url: str, *, size: dict[str, int] = DESKTOP, scheme: str = "light") -> Iterator[Any]:
    """A page that asks no other server for anything and whose console says nothing but of refused requests."""
    context = browser.new_context(viewport=size, color_scheme=scheme, base_url=url)
    context.set_default_timeout(60_000)
    page = context.new_page()
    complaints: list[str] = []
    requested: list[str] = []
    page.on("request", lambda one: requested.append(one.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text))
    yield page
    # The browser itself tells of each refused request, which the page shows, too; what closing it ends does not count.
    told = [text for text in complaints if "Failed to load resource" not in text]
    context.close()
    assert told == [], told
    assert [one for one in requested if not one.startswith((url, "blob:"))] == []


def give_key(page: Any, key: str) -> None:
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill(key)
    dialog.get_by_role("button", name="Use it").click()


def open_view(page: Any, name: str, query: str = "") -> None:
    """Open a view anew, and wait for its first result."""
    page.goto("about:blank")
    page.goto(f"/console#{name}{query}")
    page.locator(FIRST[name]).first.wait_for()


def make_examples(page: Any) -> None:
    """Make the example collection where there is none, as a visitor does."""
    page.goto("/console#search")
    page.locator(".hit, .gather button.primary").first.wait_for()
    if page.locator(".hit").count() == 0:
        page.get_by_role("button", name="Make the example collection").click()
        page.locator(".hit").first.wait_for()


def paste(field: Any, text: str) -> None:
    field.evaluate(
        "(field, text) => { const data = new DataTransfer(); data.setData('text', text);"
        "field.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })); }",
        text,
    )


def write_pictures(folder: Path, count: int) -> None:
    """Write pictures of one color each, no two alike."""
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (32, 32), (number % 256, 255 - number % 256, number // 256 * 40)).save(
            folder / f"{number}.png"
        )
