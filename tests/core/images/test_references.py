import base64
from typing import Any

import pytest

from services.core.errors import FoveaError, InvalidField, InvalidRequest, TooLarge, UnsupportedMediaType
from services.core.images.references import ImageLimits, ImageUrl, StoredImage, parse_image_reference

LIMITS = ImageLimits(max_image_bytes=100_000)
# Its base64 holds both characters that the URL-safe alphabet writes otherwise, and padding.
BYTES = b"\xfb\xff\xfe an image \xff"
STANDARD = base64.b64encode(BYTES).decode()


def parse(value: object) -> object:
    return parse_image_reference(value, param="images.2", limits=LIMITS)


@pytest.mark.parametrize(
    "value",
    [
        STANDARD,
        base64.urlsafe_b64encode(BYTES).decode(),
        STANDARD.rstrip("="),
        f"  {STANDARD[:5]}\r\n{STANDARD[5:]}\n",
        f"data:image/jpeg;base64,{STANDARD}",
        f"DATA:image/PNG;charset=utf-8;BASE64,{STANDARD}",
        f"data:image/svg+xml; base64,{STANDARD}",
        f"data:;base64,{STANDARD}",
        f"data:application/octet-stream;base64,{STANDARD}",
        "data:image/jpeg;base64," + STANDARD.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        {"url": f"data:image/jpeg;base64,{STANDARD}"},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{STANDARD}", "detail": "low"}},
        {"type": "image_url", "image_url": f"data:image/jpeg;base64,{STANDARD}"},
    ],
)
def test_bytes_come_as_data_uris_and_as_base64_of_every_spelling(value: object) -> None:
    assert "+" in STANDARD and "/" in STANDARD and "=" in STANDARD
    assert parse(value) == BYTES


@pytest.mark.parametrize("url", ["http://example.com/a.jpg", "HTTPS://example.com/a.jpg?x=1"])
def test_urls_are_told_apart_and_not_fetched(url: str) -> None:
    for value in (url, {"url": url}, {"type": "image_url", "image_url": {"url": url}}):
        assert parse(value) == ImageUrl(url)


def test_a_stored_image_is_named_by_collection_and_id() -> None:
    assert parse({"id": "cats/2024/tom.jpg"}) == StoredImage("cats", "2024/tom.jpg")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, InvalidField),
        (7, InvalidField),
        ([STANDARD], InvalidField),
        ({}, InvalidField),
        ({"id": 7}, InvalidField),
        ({"id": "cats"}, InvalidField),
        ({"id": "/tom"}, InvalidField),
        ({"id": "cats/"}, InvalidField),
        ({"id": "cats/tom", "url": "http://example.com/"}, InvalidField),
        ({"url": ["http://example.com/"]}, InvalidField),
        ("", InvalidRequest),
        ("   ", InvalidRequest),
        ("====", InvalidRequest),
        ("abcde", InvalidRequest),
        ("ab=cd", InvalidRequest),
        ("not base64!", InvalidRequest),
        ("ünïcode", InvalidRequest),
        ("\ud800", InvalidRequest),
        ("data:image/jpeg;base64", InvalidRequest),
        ("data:image/jpeg;base64,", InvalidRequest),
        ("data:image/jpeg,raw", InvalidRequest),
        ("data:image/jpeg;base64,%ff%fe", InvalidRequest),
        (f"data:text/html;base64,{STANDARD}", UnsupportedMediaType),
        ("ftp://example.com/a.jpg", InvalidRequest),
        ("file:///etc/passwd", InvalidRequest),
        ("http://example.com/" + "a" * 10_000, TooLarge),
    ],
)
def test_what_is_no_image_is_refused_naming_the_field(value: Any, error: type[FoveaError]) -> None:
    with pytest.raises(error) as refusal:
        parse(value)
    assert refusal.value.param == "images.2"
    assert type(refusal.value) is error


def test_base64_of_too_many_bytes_is_refused_naming_limit_and_value() -> None:
    assert parse(base64.b64encode(bytes(100_000)).decode()) == bytes(100_000)
    with pytest.raises(TooLarge, match="100001 bytes; the limit is 100000 bytes"):
        parse(base64.b64encode(bytes(100_001)).decode())
