"""VQAScore's question and what is read from an answer's first token."""

import base64
import io
import math

import numpy as np
import pytest
from PIL import Image

from services.score.second_opinion import jpeg_url, question, request_body, yes_probability


def test_the_question_quotes_the_caption_as_in_the_paper() -> None:
    assert question("a dog") == 'Does this figure show "a dog"? Please answer yes or no.'


def test_a_request_asks_for_one_token_with_its_rivals() -> None:
    body = request_body("sees-all", "data:image/jpeg;base64,AA==", "a dog")
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"], body["temperature"]) == (1, True, 20, 0)
    image, text = body["messages"][0]["content"]
    assert image["image_url"]["url"] == "data:image/jpeg;base64,AA==" and text["text"] == question("a dog")


@pytest.mark.parametrize(
    ("first_token", "expected"),
    [
        ({"Yes": math.log(0.75), "No": math.log(0.25)}, 0.75),
        ({"Yes": math.log(0.5), " yes": math.log(0.125), "YES": math.log(0.125), "no": math.log(0.25)}, 0.75),
        ({"No": 0.0}, 0.0),
        ({"yes.": 0.0}, 1.0),
        ({"▁Yes": math.log(0.5), "ĠYes": math.log(0.25), "ĊNo": math.log(0.25)}, 0.75),
        ({'"Yes': math.log(0.5), "**yes": math.log(0.25), "“No”": math.log(0.25)}, 0.75),
        ({"Yes": 1e-7}, 1.0),
        ({"The": 0.0, "Yesterday": -9.0}, None),
        ({}, None),
    ],
)
def test_every_spelling_of_yes_counts_and_neither_word_is_no_answer(
    first_token: dict[str, float], expected: float | None
) -> None:
    assert yes_probability(first_token) == (None if expected is None else pytest.approx(expected))


def test_an_image_is_sent_whole_and_no_larger_than_asked() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(30, 60, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for side, size in ((40, (40, 20)), (100, (60, 30))):
        header, content = jpeg_url(image, side).split(",")
        with Image.open(io.BytesIO(base64.b64decode(content))) as sent:
            assert (header, sent.format, sent.size) == ("data:image/jpeg;base64", "JPEG", size)
    assert image.size == (60, 30)
