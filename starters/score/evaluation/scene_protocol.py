"""Evaluation of a CLIP on generated scenes: hard negatives by kind, zero-shot classes by attribute, and retrieval.

All accuracies are in percent, and ties count as wrong. The seeds of the scenes are not used by any training.

Shapes: B scenes, R pairs of an image and a text, C classes, E embedding width.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from services.jobs.progress import standard_bars
from services.nn.clip_model import ClipModel
from services.score.fsc_clip import ImageFeatures, TextFeatures, mean_local_similarity, token_cosines
from services.score.model.dense_features import encode_images, encode_texts
from starters.score.data.scene_captions import (
    ATTRIBUTES,
    MAX_COUNT,
    NEGATIVE_KINDS,
    Attribute,
    Facts,
    NegativeKind,
    class_facts,
    detail,
    falsify,
    is_true,
    only,
    sentence,
    sketch,
)
from starters.score.data.scenes import GroupScenes, generator_of, render_scenes, sample_scenes, scene_facts

Split = Literal["valid", "test"]
SPLIT_SEEDS: dict[Split, int] = {"valid": 900_001, "test": 900_002}
# Steps of a split's seed, one for the scenes of each part.
CHOICES, ZERO_SHOT, COUNTED, RETRIEVED = range(4)
RETRIEVED_PAIRS = 0.8  # lone objects soon share a caption
BATCH_SIZE = 250


@dataclass(frozen=True)
class SceneScores:
    """Measurements: for each kind, the similarities of images with their right and wrong captions.

    `choices` maps a kind to (R, 2, 2) float32: global and local similarity × right and wrong caption. `zero_shot` is
    the mean recall of an attribute's classes, `image_to_text` and `text_to_image` recall@1.
    """

    choices: dict[NegativeKind, Tensor]
    zero_shot: dict[Attribute, float]
    image_to_text: float
    text_to_image: float

    def compositionality(self, local_weight: float = 0.0) -> dict[NegativeKind, float]:
        """Accuracy by kind of the score (1 − w) × global + w × local."""
        found: dict[NegativeKind, float] = {}
        for kind, similarity in self.choices.items():
            right, wrong = torch.lerp(similarity[:, 0], similarity[:, 1], local_weight).unbind(1)
            found[kind] = 100 * float((right > wrong).double().mean())
        return found

    def metrics(self, local_weight: float = 0.0) -> dict[str, float]:
        """Return all metrics to four decimals, with the averages over kinds (`comp`) and over attributes (`zs`)."""
        kinds = self.compositionality(local_weight)
        figures = {
            "comp": fmean(kinds.values()),
            **kinds,
            "zs": fmean(self.zero_shot.values()),
            **{f"zs_{attribute}": accuracy for attribute, accuracy in self.zero_shot.items()},
            "i2t": self.image_to_text,
            "t2i": self.text_to_image,
        }
        return {name: round(value, 4) for name, value in figures.items()}


@dataclass(frozen=True)
class SceneProtocol:
    """Held-out scenes: `num_scenes` for the hard negatives, for each of the zero-shot tasks and for retrieval."""

    split: Split = "test"
    num_scenes: int = 1000

    @torch.no_grad()
    def evaluate(self, clip: ClipModel, title: str = "evaluation") -> SceneScores:
        """Measure a model, in evaluation mode, on its current device, with a progress bar of this title."""
        with standard_bars().bar(title, total=len(ATTRIBUTES) + 2) as bar:
            image_to_text, text_to_image = self._retrieval(clip)
            bar.advance()
            zero_shot: dict[Attribute, float] = {}
            for attribute in ATTRIBUTES:
                zero_shot[attribute] = self._zero_shot(clip, attribute)
                bar.advance()
            return SceneScores(self._choices(clip), zero_shot, image_to_text, text_to_image)

    def scenes(self, part: int) -> GroupScenes:
        """The scenes of a part: pairs for the hard negatives, lone objects and lone groups for the zero-shot tasks."""
        generator = generator_of(SPLIT_SEEDS[self.split], part)
        return sample_scenes(
            self.num_scenes,
            generator,
            pair_fraction=1.0 if part == CHOICES else 0.0,
            max_count=1 if part == ZERO_SHOT else MAX_COUNT,
        )

    def captions(self) -> tuple[list[Facts], dict[NegativeKind, list[Facts]]]:
        """Make the facts of the right caption of each pair, and those of the wrong captions of each kind."""
        generator = generator_of(SPLIT_SEEDS[self.split], CHOICES + 100)
        facts = scene_facts(self.scenes(CHOICES))
        dice = torch.rand(len(facts), 8, generator=generator).tolist()
        said = [detail(known, draws[:4]) for known, draws in zip(facts, dice, strict=True)]
        wrong: dict[NegativeKind, list[Facts]] = {}
        for kind in NEGATIVE_KINDS:
            changed = [falsify(right, kind, draws[4:]) for right, draws in zip(said, dice, strict=True)]
            wrong[kind] = [facts for facts in changed if facts is not None]
            assert len(wrong[kind]) == len(said)  # two groups of different colours and shapes can be changed in any way
        return said, wrong

    def _choices(self, clip: ClipModel) -> dict[NegativeKind, Tensor]:
        said, wrong = self.captions()
        images = _images(clip, self.scenes(CHOICES))
        right = _similarity(clip, images, said)
        return {kind: torch.stack([right, _similarity(clip, images, facts)], dim=2) for kind, facts in wrong.items()}

    def _zero_shot(self, clip: ClipModel, attribute: Attribute) -> float:
        scenes = self.scenes(COUNTED if attribute == "count" else ZERO_SHOT)
        classes = class_facts(attribute)
        prompts = [sentence(facts, style) for facts in classes for style in (0, 1)]
        weights = F.normalize(_texts(clip, prompts).pooled.view(len(classes), 2, -1).mean(dim=1), dim=-1)
        predicted = (_images(clip, scenes).pooled @ weights.T).argmax(dim=1)
        labels = torch.tensor([_class_of(facts, attribute, classes) for facts in scene_facts(scenes)])
        is_right = (predicted.cpu() == labels).double()
        return 100 * fmean(float(is_right[labels == label].mean()) for label in sorted(set(labels.tolist())))

    @functools.cache  # noqa: B019 - a protocol is a value, and there are few
    def retrieved(self) -> tuple[GroupScenes, list[Facts]]:
        """Scenes, and the facts of a caption of each that is true of no other scene."""
        generator = generator_of(SPLIT_SEEDS[self.split], RETRIEVED)
        scenes = sample_scenes(3 * self.num_scenes, generator, pair_fraction=RETRIEVED_PAIRS)
        dice = torch.rand(len(scenes), 6, generator=generator).tolist()
        facts = scene_facts(scenes)
        said = [sketch(known, draws) for known, draws in zip(facts, dice, strict=True)]
        kept: list[int] = []
        for i, caption in enumerate(said):
            if not any(is_true(caption, facts[k]) or is_true(said[k], facts[i]) for k in kept):
                kept.append(i)
            if len(kept) == self.num_scenes:
                break
        return scenes.rows(torch.tensor(kept)), [said[i] for i in kept]

    def _retrieval(self, clip: ClipModel) -> tuple[float, float]:
        """Recall@1 of captions and of scenes among all of them."""
        scenes, said = self.retrieved()
        images = _images(clip, scenes).pooled
        texts = _texts(clip, [sentence(facts) for facts in said]).pooled
        similarity = images @ texts.T
        own = similarity.diagonal()
        others = similarity.masked_fill(torch.eye(len(own), dtype=torch.bool, device=own.device), -torch.inf)
        return tuple(100 * float((own > others.amax(dim)).double().mean()) for dim in (1, 0))  # type: ignore[return-value]


def _class_of(facts: Facts, attribute: Attribute, classes: Sequence[Facts]) -> int:
    said = only(facts, attribute)
    if attribute == "count":
        return facts.groups[0].count - 1
    return classes.index(said)


def _images(clip: ClipModel, scenes: GroupScenes) -> ImageFeatures:
    device = clip.model.logit_scale.device
    parts = []
    for start in range(0, len(scenes), BATCH_SIZE):
        some = scenes.rows(torch.arange(start, min(start + BATCH_SIZE, len(scenes))))
        pixels = clip.transform.normalise(render_scenes(some.to(device), clip.transform.size[0]))
        parts.append(encode_images(clip.model, pixels))
    return ImageFeatures(torch.cat([part.pooled for part in parts]), torch.cat([part.tokens for part in parts]))


def _texts(clip: ClipModel, texts: Sequence[str]) -> TextFeatures:
    return encode_texts(clip.model, clip.tokenizer(texts).to(clip.model.logit_scale.device))


def _similarity(clip: ClipModel, images: ImageFeatures, said: Sequence[Facts]) -> Tensor:
    """Global and local similarity of each image to its text: (R, 2) float32, on the CPU."""
    parts = []
    for start in range(0, len(said), BATCH_SIZE):
        texts = _texts(clip, [sentence(facts) for facts in said[start : start + BATCH_SIZE]])
        pooled, tokens = (x[start : start + BATCH_SIZE] for x in (images.pooled, images.tokens))
        local = mean_local_similarity(token_cosines(tokens, texts.tokens), texts.mask)
        parts.append(torch.stack([(pooled * texts.pooled).sum(dim=1), local], dim=1).float().cpu())
    return torch.cat(parts)
