"""The weights between a model and its tuned self are swept, drawn and chosen from on validation scenes."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.nn.clip_model import OPEN_CLIP_WEIGHTS, save_clip
from services.score.model.checkpoint import load_fsc_clip
from starters.score.training.train import app
from starters.score.training.wise_ft import TENTHS, Blend, choose, plot
from tests.score.tiny import tiny_clip


def blends() -> list[Blend]:
    """Composition grows with α; from 0.7 on something is forgotten, at 0.9 a recall too."""
    return [
        Blend(
            alpha,
            local_weight=0.2,
            comp=60 + 20 * alpha,
            global_comp=58 + 20 * alpha,
            zs=90.0 - (3 * alpha if alpha > 0.65 else 0),
            i2t=80 + alpha,
            t2i=80 - (1 if alpha == 0.6 else 0),
        )
        for alpha in TENTHS
    ]


def test_the_best_composition_that_forgets_nothing_is_chosen() -> None:
    assert choose(blends(), margin=1.0).alpha == 0.5  # at 0.6 a recall is lower, beyond it the zero-shot accuracy
    assert choose(blends(), margin=10.0).alpha == 1.0
    forgetful = [replace(blend, zs=blend.zs - 50 * (blend.alpha > 0)) for blend in blends()]
    assert choose(forgetful, margin=1.0).alpha == 0.0


def test_close_claims_and_some_loss_of_recall_may_count() -> None:
    closer = [replace(blend, close=90 - 40 * abs(blend.alpha - 0.3)) for blend in blends()]
    assert choose(closer, margin=1.0, close=0.5).alpha == 0.3
    assert choose(closer, margin=1.0, recall_margin=1.0).alpha == 0.6


def test_the_plot_has_a_mark_for_every_share_and_both_scores() -> None:
    svg = plot(blends())
    marks = Counter(re.findall(r'<use xlink:href="(#\w+)"', svg))
    assert sorted(marks.values())[-2:] == [12, 12]  # one of each in the legend; the others are ticks
    assert "zero-shot accuracy" in svg


@pytest.mark.slow
def test_the_job_leaves_table_plot_and_checkpoint(tmp_path: Path) -> None:
    for name, seed in (("base", 0), ("tuned", 1)):
        save_clip(tiny_clip(seed=seed), tmp_path / name)
    arguments = [
        "--base",
        str(tmp_path / "base"),
        "--tuned",
        str(tmp_path / "tuned"),
        "--output",
        str(tmp_path / "out"),
    ]
    options = ["--num-chosen", "5", "--num-evaluated", "5", "--no-publish"]
    result = CliRunner().invoke(app, ["wise-ft-scenes", *arguments, *options])
    assert result.exit_code == 0, result.output
    swept = [Blend(**entry) for entry in json.loads((tmp_path / "out" / "wise_ft.json").read_text())]
    assert [blend.alpha for blend in swept] == list(TENTHS)
    chosen = choose(swept, 1.0)
    described = json.loads((tmp_path / "out" / "checkpoint" / "checkpoint.json").read_text())
    assert described["kind"] == "fsc-clip"
    assert described["training"]["alpha"] == chosen.alpha
    assert load_fsc_clip(tmp_path / "out" / "checkpoint").local_weight == chosen.local_weight
    before, after = (load_file(tmp_path / n / OPEN_CLIP_WEIGHTS)["visual.proj"].float() for n in ("base", "tuned"))
    blended = load_file(tmp_path / "out" / "checkpoint" / OPEN_CLIP_WEIGHTS)["visual.proj"].float()
    torch.testing.assert_close(blended, torch.lerp(before, after, chosen.alpha), rtol=1e-2, atol=1e-3)
    assert (tmp_path / "out" / "wise_ft.svg").read_text().startswith("<svg")
