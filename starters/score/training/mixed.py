"""Steps on generated scenes and on pictures of any kind at once.

Images of both pass through the image tower together, so that batch norm has the same statistics in training as later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from starters.score.data.claimed_pictures import ClaimBatch, PictureBatch
from starters.score.training.claim_losses import ClaimNaming, ClaimReading, SaidThings, image_states
from starters.score.training.fact_space import FactSpace
from starters.score.training.scene_clip import KEEPING, SceneBatch, SceneReading


@dataclass(frozen=True)
class MixedBatch:
    """Scenes with captions, and pictures with or without claims."""

    scenes: SceneBatch
    pictures: PictureBatch | ClaimBatch

    def to(self, device: torch.device) -> "MixedBatch":
        return MixedBatch(self.scenes.to(device), self.pictures.to(device))


@dataclass(frozen=True)
class MixedData:
    """Endless batches by step number."""

    scenes: Callable[[int], SceneBatch]
    pictures: Callable[[int], PictureBatch | ClaimBatch]

    def __call__(self, step: int) -> MixedBatch:
        return MixedBatch(self.scenes(step), self.pictures(step))


class StateLoss(Protocol):
    """A loss of the image tower's states."""

    def pixels(self, batch: Any) -> Tensor: ...

    def of_states(self, pooled: Tensor, patches: Tensor, batch: Any) -> Tensor: ...


class MixedLoss(nn.Module):
    """The sum of a loss of scenes and one of pictures, from one pass of the image tower."""

    def __init__(self, visual: Any, of_scenes: StateLoss, of_pictures: StateLoss) -> None:
        super().__init__()
        self.visual = visual
        self.of_scenes, self.of_pictures = of_scenes, of_pictures

    def forward(self, batch: MixedBatch) -> Tensor:
        scenes, pictures = self.of_scenes.pixels(batch.scenes), self.of_pictures.pixels(batch.pictures)
        pooled, patches = image_states(self.visual, torch.cat([scenes, pictures]))
        count = len(scenes)
        of_scenes = self.of_scenes.of_states(pooled[:count], patches[:count], batch.scenes)
        return of_scenes + self.of_pictures.of_states(pooled[count:], patches[count:], batch.pictures)


class MixedReading(nn.Module):
    """The supervised loss of the text tower on claims, and with the weight KEEPING that on scenes."""

    def __init__(self, naming: ClaimNaming, said: SaidThings, space: FactSpace) -> None:
        super().__init__()
        self.of_scenes, self.of_claims = SceneReading(naming.clip), ClaimReading(naming, said, space)

    def forward(self, batch: MixedBatch) -> Tensor:
        loss: Tensor = KEEPING * self.of_scenes(batch.scenes) + self.of_claims(batch.pictures)
        return loss
