"""Supervision of a CLIP's image tower by the facts of pictures, while it is tuned on captions.

The choice among claims tells little about one picture: that one of four is true. Its facts tell what each patch shows.
Textures are learned by the convolutions or not at all, so these name facts by themselves.

Shapes: B images, of which the last are the batch's pictures, P patches, E embedding width, D width of a stem.
"""

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from services.score.fsc_clip import ImageFeatures
from starters.score.data.claimed_pictures import PictureBatch, centered_things
from starters.score.data.claims import SIZES
from starters.score.training.claim_losses import CenteredThings, SeenThings
from starters.score.training.fact_space import SIZE

# What is in a picture has many more heads than what a patch shows.
SEEN = 0.2


class PictureNaming(nn.Module):
    """Heads on three places of an image tower, of which `weight` is that of the sum of their losses.

    The last but one convolution of a stem and each patch name the thing whose centre lies there, patches also its size
    beside the others, and the pooled features what is in the whole picture.
    """

    def __init__(self, clip: Any, weight: float) -> None:
        super().__init__()
        width = clip.visual.proj.shape[1]
        self.centered, self.seen = CenteredThings(width, binds=True), SeenThings(width)
        self.size = nn.Linear(width, 1 + len(SIZES))  # neither small nor big is one more
        self.weight = weight
        self.of_stem: CenteredThings | None = None
        self._stem_states: Tensor | None = None
        if isinstance(clip.visual.conv1, nn.Sequential):
            last: Any = clip.visual.conv1[-1]
            self.of_stem = CenteredThings(last.in_channels)
            clip.visual.conv1[-2].register_forward_hook(self._keep)

    def forward(self, images: ImageFeatures, batch: PictureBatch) -> Tensor:
        """Compute the loss of a batch whose last images, the tower's latest, are these pictures."""
        number = len(batch.places)
        patches, pooled = images.tokens[-number:], images.pooled[-number:]
        thing = centered_things(batch.places, math.isqrt(patches.shape[1]))
        is_there, index = thing >= 0, thing.clamp(min=0)
        sizes = 1 + batch.attributes[..., SIZE].gather(1, index)[is_there]
        loss = F.cross_entropy(self.size(patches[is_there]).float(), sizes)
        loss = loss + self.centered(patches, batch) + SEEN * self.seen(pooled, batch)
        if self.of_stem is not None and self._stem_states is not None:
            loss = loss + self.of_stem(self._stem_states[-number:].flatten(2).mT, batch)
        total: Tensor = self.weight * loss
        return total

    def _keep(self, _stem: nn.Module, _arguments: Any, states: Tensor) -> None:
        self._stem_states = states
