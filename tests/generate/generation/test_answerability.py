"""The probability that documents answer: from the first token of a trained refusal, in answers and in rankings."""

import math
from pathlib import Path

import pytest
import torch

from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions, Generation, Progress
from services.generate.generation.prompt_calibration import answerable, refusal_log_odds
from services.generate.generation.ranking import rank
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import (
    OFF,
    Answerability,
    CalibrationProfile,
    LogisticFit,
    read_profile,
    write_profile,
)
from services.generate.prompts.ranking import RankMethod
from services.generate.prompts.templates import Document
from tests.generate.tiny_models import tiny_model, tiny_tokenizer

DOCUMENTS = [Document("The keeper was called Ada."), Document("The harbour was built later."), Document("It rains.")]
QUERY = "who kept the lighthouse?"
REFUSAL = Answerability(refusal="The documents do not say.", token_id=7, temperature=2.0, offset=-1.0)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(tiny_model("llama"), tiny_tokenizer())


def profile(**changes: object) -> CalibrationProfile:
    return OFF.model_copy(update={"answerability": REFUSAL.model_copy(update=changes)})


def test_the_probability_is_the_equation_s() -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(0))
    p = float(logits.softmax(-1)[7])
    expected = 1 / (1 + math.exp(-(-1.0 - math.log(p / (1 - p))) / 2.0))
    assert answerable(profile(), logits) == pytest.approx(expected, rel=1e-6)
    assert answerable(OFF, logits) is None
    assert answerable(None, logits) is None
    assert answerable(profile(token_id=20), logits) is None


def test_calibrated_logits_have_a_fit_of_their_own() -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(0))
    both = profile(calibrated=LogisticFit(temperature=0.5, offset=3.0))
    alone = profile(temperature=0.5, offset=3.0)
    assert answerable(both, logits) == answerable(profile(), logits)
    assert answerable(both, logits, is_calibrated=True) == answerable(alone, logits)
    assert answerable(profile(), logits, is_calibrated=True) == answerable(profile(), logits)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_an_answer_s_probability_is_that_of_the_fit_for_its_logits(model: LanguageModel, is_enabled: bool) -> None:
    certain = LogisticFit(temperature=1.0, offset=1e4)
    changes = {"enabled": is_enabled, "layers": [0], "rel_layers": [0]}
    engine = GenerateEngine(model, profile(calibrated=certain).changed(changes), EngineOptions())
    generation = engine.processor.prepare_question(QUERY, DOCUMENTS, AnswerOptions(max_tokens=3))
    assert isinstance(generation, Generation)
    ((_, progress, _),) = engine.admit([generation])
    assert isinstance(progress, Progress) and progress.facts is not None and progress.facts.answerable is not None
    assert (progress.facts.answerable == 1.0) == is_enabled


def test_a_certain_refusal_stays_finite() -> None:
    logits = torch.full((20,), -200.0)
    logits[7] = 200.0
    assert answerable(profile(), logits) == pytest.approx(0.0)
    assert torch.isfinite(refusal_log_odds(logits, 7))


def test_an_answer_s_first_token_tells_the_probability(model: LanguageModel) -> None:
    engine = GenerateEngine(model, profile(), EngineOptions())
    options = AnswerOptions(max_tokens=3)
    generation = engine.processor.prepare_question(QUERY, DOCUMENTS, options)
    assert isinstance(generation, Generation)
    ((_, progress, _),) = engine.admit([generation])
    assert isinstance(progress, Progress)
    assert progress.facts is not None
    with torch.no_grad():
        plain = tiny_model("llama", attention="eager")
        logits = plain(torch.tensor([generation.prompt.input_ids])).logits[0, -1]
    assert progress.facts.answerable == pytest.approx(answerable(profile(), logits), abs=1e-4)


def test_calibrated_scores_share_the_probability_that_any_document_answers(model: LanguageModel) -> None:
    known, plain = rank(model, QUERY, DOCUMENTS, "calibrated", profile()), rank(model, QUERY, DOCUMENTS, "calibrated")
    assert sum(plain.relevance_scores) == pytest.approx(1)
    total = sum(known.relevance_scores)
    assert 0 < total < 1
    assert known.order == plain.order
    assert [score / total for score in known.relevance_scores] == pytest.approx(plain.relevance_scores)


def test_a_fitted_score_is_the_probability_of_a_document_by_its_lesser_relevance_of_both_orders(
    model: LanguageModel,
) -> None:
    fit = LogisticFit(temperature=0.02, offset=0.01)
    forward, backward = (rank(model, QUERY, order, "calibrated", profile()) for order in (DOCUMENTS, DOCUMENTS[::-1]))
    expected = [min(pair) for pair in zip(forward.scores, reversed(backward.scores), strict=True)]
    for known, any_answers in (
        (profile(), min(sum(forward.relevance_scores), sum(backward.relevance_scores))),
        (OFF, 1.0),
    ):
        fitted = known.model_copy(update={"relevance": fit})
        own = rank(model, QUERY, DOCUMENTS, "calibrated", fitted)
        assert own.scores == pytest.approx(expected)
        assert own.prompt_tokens == forward.prompt_tokens + backward.prompt_tokens
        assert list(own.relevance_scores) == pytest.approx(
            [any_answers / (1 + math.exp(-(0.01 + rel) / 0.02)) for rel in expected]
        )
        again = rank(model, QUERY, DOCUMENTS[::-1], "calibrated", fitted)
        assert list(reversed(again.relevance_scores)) == pytest.approx(own.relevance_scores)


@pytest.mark.parametrize("method", ["calibrated", "attention"])
def test_equal_documents_have_equal_scores_wherever_they_are(model: LanguageModel, method: RankMethod) -> None:
    documents = [DOCUMENTS[0], DOCUMENTS[1], Document(DOCUMENTS[0].text, id="again"), Document(DOCUMENTS[0].text, "A")]
    for known in (OFF, OFF.model_copy(update={"relevance": LogisticFit(temperature=0.02, offset=0.01)})):
        ranking = rank(model, QUERY, documents, method, known)
        assert ranking.relevance_scores[0] == ranking.relevance_scores[2] != ranking.relevance_scores[3]
        assert ranking.scores[0] == ranking.scores[2]


def test_other_methods_keep_their_scores(model: LanguageModel) -> None:
    for method in ("attention", "query_likelihood"):
        assert rank(model, QUERY, DOCUMENTS, method, profile()) == rank(model, QUERY, DOCUMENTS, method)


def test_a_profile_keeps_its_fits(tmp_path: Path) -> None:
    known = profile().model_copy(update={"relevance": LogisticFit(temperature=0.01, offset=-0.02)})
    write_profile(known, tmp_path)
    assert read_profile(tmp_path) == known
    changed = profile().changed({"enabled": True, "layers": [0], "rel_layers": [0]})
    assert changed.answerability == REFUSAL
