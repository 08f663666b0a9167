"""Data that the starter is tuned on: generated scenes, and pictures of any kind with groups of claims about them.

Shapes: B images, of which the last G are pictures with claims, S image side in pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from services.jobs.colorshape import BACKGROUNDS, COLORS, SHAPES, SIZES, TEXTURES
from services.score.negatives.hard_negatives import Kind
from services.score.negatives.lexicon import Candidates
from services.score.training.batches import Drawn
from services.score.training.recipe import Recipe, Share, Weight
from starters.score.data.claimed_pictures import ClaimedPictures
from starters.score.data.scene_captions import MAX_COUNT, NUM_STYLES, NUMBERS, forget, sentence, sketch
from starters.score.data.scenes import generator_of, render_scenes, sample_scenes, scene_facts

# Share of generated scenes with two groups; those with one group preserve what the base model knows.
PAIR_FRACTION = 0.65


@pydantic_dataclass(frozen=True)
class SceneRecipe(Recipe):
    """The hyper-parameters of a tuning on generated images.

    `claimed` is the share of images that are pictures of any kind with claims; the others are scenes. Of the claims,
    `close` is the share about pictures drawn for a fact that is hard to see: a number, textures, sizes or an absence.
    If `excludes_true`, claims that are true of another picture of a batch are not counted as wrong there. `named` is
    the weight of naming these pictures' facts by heads that are discarded.

    Raises ValueError for invalid values.
    """

    claimed: Annotated[float, Field(ge=0, lt=1)] = 0.0
    close: Share = 0.0
    excludes_true: bool = False
    named: Weight = 0.0

    package: ClassVar[str] = "starters.score.training"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.excludes_true and self.method == "negclip":
            raise ValueError("negclip counts all captions of other images as wrong: excludes_true is not for it")


@dataclass(frozen=True)
class SceneSource:
    """Generated scenes; every caption of two groups states their relation, so that any swap makes it false."""

    side: int
    pair_fraction: float = PAIR_FRACTION

    def draw(self, seed: int, step: int, num_images: int) -> Drawn:
        """Draw scenes and their captions, as a function of only the arguments."""
        generator = generator_of(seed, step)
        scenes = sample_scenes(num_images, generator, pair_fraction=self.pair_fraction)
        dice = torch.rand(num_images, 13, generator=generator).tolist()
        captions = []
        for facts, draws in zip(scene_facts(scenes), dice, strict=True):
            said = sketch(facts, draws) if facts.relation else forget(facts, draws)
            captions.append(sentence(said, int(draws[12] * NUM_STYLES)))
        return Drawn(render_scenes(scenes, self.side), captions, [None] * num_images)


@dataclass(frozen=True)
class ClaimedSource:
    """Scenes, and behind them pictures with claims, whose hard negatives are the false claims of a group.

    If `excludes_true`, claims are rivals only of the pictures that they are false of, and captions of scenes, whose
    truth is known of their own scene only, only of other scenes. The other caption of a picture is its claim.
    """

    scenes: SceneSource
    claims: ClaimedPictures
    kinds: Sequence[Kind]
    excludes_true: bool = False

    def draw(self, seed: int, step: int, num_images: int) -> Drawn:
        """Draw scenes and as many pictures as there are groups of claims, as a function of only the arguments."""
        scenes = self.scenes.draw(seed, step, num_images - self.claims.num_groups)
        claimed = self.claims.captioned(step)
        rivals = None
        if self.excludes_true:
            others = torch.ones(len(scenes.images), len(scenes.images), dtype=torch.bool)
            rivals = torch.block_diag(others, ~claimed.is_true)  # type: ignore[no-untyped-call]
        rights = [right for right, _ in claimed.groups]
        negatives: list[Mapping[str, str]] = [dict(zip(self.kinds, wrong, strict=False)) for _, wrong in claimed.groups]
        return Drawn(
            torch.cat([scenes.images, claimed.pictures.pixels]), [*scenes.captions, *rights],
            [*scenes.negatives, *negatives], rivals, claimed.pictures,
        )  # fmt: skip


class SceneLexicon:
    """Replacements by other words of generated captions, so that no unfamiliar word reveals a negative."""

    GROUPS = (tuple(COLORS), SHAPES, SIZES, TEXTURES, tuple(BACKGROUNDS), NUMBERS[2 : MAX_COUNT + 1])

    def candidates(self, word: str, tag: str) -> Candidates:
        """List replacements of a lower-case word of a Penn tag, in the same form."""
        plural = "es" if word == "crosses" else "s"
        singular = word.removesuffix(plural) if tag == "NNS" else word
        found = [other for group in self.GROUPS if singular in group for other in group if other != singular]
        if tag == "NNS":
            found = [other + ("es" if other == "cross" else "s") for other in found]
        return [(other, 1.0) for other in found]
