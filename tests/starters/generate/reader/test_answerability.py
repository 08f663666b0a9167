"""The probability that documents answer, fitted for a profile's calibration."""

import statistics

import pytest

from services.generate.calibrate.bench import Bench
from services.generate.generation.prompt_calibration import answerable
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import OFF, Answerability, paper_profile
from starters.generate.questions import OPEN
from starters.generate.reader import answerability
from starters.generate.reader.answerability import (
    SHARE_UNANSWERABLE,
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
