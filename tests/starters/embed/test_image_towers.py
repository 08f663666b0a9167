"""An image tower continues from an earlier one, and a spelled word is read back."""

from random import Random

import pytest
import torch

from services.core.refusals import Refused
from services.nn.clip_model import create_clip
from starters.embed.spelling import spelled
from starters.embed.train_clip import continue_image_tower
from tests.embed.model.test_checkpoint import CONFIG, VISION


def test_residual_blocks_in_a_stem_change_nothing_at_first() -> None:
    with_blocks = create_clip({**CONFIG, "conv_stem": [4, 8, 16], "conv_stem_blocks": 2}).model.visual.eval()
    without = create_clip({**CONFIG, "conv_stem": [4, 8, 16]}).model.visual.eval()
    continue_image_tower(with_blocks, without)
    pixels = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(with_blocks(pixels), without(pixels))


def test_an_image_tower_continues_for_larger_images() -> None:
    earlier = create_clip(CONFIG).model.visual
    larger = create_clip({**CONFIG, "model_cfg": {**CONFIG["model_cfg"], "vision_cfg": {**VISION, "image_size": 64}}})
    continue_image_tower(larger.model.visual, earlier)
    positions = larger.model.visual.positional_embedding
    assert torch.equal(positions[0], earlier.positional_embedding[0])
    # the middle of each quarter lies between the earlier positions, so the mean is theirs
    torch.testing.assert_close(positions[1:].mean(dim=0), earlier.positional_embedding[1:].mean(dim=0))
    assert torch.equal(larger.model.visual.proj, earlier.proj)


def test_an_image_tower_of_another_width_or_depth_is_refused() -> None:
    earlier = create_clip(CONFIG).model.visual
    for change in ({"width": 48}, {"layers": 3}, {"layers": 1}):
        model = {**CONFIG["model_cfg"], "vision_cfg": {**VISION, **change}}
        with pytest.raises(Refused, match="image towers differ"):
            continue_image_tower(create_clip({**CONFIG, "model_cfg": model}).model.visual, earlier)


def test_a_spelled_word_is_read_back_from_its_letters() -> None:
    tokenizer = create_clip(CONFIG).tokenizer
    whole, letters = tokenizer(["the red bird"]), spelled(tokenizer, ["the red bird"], Random(1), 1.0)
    assert not torch.equal(whole, letters)
    for (row,) in (whole.tolist(), letters.tolist()):
        assert tokenizer.decode(row[1 : row.index(max(row))]) == "the red bird "
    assert torch.equal(spelled(tokenizer, ["the red bird"], Random(1), 0.0), whole)
    long = spelled(tokenizer, ["red " * 40], Random(1), 1.0)[0]
    assert long.argmax() == 15  # cut, with its end
