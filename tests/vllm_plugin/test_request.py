"""The fields of a request, and the rows and α that follow from them."""

import math
import random
from typing import Any

import pytest
import torch

from fovea_vllm.estimates import FILLER, EstimateRequest
from fovea_vllm.plugin import check_version
from fovea_vllm.request import BadRequest, DocumentRequest
from fovea_vllm.step import MAX_KEPT, Measurements, Row, rows_of
from services.generate.calibration import log_alpha, relevance
from services.generate.prompts.templates import CONTENT_FREE as OWN_CONTENT_FREE
from services.generate.prompts.templates import FILLER as OWN_FILLER

FIELDS = {"fovea_documents": [2, 5, 5, 9], "fovea_log_alpha": [0.0, -3], "fovea_layers": [1, 2]}


def request(**changes: Any) -> DocumentRequest:
    found = DocumentRequest.of({**FIELDS, "fovea_num_prompt_tokens": 12, **changes})
    assert found is not None
    return found


def test_requests_of_others_are_none() -> None:
    assert DocumentRequest.of(None) is None
    assert DocumentRequest.of({"temperature_of_another_plug_in": 1}) is None
    assert EstimateRequest.of({"another": 1}) is None
    assert EstimateRequest.of(FIELDS) is None  # it brings α


def test_by_default_the_last_prompt_row_is_the_first_that_is_calibrated() -> None:
    assert request().first_calibrated == 11
    assert request(fovea_first_row=9).first_calibrated == 9


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fovea_alpha": [1.0, 1.0]}, "unknown field 'fovea_alpha'"),
        ({"Fovea_layers": [0]}, "unknown field 'Fovea_layers'"),
        ({"fovea_documents": None}, "fovea_documents is missing"),
        ({"fovea_documents": "2,5"}, "fovea_documents must be a list of whole numbers"),
        ({"fovea_documents": [2, 5.0]}, "fovea_documents must be a list of whole numbers"),
        ({"fovea_documents": [2, True]}, "fovea_documents must be a list of whole numbers"),
        ({"fovea_documents": []}, "needs a start and an end"),
        ({"fovea_documents": [2, 5, 7]}, "needs a start and an end"),
        ({"fovea_documents": [-1, 5, 5, 9]}, "must ascend"),
        ({"fovea_documents": [2, 5, 4, 9]}, "4 follows 5. Where a token holds .* end documents with a line break"),
        ({"fovea_documents": [0, 0] * 1025}, "at most 1024"),
        ({"fovea_log_alpha": []}, "0 numbers for 2 documents"),
        ({"fovea_log_alpha": [0.0] * 3}, "3 numbers for 2 documents"),
        ({"fovea_log_alpha": [0.0, math.inf]}, "must be between"),
        ({"fovea_log_alpha": [0.0, math.nan]}, "must be between"),
        ({"fovea_layers": []}, "fovea_layers must be layers"),
        ({"fovea_layers": [2, 1]}, "fovea_layers must be layers"),
        ({"fovea_layers": [-1]}, "fovea_layers must be layers"),
        ({"fovea_first_row": -1}, "fovea_first_row must be a whole number"),
        ({"fovea_measure": "name"}, "exclude each other"),
        ({"fovea_measure": ""}, "1 to 128 characters"),
    ],
)
def test_bad_fields_are_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        DocumentRequest.of({**FIELDS, **changes})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"fovea_documents": [2, 5]}, "needs either fovea_log_alpha, to calibrate, or fovea_measure"),
        ({"fovea_documents": [2, 5], "fovea_log_alpha": [0.0]}, "need each other"),
        ({"fovea_documents": [2, 5], "fovea_measure": "a", "fovea_layers": [1]}, "need each other"),
        ({"fovea_documents": [2, 5], "fovea_measure": "a", "fovea_first_row": 1}, "fovea_first_row needs"),
    ],
)
def test_fields_that_need_each_other_are_asked_for_together(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        DocumentRequest.of(fields)


def test_a_request_must_fit_its_prompt_and_its_model() -> None:
    request(fovea_first_row=11).check_prompt(12)
    for changes, sentence in (
        ({"fovea_num_prompt_tokens": 13}, "but the prompt has 12"),
        ({"fovea_first_row": 12}, "12"),
    ):
        with pytest.raises(BadRequest, match=sentence):
            request(**changes).check_prompt(12)
    with pytest.raises(BadRequest, match="ends at token 9, but the prompt has 8"):
        request(fovea_num_prompt_tokens=8).check_prompt(8)
    request().check_model(num_layers=3, num_heads=4)
    request(fovea_log_alpha=[0.0] * 16).check_model(num_layers=3, num_heads=4)
    with pytest.raises(BadRequest, match="names layer 2"):
        request().check_model(num_layers=2, num_heads=4)
    with pytest.raises(BadRequest, match="needs 2, one for each document, or 16"):
        request(fovea_log_alpha=[0.0] * 8).check_model(num_layers=3, num_heads=4)


def test_all_that_changes_keys_and_values_changes_the_cache_key() -> None:
    changes: list[dict[str, Any]] = [{}, {"fovea_log_alpha": [0.0, -2]}, {"fovea_layers": [1]}]
    changes += [{"fovea_documents": [2, 5, 5, 8]}, {"fovea_first_row": 10}]
    assert len({request(**change).cache_key for change in changes}) == len(changes)
    assert request(fovea_first_row=11).cache_key == request().cache_key


def test_rows_are_calibrated_once_each_in_whatever_chunks_a_prompt_comes() -> None:
    """A prompt of 12 tokens, then three more, in random chunks beside other requests."""
    asked = request(fovea_first_row=9)
    draw = random.Random(0)
    for _ in range(50):
        done, seen = 0, []
        while done < 15:
            new = draw.randint(1, 15 - done)
            other = draw.randint(1, 4)
            rows = rows_of({1: asked}, [0, 1], [0, other, other + new], [other, done + new])
            assert all(row.token == other + row.num_seen - 1 - done and row.place == 1 for row in rows)
            seen += [row.num_seen - 1 for row in rows]
            done += new
        assert seen == [9, 10, 11, 12, 13, 14]


def test_only_the_last_prompt_row_is_measured() -> None:
    measured = DocumentRequest.of({"fovea_documents": [2, 5], "fovea_measure": "a", "fovea_num_prompt_tokens": 12})
    assert measured is not None
    assert rows_of({7: measured}, [7], [0, 6], [6]) == []
    assert rows_of({7: measured}, [7], [0, 6], [12]) == [Row(5, 0, 12, measured, True)]
    assert rows_of({7: measured}, [7], [0, 1], [13]) == []


def test_a_single_document_is_not_calibrated() -> None:
    single = request(fovea_documents=[2, 5], fovea_log_alpha=[0.0])
    assert rows_of({0: single}, [0], [0, 12], [12]) == []


def test_what_was_measured_is_taken_once_and_only_when_complete() -> None:
    measurements = Measurements(num_layers=2)
    measurements.put("a", 1, torch.tensor([[1.0, 2.0]]))
    assert measurements.take("a") is None
    measurements.put("a", 0, torch.tensor([[3.0, 4.0]]))
    assert measurements.take("a") == [[[3.0], [4.0]], [[1.0], [2.0]]]
    assert measurements.take("a") is None


def test_what_nobody_takes_is_dropped() -> None:
    measurements = Measurements(num_layers=1)
    for number in range(MAX_KEPT + 1):
        measurements.put(str(number), 0, torch.zeros(1, 1))
    assert measurements.take("0") is None
    assert measurements.take("1") is not None


def estimate(**fields: Any) -> EstimateRequest:
    found = EstimateRequest.of({"fovea_documents": [2, 5, 5, 5, 6, 9], **fields})
    assert found is not None
    return found


def test_relevance_and_alpha_are_the_own_engine_s() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        attention, dummies = torch.rand(4, 2, 3) / 100, torch.rand(4, 2, 3) / 100
    asked = estimate(fovea_rel_layers=[1, 3], fovea_temperature=1e-3)
    found = torch.tensor(asked.log_alpha(attention, dummies)).log_softmax(dim=-1)
    expected = log_alpha(relevance(attention, dummies, layers=(1, 3)), 1e-3, torch.ones(3))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    table = estimate(fovea_bias_table=[0.001, 0.002, 0.003])
    expected = attention.mean(dim=(0, 1)) - torch.tensor([0.001, 0.002, 0.003])
    found = torch.tensor(table.log_alpha(attention, None)) * 5e-5
    torch.testing.assert_close(found, expected - expected.max(), rtol=1e-4, atol=1e-7)


def test_attention_that_is_not_a_number_is_refused() -> None:
    attention = torch.full((4, 2, 3), torch.nan)
    with pytest.raises(BadRequest, match="the attention that was measured is not finite"):
        estimate().log_alpha(attention, torch.zeros(4, 2, 3))


def test_dummies_keep_what_is_around_contents_and_a_newline_at_the_end() -> None:
    input_ids, filler, newline = list(range(100, 112)), [1, 2], {108}
    whole = estimate(fovea_bias="single").dummy_prompts(input_ids, filler, newline.__contains__)
    assert whole == [([100, 101, 1, 2, 1, 105, 1, 2, 108, 109, 110, 111], (0, 2))]
    framed = estimate(fovea_contents=[3, 4, 7, 9]).dummy_prompts(input_ids, filler, newline.__contains__)
    assert framed == [
        ([100, 101, 102, 1, *range(104, 112)], (0,)),
        ([*range(100, 107), 1, *range(108, 112)], (2,)),
    ]


def test_dummies_have_the_own_engine_s_text() -> None:
    assert (estimate().filler, FILLER) == (OWN_FILLER, OWN_FILLER)
    assert estimate(fovea_bias="query", fovea_question=[10, 11]).filler == OWN_CONTENT_FREE


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"fovea_weights": 1}, "unknown field 'fovea_weights'"),
        ({"fovea_bias": "tree"}, "fovea_bias must be one of"),
        ({"fovea_bias": "table"}, "table needs fovea_bias_table"),
        ({"fovea_bias": "exact", "fovea_bias_table": [0.1] * 3}, "the others exclude it"),
        ({"fovea_bias_table": [0.1]}, "for each of 3 documents"),
        ({"fovea_bias_table": [0.1, 0.2, 1.5]}, "a number from 0 to 1"),
        ({"fovea_temperature": 0}, "fovea_temperature must be above 0"),
        ({"fovea_rel_layers": [1, 1]}, "fovea_rel_layers must be layers"),
        ({"fovea_contents": [4, 7]}, "lies within no document"),
        ({"fovea_contents": [4]}, "fovea_contents must ascend"),
        ({"fovea_bias": "query"}, "fovea_bias query and fovea_question need each other"),
        ({"fovea_question": [9, 11]}, "fovea_bias query and fovea_question need each other"),
        ({"fovea_bias": "query", "fovea_question": [8, 11]}, "after the last document"),
        ({"fovea_bias": "query", "fovea_question": [9, 9]}, "not empty"),
        ({"fovea_bias": "query", "fovea_question": [9]}, "fovea_question must be"),
        ({"fovea_rel_heads": [1]}, "fovea_rel_heads must be different heads"),
        ({"fovea_rel_heads": [1, 0, 1, 0]}, "fovea_rel_heads must be different heads"),
        ({"fovea_rel_heads": [1, -1]}, "fovea_rel_heads must be different heads"),
        ({"fovea_rel_heads": [1, 0], "fovea_rel_layers": [1]}, "exclude each other"),
    ],
)
def test_bad_fields_of_estimates_are_refused_by_name(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        estimate(**fields)


def test_a_prompt_that_ends_with_a_document_has_no_estimate() -> None:
    with pytest.raises(BadRequest, match="ends with a document"):
        estimate().check_prompt(9, 4, 2)


def test_query_replaces_the_question_alone_and_measures_every_document_at_once() -> None:
    input_ids = list(range(100, 114))
    asked = estimate(fovea_bias="query", fovea_question=[10, 13])
    assert asked.dummy_prompts(input_ids, [1, 2], lambda token: False) == [
        ([*range(100, 110), 1, 2, 1, 113], (0, 2)),
    ]
    asked.check_prompt(14, 4, 2)
    with pytest.raises(BadRequest, match="fovea_question ends at token 13, but the prompt has 12"):
        asked.check_prompt(12, 4, 2)


def test_relevance_of_heads_is_the_own_engine_s() -> None:
    generator = torch.Generator().manual_seed(0)
    attention, dummies = (torch.rand(4, 2, 3, generator=generator) / 100 for _ in range(2))
    asked = estimate(fovea_rel_heads=[3, 1, 1, 0], fovea_temperature=1e-3)
    found = torch.tensor(asked.log_alpha(attention, dummies)).log_softmax(dim=-1)
    expected = log_alpha(relevance(attention, dummies, heads=((1, 0), (3, 1))), 1e-3, torch.ones(3))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(BadRequest, match="names head 1 of layer 3; the model's are 0 to 1 of layers 0 to 2"):
        asked.check_prompt(12, 3, 2)
    with pytest.raises(BadRequest, match="names head 1 of layer 3"):
        asked.check_prompt(12, 4, 1)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.0"])
def test_supported_versions_of_vllm_pass(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0", "dev"])
def test_other_versions_of_vllm_are_refused_with_a_sentence(version: str) -> None:
    with pytest.raises(RuntimeError, match=r"fovea-vllm works with vLLM 0\.32, 0\.33, not with"):
        check_version(version)
