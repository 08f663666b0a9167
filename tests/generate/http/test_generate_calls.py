"""The calls made from a request's calibration and documents, with and without a profile of the checkpoint."""

from typing import Any

import pytest

from services.core.documents import DocumentInput
from services.core.errors import InvalidField, TooLarge
from services.generate.generation.generation import PromptFacts
from services.generate.http.documents import (
    CalibrationOptions,
    calibration_of,
    documents_of,
    reports_of,
)
from services.generate.model.profile import OFF, PAPER_TEMPERATURE, BiasTable, CalibrationProfile
from services.generate.prompts.templates import Document

NUM_LAYERS = 6
PROFILE = CalibrationProfile(
    enabled=True,
    bias="single",
    temperature=0.01,
    layers=(1, 4),
    rel_layers=(0, 1, 2, 4),
    span_rule="text",
    row_scope="tail",
    gain={"vanilla": 0.5},
)


def calibration(profile: CalibrationProfile = PROFILE, **options: Any) -> CalibrationProfile:
    return calibration_of(CalibrationOptions(**options), profile, NUM_LAYERS)


def test_without_options_the_calibration_is_the_profile() -> None:
    assert calibration_of(None, PROFILE, NUM_LAYERS) is PROFILE
    assert calibration() == PROFILE
    assert calibration_of(None, OFF, NUM_LAYERS) is OFF


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("enabled", False),
        ("bias", "exact"),
        ("bias", "query"),
        ("temperature", 5e-5),
        ("layers", (2, 0)),
        ("dummy", "whole"),
    ],
)
def test_an_option_changes_its_own_field_alone(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: list(value) if isinstance(value, tuple) else value}
    changed = calibration(PROFILE, **options)

    expected = tuple(sorted(value)) if isinstance(value, tuple) else value
    assert changed == PROFILE.model_copy(update={option: expected})


def test_layers_may_be_named() -> None:
    assert calibration(layers="last_half").layers == (3, 4, 5)
    assert calibration(layers="all").layers == tuple(range(NUM_LAYERS))


def test_a_checkpoint_without_calibration_is_calibrated_with_the_papers_settings_where_it_is_asked_for() -> None:
    paper = OFF.completed(NUM_LAYERS)
    asked = calibration(paper, enabled=True)

    assert (asked.enabled, asked.layers, asked.rel_layers) == (True, (3, 4, 5), tuple(range(NUM_LAYERS)))
    assert (asked.temperature, asked.bias) == (PAPER_TEMPERATURE, "exact")
    assert asked.dummy == "framed"
    assert calibration(paper, enabled=True, layers=[0], temperature=0.5).model_dump() == (
        asked.model_copy(update={"layers": (0,), "temperature": 0.5}).model_dump()
    )
    assert not calibration(paper, temperature=0.5).enabled


@pytest.mark.parametrize(
    ("profile", "options", "param"),
    [
        (PROFILE, {"layers": [6]}, "calibration.layers"),
        (PROFILE, {"layers": []}, "calibration"),
        (PROFILE, {"bias": "cached"}, "calibration"),
        (OFF.completed(NUM_LAYERS), {"enabled": True, "bias": "cached"}, "calibration"),
        (PROFILE.model_copy(update={"rel_scope": "per_head"}), {"layers": [3]}, "calibration"),
    ],
)
def test_options_that_the_model_or_its_profile_does_not_allow_are_refused_by_name(
    profile: CalibrationProfile, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        calibration(profile, **options)

    assert refused.value.param == param


def test_a_bias_may_be_looked_up_where_the_profile_has_tables() -> None:
    tables = (BiasTable(bucket=8, attention=(0.1, 0.2), num_prompts=3),)

    measured = PROFILE.model_copy(update={"tables": tables})
    assert calibration(measured, bias="cached").bias == "cached"
    with pytest.raises(InvalidField, match="no tables for a cached bias"):
        calibration(measured, bias="cached", dummy="whole")


def test_a_plain_text_is_a_document_without_title_and_id() -> None:
    given: list[str | DocumentInput] = ["text", DocumentInput(text="a", title="b", id="c"), DocumentInput(text="")]

    assert documents_of(given, 3) == (Document("text"), Document("a", "b", "c"), Document(""))


def test_more_documents_than_the_limit_are_refused_naming_both_numbers() -> None:
    with pytest.raises(TooLarge, match="4 documents; the limit is 3") as refused:
        documents_of(["a"] * 4, 3)

    assert refused.value.param == "documents"


def test_what_was_seen_is_told_in_the_order_of_the_request() -> None:
    facts = PromptFacts(
        prompt_tokens=9,
        cached_tokens=0,
        attention=(0.3, 0.2, 0.1),
        relevance=(3.0, 2.0, 1.0),
        calibration_passes=2,
        order=(2, 0, 1),  # the last document of the request stands first
    )
    reports = reports_of([Document("a", id="x"), Document("b"), Document("c")], facts)

    assert [(one.id, one.index, one.position) for one in reports] == [("x", 0, 1), (None, 1, 2), (None, 2, 0)]
    assert [one.attention for one in reports] == [0.2, 0.1, 0.3]
    assert [one.relevance for one in reports] == [2.0, 1.0, 3.0]
