"""vLLM's own server with the plug-in, against Fovea's own engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import CalibrationProfile
from tests.vllm_plugin.engine import Server, answer_of, served
from tests.vllm_plugin.estimated_answers import estimated_answers
from tests.vllm_plugin.own_answers import (
    MAX_TOKENS,
    OwnAnswer,
    Question,
    assert_equal,
    load,
    own_answers,
    question,
    save,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

QUESTIONS = [question(seed, is_per_head=seed % 5 == 0) for seed in range(100)]


@dataclass(frozen=True)
class Case:
    server: Server
    model: LanguageModel
    own: list[OwnAnswer]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("served")
    checkpoint = save(folder, "llama")
    model = load(checkpoint)
    with served(checkpoint, folder / "vllm.log") as server:
        yield Case(server, model, own_answers(model, QUESTIONS))


def test_calibrated_answers_in_batches_and_from_cached_prefixes_are_those_of_the_own_engine(case: Case) -> None:
    requests = [asked.request for asked in QUESTIONS]
    assert_equal(case.server.answers(requests), case.own)
    again = case.server.answers(requests)
    assert_equal(again, case.own)
    assert sum(answer["cached"] for answer in again) > 0


def test_calibration_changes_answers(case: Case) -> None:
    plain = case.server.answers([asked.plain_request for asked in QUESTIONS])
    assert sum(one["tokens"] != own.tokens for one, own in zip(plain, case.own, strict=True)) > len(QUESTIONS) / 4


def test_measured_attention_is_that_of_the_own_engine_and_is_returned_once(case: Case) -> None:
    for number, (asked, own) in enumerate(zip(QUESTIONS[:10], case.own, strict=False)):
        answer_of(case.server.ask(asked.input_ids, 1, asked.documents | {"fovea_measure": f"question-{number}"}))
        found = case.server.post("/fovea/attention", {"key": f"question-{number}"})
        assert found.status_code == 200, found.text
        torch.testing.assert_close(torch.tensor(found.json()["attention"]), own.attention, rtol=0, atol=2e-5)
        assert case.server.post("/fovea/attention", {"key": f"question-{number}"}).status_code == 404


@pytest.mark.parametrize("bias", ["exact", "single", "query"])
def test_documents_alone_are_enough_and_give_the_answers_of_the_own_engine_s_estimates(case: Case, bias: Any) -> None:
    asked = [one for one in QUESTIONS if one.spans[-1][1] < len(one.input_ids)][:20]
    profile = CalibrationProfile(
        enabled=True, bias=bias, temperature=0.05, layers=(2, 3), rel_layers=(0, 1, 2, 3), dummy="whole"
    )
    own = estimated_answers(case.model, asked, profile, MAX_TOKENS)
    fields = {"fovea_bias": bias, "fovea_temperature": 0.05}
    requests = [one.plain_request | {"fields": one.documents | fields | question_of(one, bias)} for one in asked]
    assert [answer["tokens"] for answer in case.server.answers(requests)] == own


def question_of(asked: Question, bias: str) -> dict[str, Any]:
    """Everything after the documents is the question."""
    return {"fovea_question": [asked.spans[-1][1], len(asked.input_ids)]} if bias == "query" else {}


def refusals(asked: Question) -> dict[str, dict[str, Any]]:
    """Bad fields, by what the refusal says."""
    fields = asked.fields
    return {
        "unknown field 'fovea_weights'": fields | {"fovea_weights": [1.0]},
        "fovea_documents ends at token": fields | {"fovea_documents": [0, 1, 1, 400], "fovea_log_alpha": [0.0, 0.0]},
        "must ascend": fields | {"fovea_documents": [0, 3, 2, 4], "fovea_log_alpha": [0.0, 0.0]},
        "numbers for": fields | {"fovea_log_alpha": [0.0] * (len(asked.spans) + 1)},
        "names layer 4": fields | {"fovea_layers": [4]},
        "fovea_first_row is": fields | {"fovea_first_row": len(asked.input_ids)},
        "the prompt has": fields | {"fovea_num_prompt_tokens": len(asked.input_ids) + 1},
        "must be a list of whole numbers": fields | {"fovea_layers": ["2"]},
        "fovea_bias must be one of": asked.documents | {"fovea_bias": "tree"},
        "fovea_rel_layers names layer 9": asked.documents | {"fovea_rel_layers": [9]},
    }


def test_bad_fields_are_refused_with_a_sentence_and_the_engine_lives_on(case: Case) -> None:
    asked = QUESTIONS[1]
    for sentence, fields in refusals(asked).items():
        response = case.server.ask(asked.input_ids, 1, fields)
        assert response.status_code == 400, response.text
        assert sentence in response.json()["error"]["message"]
    assert_equal(case.server.answers([asked.request]), [case.own[1]])
