"""vLLM's score requests: what is an image, what is a text, and which are pairs."""

import base64
from typing import Any

import pytest

from services.core.errors import FoveaError, InvalidField, TooLarge
from services.core.images.references import ImageLimits
from services.score.call import ScoreCall
from services.score.http.calls import is_vllm, read_pairs
from tests.core.image_files import every_kind

PHOTO = every_kind()["png"]
BASE64 = base64.b64encode(PHOTO).decode()
URI = f"data:image/png;base64,{BASE64}"
PART = {"type": "image_url", "image_url": {"url": URI}}
IMAGES: dict[str, Any] = {
    "field": {"image": BASE64},
    "data URI": URI,
    "base64": BASE64,
    "part": PART,
    "content": {"content": [PART]},
    "url object": {"url": URI},
}


def read(**body: Any) -> ScoreCall:
    return read_pairs(body, ImageLimits(), max_pairs=8)


def texts_of(pairs: ScoreCall) -> list[str]:
    """The text of each pair."""
    return [pairs.captions[text].text for _, text in pairs.pairs]


def params_of(pairs: ScoreCall) -> list[tuple[str, str]]:
    """The fields of the image and of the text of each pair."""
    return [(pairs.images[image].param, pairs.captions[text].param) for image, text in pairs.pairs]


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_an_image_in_any_form_is_paired_with_each_text(image: Any) -> None:
    pairs = read(data_1=image, data_2=["one", "two"])
    assert texts_of(pairs) == ["one", "two"]
    assert len(pairs.images) == 1
    assert pairs.images[0].reference == PHOTO


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "webp", "bmp"])
def test_base64_of_every_kind_of_image_is_no_text(kind: str) -> None:
    data = every_kind()[kind]
    pairs = read(data_1=base64.b64encode(data).decode(), data_2="a text")
    assert pairs.images[0].reference == data


@pytest.mark.parametrize(
    "names", [("data_1", "data_2"), ("queries", "documents"), ("queries", "items"), ("text_1", "text_2")]
)
def test_the_sides_have_the_names_that_vllm_gives_them(names: tuple[str, str]) -> None:
    body = {names[0]: {"image": BASE64}, names[1]: ["one"]}
    assert is_vllm(body)
    assert params_of(read(**body)) == [(f"{names[0]}.image", f"{names[1]}.0")]


def test_a_text_may_ask_for_images() -> None:
    pairs = read(queries="a dog", documents=[{"image": BASE64}, URI])
    assert len(pairs.images) == 2
    assert texts_of(pairs) == ["a dog", "a dog"]
    assert params_of(pairs) == [("documents.0.image", "queries"), ("documents.1", "queries")]


def test_as_many_inputs_as_on_the_other_side_are_paired_in_turn() -> None:
    pairs = read(data_1=[URI, "a cat", {"text": "a bird"}], data_2=["a dog", {"image": BASE64}, URI])
    assert params_of(pairs) == [("data_1.0", "data_2.0"), ("data_2.1.image", "data_1.1"), ("data_2.2", "data_1.2.text")]


def test_each_part_of_a_content_is_an_input() -> None:
    pairs = read(data_1="a dog", data_2={"content": [PART, PART, {"type": "image_url", "image_url": URI}]})
    assert [param for param, _ in params_of(pairs)] == [f"data_2.content.{index}" for index in range(3)]


def test_what_is_truncated_and_which_model_is_asked_are_read() -> None:
    plain = read(data_1=URI, data_2="one")
    assert (plain.model, plain.truncate) == (None, False)
    asked = read(data_1=URI, data_2="one", model="mine", truncate_prompt_tokens=-1, use_activation=True, priority=3)
    assert (asked.model, asked.truncate) == ("mine", True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"data_1": "a dog", "data_2": ["a cat"]}, "data_2.0"),
        ({"data_1": "a dog", "data_2": "a cat"}, "data_2"),
        ({"data_1": URI, "data_2": ["a cat", {"image": BASE64}]}, "data_2.1.image"),
        ({"data_1": URI}, "data_2"),
        ({"data_2": ["one"]}, "data_1"),
        ({"queries": [URI]}, "documents"),
        ({"items": ["one"]}, "queries"),
        ({"data_1": [], "data_2": ["one"]}, "data_1"),
        ({"data_1": URI, "data_2": []}, "data_2"),
        ({"data_1": URI, "data_2": {"content": []}}, "data_2"),
        ({"data_1": [URI, URI], "data_2": ["one", "two", "three"]}, "data_1"),
        ({"data_1": [URI, URI], "data_2": "one"}, "data_1"),
        ({"data_1": URI, "data_2": ["one", 3]}, "data_2.1"),
        ({"data_1": URI, "data_2": ["one", None]}, "data_2.1"),
        ({"data_1": URI, "data_2": [["one"]]}, "data_2.0"),
        ({"data_1": {"image": 3}, "data_2": ["one"]}, "data_1"),
        ({"data_1": {"image": BASE64, "text": "both"}, "data_2": ["one"]}, "data_1"),
        ({"data_1": {}, "data_2": ["one"]}, "data_1"),
        ({"data_1": [{"content": [PART, PART]}], "data_2": ["one"]}, "data_1.0.content"),
        ({"data_1": [{"content": "one"}], "data_2": [URI]}, "data_1.0.content"),
    ],
)
def test_what_makes_no_pair_of_an_image_and_a_text_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as refused:
        read(**body)
    assert refused.value.param == param


def test_two_texts_are_told_that_one_has_to_be_an_image() -> None:
    with pytest.raises(InvalidField, match="two texts"):
        read(data_1="cats", data_2=["dogs"])
    with pytest.raises(InvalidField, match="two images"):
        read(data_1=URI, data_2=[URI])


def test_more_pairs_than_the_limit_are_refused_before_they_are_read() -> None:
    with pytest.raises(TooLarge, match="9 pairs; the limit is 8") as refused:
        read(data_1=URI, data_2=[3] * 9)
    assert refused.value.param == "data_2"


@pytest.mark.parametrize("image", ["data:image/png;base64,", "data:text/plain;base64,aGk=", "/9j/%%%"])
def test_an_image_that_can_not_be_read_is_named(image: str) -> None:
    with pytest.raises(FoveaError) as refused:
        read(data_1=["one", "two"], data_2=[URI, {"image": image}])
    assert refused.value.param == "data_2.1.image"


@pytest.mark.parametrize(
    "body", [{}, {"image": "", "captions": []}, {"captions": ["one"], "data_1": "x"}, {"model": "x"}]
)
def test_other_bodies_are_not_vllms(body: dict[str, Any]) -> None:
    assert not is_vllm(body)
