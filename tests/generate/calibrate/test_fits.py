"""Probabilities fitted to what a checkpoint measures."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from services.generate.calibrate.bench import Bench
from services.generate.calibrate.fits import fit_logistic, fitted_relevance
from services.generate.calibrate.search import Measured
from services.generate.data.questions import Example
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import OFF
from starters.generate.questions import OPEN
from tests.generate.tiny_models import tiny_model, tiny_tokenizer


def test_fitted_probabilities_are_those_of_the_outcomes() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 6 * torch.randn(4000, generator=generator)
    outcomes = torch.rand(4000, generator=generator) < ((scores + 2) / 3).sigmoid()
    temperature, offset = fit_logistic(scores, outcomes)
    assert temperature == pytest.approx(3, rel=0.15)
    assert offset == pytest.approx(2, abs=0.5)


def test_the_relevance_of_documents_is_fitted_to_which_of_them_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    of_document: defaultdict[tuple[int, object], Tensor] = defaultdict(
        lambda: 0.001 * torch.randn(1, generator=generator)
    )

    class Measuring(Bench):
        """Relevances of three documents, on a scale of thousandths, of which the gold one is higher by four; the one
        that comes first is higher than in the other order, by another four."""

        def measure(self, examples: Sequence[Example], *_: object) -> Iterator[Measured]:
            for number, one in enumerate(examples):
                rel = torch.cat([of_document[number, document] for document in one.documents])[None, None]
                rel[0, 0, one.gold] += 0.004
                rel[0, 0, 0] += 0.004
                yield Measured(rel.clamp_min(0), (-rel).clamp_min(0), one.gold, prompt_tokens=1, bias_tokens=1)

    bench = Measuring(LanguageModel(tiny_model(num_hidden_layers=1), tiny_tokenizer()), OPEN)
    fit = fitted_relevance(bench, OPEN.examples("calibration", 3, 1000), OFF)
    # two bells of the same width, one of them twice as frequent: log odds are (rel - 2 a - log 2 / 4 a) 4 / a
    assert fit.temperature == pytest.approx(0.00025, rel=0.2)
    assert fit.offset == pytest.approx(-0.002 - 0.00025 * 0.693, rel=0.2)
