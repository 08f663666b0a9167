"""The pages that a review serves, and the people who may see them."""

import json
from pathlib import Path

import pytest

from services.curate.review.routes import BadToken, read_or_make_token
from tests.curate.review.conftest import Open
from tests.curate.review.reviews import PAIRS

TOKEN = "an-odd-token-of-letters"
NEEDS_TOKEN = (
    "/review/about",
    "/review/turn?reviewer=Anna",
    "/review/summary",
    "/review/verdicts.jsonl",
    "/review/images/chelsea.png",
)


@pytest.mark.parametrize("name", ["a.png", "folder/a b#?.png", "ü.png"])
def test_an_image_is_served_with_the_type_of_its_content(open_review: Open, tmp_path: Path, name: str) -> None:
    client = open_review([PAIRS[0].model_copy(update={"filename": name})])
    (tmp_path / "images" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "images" / name).write_bytes((tmp_path / "images" / "rocket.jpg").read_bytes())
    response = client.get(f"/review/images/{name.replace('#', '%23').replace('?', '%3F')}")
    assert (response.status_code, response.headers["content-type"]) == (200, "image/jpeg")


@pytest.mark.parametrize(
    "path",
    [
        "secret.png",
        "../secret.png",
        "..%2fsecret.png",
        "%2e%2e/secret.png",
        "folder/../../secret.png",
        "{absolute}",
        "%2F{absolute}",
        "link.png",
        "folder-link/secret.png",
        "a%00b.png",
        "coffee.png",
    ],
)
def test_no_file_is_served_from_outside_of_the_folder_or_of_no_pair(
    open_review: Open, tmp_path: Path, path: str
) -> None:
    secret = tmp_path / "secret.png"
    # Also where the file of pairs asks for them; coffee.png is an image that no pair has.
    asked = ["../secret.png", "folder/../../secret.png", str(secret), "link.png", "folder-link/secret.png", "a\0b.png"]
    pairs = [PAIRS[0].model_copy(update={"id": str(i), "filename": name}) for i, name in enumerate(asked)]
    client = open_review(pairs)
    secret.write_bytes((tmp_path / "images" / "chelsea.png").read_bytes())
    (tmp_path / "images" / "link.png").symlink_to(secret)
    (tmp_path / "images" / "folder-link").symlink_to(tmp_path)
    assert client.get(f"/review/images/{path.format(absolute=secret)}").status_code == 404


def test_a_file_that_is_no_image_is_not_served_and_said(open_review: Open, tmp_path: Path) -> None:
    client = open_review([PAIRS[0].model_copy(update={"filename": "page.svg"})])
    (tmp_path / "images" / "page.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    assert client.get("/review/images/page.svg").status_code == 415
    told = client.get("/review/turn", params={"reviewer": "Anna"}).json()["pair"]["problem"]
    assert told == "'page.svg' is not a JPEG, PNG, WebP, GIF or BMP."


def test_the_page_allows_nothing_from_elsewhere_and_names_no_other_host(open_review: Open) -> None:
    client = open_review()
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    folder = Path(__file__).parents[3] / "services" / "curate" / "review" / "page"
    for path in folder.rglob("*.*js"):
        sent = client.get(f"/review/page/{path.relative_to(folder).as_posix()}")
        assert (sent.status_code, sent.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert "https://" not in sent.text


@pytest.mark.parametrize("path", NEEDS_TOKEN)
def test_without_the_token_only_the_page_is_served(open_review: Open, path: str) -> None:
    client = open_review(token=TOKEN, host="0.0.0.0")
    assert client.get("/").status_code == 200
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"authorization": f"Bearer {TOKEN}x"}).status_code == 401
    assert client.get(path, headers={b"cookie": b"fovea_review=\xe4"}).status_code == 401
    assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_without_the_token_no_verdict_is_taken_and_with_its_cookie_it_is(open_review: Open) -> None:
    client = open_review(token=TOKEN)
    body = {"reviewer": "Anna", "id": PAIRS[0].id, "verdict": "valid", "round": 1}
    assert client.post("/review/verdicts", json=body).status_code == 401
    assert client.post("/review/undo", json={"reviewer": "Anna", "round": 1}).status_code == 401
    for wrong in ("wrong", "", "\ud800"):
        sent = json.dumps({"token": wrong})
        refused = client.post("/review/session", content=sent, headers={"content-type": "application/json"})
        assert refused.status_code in (401, 422)
    admitted = client.post("/review/session", json={"token": TOKEN})
    assert admitted.status_code == 204
    assert {"HttpOnly", "SameSite=strict"} <= set(admitted.headers["set-cookie"].split("; "))
    assert client.post("/review/verdicts", json=body).status_code == 200


def test_pages_of_other_sites_may_link_to_the_review_but_not_use_it(open_review: Open) -> None:
    client = open_review()
    foreign = {"sec-fetch-site": "cross-site", "origin": "https://elsewhere.example"}
    assert client.get("/", headers=foreign).status_code == 200
    assert client.get("/review/turn?reviewer=Anna", headers=foreign).status_code == 403
    body = {"reviewer": "Anna", "id": PAIRS[0].id, "verdict": "valid", "round": 1}
    assert client.post("/review/verdicts", json=body, headers=foreign).status_code == 403
    rebound = client.get("/", headers={"host": "rebound.example"})
    assert (rebound.status_code, "add it to --allow-host" in rebound.json()["error"]["message"]) == (403, True)


def test_a_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = read_or_make_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_or_make_token(path) == made
    assert read_or_make_token(tmp_path / "other") != made


@pytest.mark.parametrize("content", ["", "short", "x" * 15, "two words, sixteen", "ü" * 20])
def test_a_file_without_a_usable_token_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(BadToken, match=str(tmp_path / "token")):
        read_or_make_token(tmp_path / "token")


def forwarded(**headers: str) -> dict[str, str]:
    """The headers of a request that the gateway passes on, whose last address is that of its own client."""
    return {"x-forwarded-for": "127.0.0.1, 203.0.113.9", **headers}


def test_the_address_of_another_machine_counts_wherever_a_proxy_has_put_it(open_review: Open) -> None:
    client = open_review()
    for senders in ("203.0.113.9", "203.0.113.9, 127.0.0.1", "127.0.0.1, 203.0.113.9"):
        assert client.get("/review/turn?reviewer=Anna", headers={"x-forwarded-for": senders}).status_code == 401
    several = [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", "203.0.113.9")]
    assert client.get("/review/turn?reviewer=Anna", headers=several).status_code == 401


def test_without_a_token_the_gateway_brings_its_own_machine_and_holders_of_keys_only(open_review: Open) -> None:
    client = open_review()
    address = "/review/turn?reviewer=Anna"
    assert client.get(address, headers={"x-forwarded-for": "::1, 127.0.0.1"}).status_code == 200
    assert client.get(address, headers=forwarded(**{"x-fovea-key-name": "anna"})).status_code == 200
    refused = client.get(address, headers=forwarded())
    assert refused.status_code == 401
    assert "--token-file" in refused.json()["error"]["message"]


def test_with_a_token_a_key_of_the_gateway_is_not_enough(open_review: Open) -> None:
    client = open_review(token=TOKEN)
    named = forwarded(**{"x-fovea-key-name": "anna"})
    assert client.get("/review/turn?reviewer=Anna", headers=named).status_code == 401
    admitted = client.post("/review/session", json={"token": TOKEN}, headers=named)
    # Browsers send it to what is below /review, and so the gateway to no service.
    assert "path" not in admitted.headers["set-cookie"].lower()
    assert client.get("/review/turn?reviewer=Anna", headers=named).status_code == 200
