"""The files that the gateway serves as its console, and the callers who may load them."""

import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.access import digest
from gateway.settings import KeyRecord
from tests.gateway.servers import gateway

PAGE = Path(__file__).parents[2] / "gateway" / "console" / "page"
KEYS = (KeyRecord(name="a", sha256=digest("a"), scopes=frozenset({"embed"})),)
OWN = [
    path for path in sorted(PAGE.rglob("*")) if path.suffix in (".html", ".css", ".js") and "vendor" not in path.parts
]
WITHOUT_PICTURES = [*OWN, *PAGE.rglob("*.mjs"), *PAGE.rglob("*.svg")]
MAX_BYTES = 154 * 1024
MAX_SENT_BYTES = 64 * 1024
MAX_LINES = 400


class Addresses(HTMLParser):
    """Collects the addresses in a document, and the names of elements with code or style within the page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.addresses += [value for name in ("src", "href") if (value := named.get(name))]
        if tag == "style" or (tag == "script" and "src" not in named) or any(name.startswith("on") for name in named):
            self.inline.append(tag)


def page_addresses() -> Addresses:
    found = Addresses()
    found.feed((PAGE / "index.html").read_text())
    return found


@pytest.mark.parametrize("keys", [(), KEYS])
async def test_the_page_and_its_files_are_served_without_a_key_under_a_policy(keys: tuple[KeyRecord, ...]) -> None:
    async with gateway(keys=keys) as client:
        for address in ("/console", "/console/app.js", *(f"/{one}" for one in page_addresses().addresses)):
            async with client.get(address) as response:
                assert response.status == 200, address
                policy = response.headers["Content-Security-Policy"].split("; ")
                assert {"default-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} <= {
                    *policy
                }
                assert not any("unsafe" in part or "data:" in part for part in policy)
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"


async def test_modules_have_the_type_that_browsers_ask_of_scripts() -> None:
    async with gateway() as client:
        for name in ("app.js", "vendor/preact.mjs"):
            async with client.get(f"/console/{name}") as response:
                assert response.headers["Content-Type"].startswith("text/javascript")


async def test_the_page_is_sent_compressed_to_those_who_accept_it() -> None:
    sent = 0
    async with gateway() as client:
        for path in WITHOUT_PICTURES:
            name = path.relative_to(PAGE).as_posix()
            address = "/console" if name == "index.html" else f"/console/{name}"
            for accepted, encoding in (("gzip, br", "gzip"), ("identity", None)):
                async with client.get(address, headers={"Accept-Encoding": accepted}) as response:
                    assert response.headers.get("Content-Encoding") == encoding, address
                    body = await response.read()
                    assert (gzip.decompress(body) if encoding else body) == path.read_bytes()
                    sent += len(body) if encoding else 0
    assert 0 < sent <= MAX_SENT_BYTES


async def test_a_file_that_has_not_changed_is_not_sent_again() -> None:
    async with gateway() as client:
        async with client.get("/console/app.js") as response:
            tag = response.headers["ETag"]
        async with client.get("/console/app.js", headers={"If-None-Match": tag}) as response:
            assert (response.status, await response.read()) == (304, b"")
        async with client.get("/console/app.js", headers={"If-None-Match": '"other"'}) as response:
            assert response.status == 200


async def test_a_setting_switches_the_console_off() -> None:
    async with gateway(console=False) as client:
        for address in ("/console", "/console/", "/console/app.js"):
            async with client.get(address) as response:
                assert response.status == 404, address


async def test_other_sites_may_link_to_the_console_but_not_to_the_api() -> None:
    async with gateway() as client:
        for address, status in (("/console", 200), ("/console/app.js", 200), ("/v1/models", 403)):
            async with client.get(address, headers={"Sec-Fetch-Site": "cross-site"}) as response:
                assert response.status == status, address


async def test_the_address_with_a_slash_leads_to_the_console_wherever_a_proxy_puts_it() -> None:
    async with gateway() as client, client.get("/console/", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (308, "../console")


async def test_licences_and_what_lies_beside_the_page_are_not_served() -> None:
    async with gateway() as client:
        for name in ("vendor/htm.LICENSE", "routes.py", "%2e%2e/routes.py", "../app.py", "vendor/", "%2Fetc%2Fpasswd"):
            address = f"/console/{name}"
            async with client.get(address) as response:
                assert response.status == 404, address


async def test_metrics_do_not_grow_with_the_files_of_the_page() -> None:
    async with gateway() as client:
        for name in ("app.js", "ask.js", "style.css", "examples/red-star.jpg"):
            async with client.get(f"/console/{name}") as response:
                assert response.status == 200
                # A response that is closed before its end is counted under the status of its own, 499.
                await response.read()
        async with client.get("/metrics") as response:
            counted = re.findall(
                r'^fovea_requests_total\{.*route="(/console[^"]*)"', await response.text(), re.MULTILINE
            )
    assert counted == ["/console/{name:path}"]


async def test_the_console_is_not_part_of_the_apis_document() -> None:
    async with gateway() as client, client.get("/openapi.json") as response:
        assert not [path for path in (await response.json())["paths"] if "console" in path]


def test_the_page_asks_no_other_host_and_holds_no_code_or_style_within() -> None:
    found = page_addresses()
    assert found.inline == []
    assert [one for one in found.addresses if not one.startswith("console/")] == []
    hosts = [(path.name, url) for path in OWN for url in re.findall(r"https?://[^\s'\"`]+", path.read_text())]
    assert hosts == []


def test_every_module_is_fetched_at_once_and_not_only_when_another_imports_it() -> None:
    modules = {
        path.relative_to(PAGE.parent).as_posix().replace("page/", "console/")
        for path in [*PAGE.glob("*.js"), *PAGE.rglob("*.mjs")]
    }
    assert modules <= {*page_addresses().addresses}


def test_no_view_writes_markup_from_text() -> None:
    """Preact escapes whatever a template inserts, unless it is told not to."""
    written = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    assert [path.name for path in OWN if written.search(path.read_text())] == []


def test_the_page_is_light_and_its_files_are_short() -> None:
    assert sum(path.stat().st_size for path in WITHOUT_PICTURES) <= MAX_BYTES
    assert [path.name for path in OWN if path.read_text().count("\n") > MAX_LINES] == []


def test_every_vendored_package_has_its_version_and_its_licence_beside_it() -> None:
    told = (PAGE / "vendor" / "README.md").read_text()
    licences = re.findall(r"`(\w+\.LICENSE)`", told)
    assert sorted(licences) == sorted(path.name for path in (PAGE / "vendor").glob("*.LICENSE"))
