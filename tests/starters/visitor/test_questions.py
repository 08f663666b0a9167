"""Responses are read by their route's form, and judged as a visitor would."""

from typing import Any

import pytest

from starters.visitor.questions import Asked, BadResponse, Question, Reply, read_response

QUESTION = Question("answer", {}, ("red cat",), ("red cat", "old dog"), 0)
UNANSWERABLE = Question("answer", {}, ())


def said(question: Question, text: str | None, relevance: float | None = None) -> Asked:
    return Asked(question, Reply(text, relevance=relevance))


@pytest.mark.parametrize(
    "text", ["red cat", "The red cat.", "Alice owns a Red Cat", "It is the red cat's.", "« red cat »"]
)
def test_an_answer_is_right_if_it_holds_the_right_words(text: str) -> None:
    assert said(QUESTION, text).is_right


@pytest.mark.parametrize(
    "text", ["old dog", "red", "cat", "red cats", "the red cat or the old dog", "redcat", "", None]
)
def test_another_answer_is_wrong_and_so_is_one_that_names_several(text: str | None) -> None:
    assert not said(QUESTION, text).is_right


@pytest.mark.parametrize(
    "text",
    [
        "The documents don't say.",
        "The documents do not say that.",
        "I don't know.",
        "Unknown",
        "That is not mentioned in the documents.",
        "It isn't stated.",
        "I cannot answer this from the documents.",
        "There is no information about Alice.",
        "None of the documents tells.",
        "The passage does not contain the answer.",
        "No documents were given.",
        "No relevant document.",
        "Nothing in the documents tells.",
    ],
)
def test_usual_refusals_are_refusals_and_right_only_if_nothing_answers(text: str) -> None:
    assert said(UNANSWERABLE, text).is_right
    assert said(QUESTION, text).is_refusal
    assert not said(QUESTION, text).is_right


@pytest.mark.parametrize("text", ["red cat", "She has no dog.", "Knowles", "the tiny toad that says nothing", ""])
def test_other_texts_are_no_refusals(text: str) -> None:
    assert not said(UNANSWERABLE, text).is_right


def test_an_answer_of_low_relevance_is_a_refusal() -> None:
    assert said(UNANSWERABLE, "red cat", 0.2).is_right
    assert not said(UNANSWERABLE, "red cat", 0.6).is_right
    assert Asked(UNANSWERABLE, Reply("red cat", relevance=0.6), threshold=0.7).is_right


def test_a_rejected_question_is_neither_right_nor_refused() -> None:
    for question in (QUESTION, UNANSWERABLE, Question("caption", {}, 0, (0, 1)), Question("number", {}, 0)):
        assert not Asked(question).is_right
    assert not Asked(UNANSWERABLE).is_refusal


def test_a_number_is_right_as_a_whole_number_and_as_a_fraction() -> None:
    question = Question("number", {}, 7)
    assert Asked(question, Reply(7.0)).is_right
    assert not Asked(question, Reply(3.83)).is_right


def test_equally_scored_captions_are_wrong() -> None:
    scores = {"scores": [{"score": 0.5, "probability": 0.5}, {"score": 0.5, "probability": 0.5}]}
    question = Question("caption", {}, 0, (0, 1))
    assert not Asked(question, read_response(question, scores)).is_right


def test_the_document_of_an_answer_is_the_most_relevant_or_else_the_most_attended_one() -> None:
    calibrated = [{"attention": 0.9, "relevance": 0.1}, {"attention": 0.2, "relevance": 0.3}]
    plain = [{**one, "relevance": None} for one in calibrated]
    for documents, place in ((calibrated, 1), (plain, 0)):
        assert read_response(QUESTION, {"answer": "red cat", "documents": documents}).document == place


def test_a_confidence_is_read_before_a_probability() -> None:
    question = Question("number", {}, 7)
    prediction: dict[str, Any] = {"label": "( 63 / 9 )", "value": 7.0, "probability": 0.4}
    assert read_response(question, {"predictions": [prediction]}).probability == 0.4
    assert read_response(question, {"predictions": [{**prediction, "confidence": 0.8}]}).probability == 0.8


@pytest.mark.parametrize("response", [None, [], {}, {"answer": "red cat"}, {"scores": [{}]}, {"data": []}])
@pytest.mark.parametrize("form", ["gallery", "nearest", "caption", "answer", "chat", "rank", "label", "number"])
def test_a_response_without_its_fields_is_an_error_that_names_the_route(form: Any, response: Any) -> None:
    question = Question(form, {"documents": ["a", "b"], "images": ["a"]}, ((("red",)),))
    with pytest.raises(BadResponse, match=r"^the response of /\S+ does not have its fields$"):
        read_response(question, response)
