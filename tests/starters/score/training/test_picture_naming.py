"""The image tower names facts of pictures at its stem, its patches and its pooled features."""

import torch

from services.score.fsc_clip import ImageFeatures
from services.score.model.dense_features import encode_images
from starters.score.data.claimed_pictures import ClaimedPictures, Pictures
from starters.score.training.picture_naming import PictureNaming
from tests.score.tiny import IMAGE_SIZE, tiny_clip


def test_a_tower_learns_to_name_the_facts_of_its_last_images() -> None:
    torch.manual_seed(0)
    clip = tiny_clip(conv_stem=[8, 8, 8])
    batch = Pictures(1, 6, IMAGE_SIZE)(0)
    pixels = clip.transform.normalise(torch.cat([torch.zeros_like(batch.pixels[:2]), batch.pixels]))
    naming = PictureNaming(clip.model, 0.5)
    optimizer = torch.optim.Adam([*naming.parameters(), *clip.model.visual.parameters()], lr=0.02)
    losses = []
    for _ in range(40):
        loss = naming(encode_images(clip.model, pixels), batch)
        optimizer.zero_grad()
        loss.backward()
        assert clip.model.visual.conv1[0].weight.grad is not None
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_the_weight_is_that_of_all_its_losses() -> None:
    clip = tiny_clip()
    batch = ClaimedPictures(clip.tokenizer, Pictures(1, 6, IMAGE_SIZE), 6)(0).pictures
    naming = PictureNaming(clip.model, 1.0).eval()
    with torch.no_grad():
        images: ImageFeatures = encode_images(clip.model, clip.transform.normalise(batch.pixels))
        whole = naming(images, batch)
        naming.weight = 0.25
        torch.testing.assert_close(naming(images, batch), whole / 4)
