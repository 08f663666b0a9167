"""The probability that documents answer, and the temperature of their shares, fitted for a profile's calibration."""

import statistics

import pytest
import torch

from services.generate.calibrate.bench import Bench
from services.generate.generation.prompt_calibration import answerable
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import OFF, Answerability, paper_profile
from starters.generate.questions import OPEN
from starters.generate.reader import answerability
from starters.generate.reader.answerability import (
    SHARE_UNANSWERABLE,
    best_temperature,
    fit_logistic,
    fitted_with_calibration,
)
from tests.generate.tiny_models import tiny_model, tiny_tokenizer

TOKEN = 7


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(tiny_model(num_hidden_layers=2), tiny_tokenizer())


def test_the_mean_probability_of_calibrated_answers_is_the_share_that_can_be_answered(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answerability, "NUM_FITTED", 80)
    bench = Bench(model, OPEN)
    profile = paper_profile(2)
    fit = fitted_with_calibration(bench, profile, TOKEN, 4)
    assert fit is not None
    refusal = Answerability(refusal="The documents do not say.", token_id=TOKEN, calibrated=fit)
    fitted = profile.model_copy(update={"answerability": refusal})
    answered, refused = bench.questions.examples("evaluation", 4, 70), bench.questions.unanswerable("evaluation", 4, 30)
    logits = [*bench.first_logits(answered, fitted), *bench.first_logits(refused, fitted)]
    mean = statistics.fmean(answerable(fitted, one, is_calibrated=True) or 0.0 for one in logits)
    assert mean == pytest.approx(1 - SHARE_UNANSWERABLE, abs=0.1)


def test_there_is_no_fit_without_calibration(model: LanguageModel) -> None:
    assert fitted_with_calibration(Bench(model, OPEN), OFF, TOKEN, 4) is None


def test_calibration_changes_the_logits_that_are_fitted(model: LanguageModel) -> None:
    bench = Bench(model, OPEN)
    some = bench.questions.examples("evaluation", 3, 4)
    for plain, calibrated in zip(
        bench.first_logits(some, OFF), bench.first_logits(some, paper_profile(2)), strict=True
    ):
        assert not plain.equal(calibrated)


def test_fitted_probabilities_are_those_of_the_outcomes() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 6 * torch.randn(4000, generator=generator)
    outcomes = torch.rand(4000, generator=generator) < ((scores + 2) / 3).sigmoid()
    temperature, offset = fit_logistic(scores, outcomes)
    assert temperature == pytest.approx(3, rel=0.15)
    assert offset == pytest.approx(2, abs=0.5)


def test_the_temperature_that_made_the_outcomes_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    rels = [0.01 * torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(3000)]
    golds = [int(torch.multinomial((rel / 0.004).softmax(-1), 1, generator=generator)) for rel in rels]
    assert best_temperature(rels, golds) == pytest.approx(0.004, rel=0.1)
