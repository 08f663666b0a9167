"""The temperature of shares is the one at which the gold documents were most likely."""

import pytest
import torch

from services.generate.calibrate.shares import best_temperature


def test_the_temperature_that_made_the_outcomes_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    rels = [0.01 * torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(3000)]
    golds = [int(torch.multinomial((rel / 0.004).softmax(-1), 1, generator=generator)) for rel in rels]
    assert best_temperature(rels, golds) == pytest.approx(0.004, rel=0.1)
