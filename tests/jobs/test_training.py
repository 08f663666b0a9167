"""The training loop's schedule is that of open_clip's own training."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.jobs.training import Run, learning_rate

GOLDENS = Path(__file__).parents[1] / "goldens"
SCHEDULES = json.loads((GOLDENS / "lr_schedules.json").read_text())["open_clip_cosine"]


@pytest.mark.parametrize("golden", SCHEDULES, ids=lambda golden: f"{golden['warmup']} of {golden['steps']}")
def test_the_learning_rate_of_every_step_is_open_clips(golden: dict[str, Any]) -> None:
    run = Run(
        Path(), golden["steps"], 256, golden["base"], 0.1, warmup_ratio=golden["warmup"] / golden["steps"], seed=0
    )
    for step, expected in golden["lr"].items():
        assert learning_rate(run, int(step)) == pytest.approx(expected, rel=1e-9)


def test_a_warm_up_in_steps_is_kept_to_the_step_when_it_is_given_as_a_share() -> None:
    for num_steps in range(1, 4000, 7):
        for num_warmup in {1, num_steps // 3 or 1, num_steps}:
            run = Run(Path(), num_steps, 1, 1.0, 0.0, warmup_ratio=num_warmup / num_steps, seed=0)
            assert learning_rate(run, num_warmup - 1) == 1.0
            assert num_warmup == 1 or learning_rate(run, num_warmup - 2) < 1.0
