"""Work that was begun with other arguments is told from this command's by the options that differ."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from services.core.refusals import Refused
from services.jobs.resumption import differences, flat, option_names
from services.jobs.training import Run, train


def test_what_differs_is_called_by_its_option_once() -> None:
    begun = flat({"recipe": {"num_steps": 2, "seed": 0}, "low": {"size": 1}, "high": {"size": 2}, "content": "a1"})
    now = flat({"recipe": {"num_steps": 3, "seed": 0}, "low": {"size": 2}, "high": {"size": 3}, "content": "b2"})
    options = {**option_names("size", "seed"), "num_steps": "--steps"}
    told = differences(begun, now, options)
    assert told == 'content was "a1", and is "b2"; --size was 2, and is 3; --steps was 2, and is 3'
    assert differences(begun, begun, options) == ""


class _Numbers:
    def to(self, device: torch.device) -> "_Numbers":
        return self


class _Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, batch: _Numbers) -> Tensor:
        return self.weight.square().sum()


class _PowerCut(Exception):
    pass


def test_a_training_says_at_which_step_it_continues_and_which_options_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(step: int) -> _Numbers:
        if step == 1:
            raise _PowerCut
        return _Numbers()

    run = Run(tmp_path, 2, 1, 0.1, 0.0, 0.0, seed=0, checkpoint_every=1, arguments={"gamma": 2.0})
    with pytest.raises(_PowerCut):
        train(run, _Loss(), cut)
    capsys.readouterr()
    with pytest.raises(Refused, match=r"other arguments \(--steps was 2, and is 3; --seed was 0, and is 1\)"):
        train(replace(run, num_steps=3, seed=1), _Loss(), cut)
    with pytest.raises(Refused, match=r"other arguments \(gamma was 2\.0, and is 0\.0\)"):
        train(replace(run, arguments={"gamma": 0.0}), _Loss(), cut)
    train(run, _Loss(), lambda step: _Numbers())
    assert "training: continuing at step 1 of 2" in capsys.readouterr().err
