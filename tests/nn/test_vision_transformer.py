"""Blocks of a ViT in pieces compute what open_clip's own do."""

import torch

from services.nn.clip_model import create_clip
from services.nn.vision_transformer import quick_gelu_mlp
from tests.score.tiny import CONFIG


def test_an_mlp_with_quick_gelu_in_fewer_passes_answers_the_same_and_is_rounded_no_worse() -> None:
    torch.manual_seed(0)
    mlp = (
        create_clip({"model_cfg": {**CONFIG["model_cfg"], "quick_gelu": True}})
        .model.visual.transformer.resblocks[0]
        .mlp
    )
    x = torch.randn(64, 17, 32)
    with torch.inference_mode():
        expected = mlp(x)
        torch.testing.assert_close(quick_gelu_mlp(mlp, x), expected, atol=1e-5, rtol=0)
        mlp.bfloat16()
        narrow, own = (run.float() - expected for run in (quick_gelu_mlp(mlp, x.bfloat16()), mlp(x.bfloat16())))
        assert narrow.square().mean() <= 1.05 * own.square().mean()
