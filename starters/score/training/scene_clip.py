"""The small CLIP that the starter is tuned from: its configuration, its training data and its losses.

First, each tower is trained alone with supervision, to see or to read: contrastive learning alone leaves shapes at
chance for thousands of steps, and word order for longer. Then both learn captions that mostly list objects, and
continue the supervised tasks. As in large CLIPs, each tower encodes what is where, but image and text are still
compared as bags of words.

Shapes: B scenes, A distinct captions, P patches, W text tokens, E embedding width.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.jobs.colorshape import BACKGROUNDS, COLORS, RELATIONS, SHAPES, SIZES, TEXTURES
from services.jobs.training import gather
from services.nn.clip_model import MERGES, ClipModel, create_clip
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import clamped_scale, encode_text
from starters.merges import learn_merges, vocabulary_size, write_merges
from starters.pictures.patches import covering_objects
from starters.score.data.claim_wordings import claim_vocabulary
from starters.score.data.scene_captions import MAX_COUNT, NUM_STYLES, PLACES, detail, forget, scene_vocabulary, sentence
from starters.score.data.scenes import GroupScenes, generator_of, render_scenes, sample_scenes, scene_facts

IMAGE_SIDE = 64
HEAD_WIDTH, MAX_HEAD_WIDTH = 32, 64
# Shares of scenes with two groups: in the image tower's warm-up, the text tower's, and the contrastive training.
SEEN_PAIRS, READ_PAIRS, CAPTION_PAIRS = 0.5, 0.7, 0.4
# Length of a position's part in the text tower's first input, of which each number of a word has about 0.02.
POSITION_SCALE = 0.05
GATHERING = 5.0
# Weight of the supervised losses during contrastive training.
KEEPING = 0.2


@dataclass(frozen=True)
class SceneBatch:
    """Scenes, rendered on the training device, and their tokenized captions, (B, W) int64 each.

    `input_ids` mostly list objects, `detailed_ids` also state the relation of two groups; `is_said` (B, 4) bool tells
    whether a detailed caption mentions the size, the place, the texture, and the background.
    """

    scenes: GroupScenes
    input_ids: Tensor
    detailed_ids: Tensor
    is_said: Tensor

    def to(self, device: torch.device) -> "SceneBatch":
        return SceneBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass(frozen=True)
class SceneCaptions:
    """Endless batches by step number."""

    tokenizer: Tokenizer
    seed: int
    num_scenes: int
    pair_fraction: float

    def __call__(self, step: int) -> SceneBatch:
        generator = generator_of(self.seed, step)
        scenes = sample_scenes(self.num_scenes, generator, pair_fraction=self.pair_fraction)
        dice = torch.rand(self.num_scenes, 17, generator=generator).tolist()
        known = list(zip(scene_facts(scenes), dice, strict=True))
        captions = [sentence(forget(facts, draws[:11]), int(draws[11] * NUM_STYLES)) for facts, draws in known]
        detailed = [detail(facts, draws[12:16]) for facts, draws in known]
        texts = [
            sentence(facts, int(draws[16] * NUM_STYLES)) for facts, (_, draws) in zip(detailed, known, strict=True)
        ]
        rows = [(facts.groups[0].size, facts.place, facts.texture, facts.background) for facts in detailed]
        is_said = torch.tensor([[bool(word) for word in row] for row in rows])
        return SceneBatch(scenes, self.tokenizer(captions), self.tokenizer(texts), is_said)


class SceneWarmup(nn.Module):
    """Supervision of each patch token and of the pooled token by a scene. The heads are discarded."""

    def __init__(self, visual: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.visual = visual
        self.transform = transform
        width = visual.class_embedding.shape[0]
        self.patch_heads = nn.ModuleList([nn.Linear(width, len(COLORS)), nn.Linear(width, len(SHAPES))])
        self.heads = SceneHeads(width)

    def pixels(self, batch: SceneBatch) -> Tensor:
        return self.transform.normalise(render_scenes(batch.scenes, self.transform.size[0]))

    def of_states(self, pooled: Tensor, patches: Tensor, batch: SceneBatch) -> Tensor:
        """The loss of the image tower's states: (B, D) and (B, P, D)."""
        scenes, objects = batch.scenes, batch.scenes.objects
        slot = covering_objects(objects, self.visual.grid_size[0])
        loss = torch.zeros((), device=pooled.device)
        for head, labels in zip(self.patch_heads, (objects.color, objects.shape), strict=True):
            target = labels.gather(1, slot.clamp(min=0)).masked_fill(slot < 0, -100)
            loss = loss + _cross_entropy(head(patches).flatten(0, 1), target.flatten())
        of_scene: Tensor = self.heads(pooled, scenes, torch.ones_like(batch.is_said))
        return loss + of_scene


class SceneReading(nn.Module):
    """Supervision of the end of a caption by its scene. The heads are discarded."""

    def __init__(self, clip: Any) -> None:
        super().__init__()
        self.clip = clip
        self.heads = SceneHeads(clip.text_projection.shape[1])

    def forward(self, batch: SceneBatch) -> Tensor:
        loss: Tensor = self.heads(encode_text(self.clip, batch.detailed_ids), batch.scenes, batch.is_said)
        return loss


class SceneHeads(nn.Module):
    """Heads on one vector per scene, (B, D): the facts of the whole scene and of a lone group, and the colour and the
    shape on each side of an image, in the order of RELATIONS."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (len(SIZES), len(PLACES), len(TEXTURES), len(BACKGROUNDS), MAX_COUNT)
        self.whole = nn.ModuleList([nn.Linear(width, size) for size in sizes])
        self.sides = nn.ModuleList([nn.Linear(width, len(RELATIONS) * size) for size in (len(COLORS), len(SHAPES))])

    def forward(self, x: Tensor, scenes: GroupScenes, is_said: Tensor) -> Tensor:
        """The sum of the cross-entropies of mentioned attributes, see `SceneBatch.is_said`."""
        objects = scenes.objects
        is_pair, is_several = scenes.num_groups == 2, scenes.count[:, 0] > 1
        targets = [
            scenes.size[:, 0].masked_fill(is_pair, -100),
            objects.cell.masked_fill(is_pair | is_several, -100),
            objects.texture,
            objects.background,
        ]
        targets = [target.masked_fill(~said, -100) for target, said in zip(targets, is_said.unbind(1), strict=True)]
        targets.append((scenes.count[:, 0] - 1).masked_fill(is_pair, -100))
        loss = torch.zeros((), device=x.device)
        for head, target in zip(self.whole, targets, strict=True):
            loss = loss + _cross_entropy(head(x), target)
        sides = side_groups(scenes)
        for head, labels in zip(self.sides, (scenes.color, scenes.shape), strict=True):
            target = labels.gather(1, sides.clamp(min=0)).masked_fill(sides < 0, -100)
            loss = loss + _cross_entropy(head(x).view(target.numel(), -1), target.flatten())
        return loss


def side_groups(scenes: GroupScenes) -> Tensor:
    """Index of the group on each side of the image, left, right, top and bottom: (B, 4) int64, −1 for none.

    All are −1 in a scene with one group.
    """
    relation = scenes.objects.relation
    first = F.one_hot(relation, len(RELATIONS))  # RELATIONS name the first group's side in this order
    second = F.one_hot(relation ^ 1, len(RELATIONS))
    groups = torch.where(first == 1, 0, torch.where(second == 1, 1, -1))
    return groups.masked_fill((scenes.num_groups == 1)[:, None], -1)


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the rows whose target is not −100; 0 if there are none."""
    num_known = (target != -100).sum().clamp_min(1)
    return F.cross_entropy(logits, target, reduction="sum") / num_known


class SceneContrast(nn.Module):
    """CLIP's symmetric loss, in which rows with the same caption are not negatives of each other, plus the supervised
    losses of both towers."""

    def __init__(self, clip: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.clip = clip
        self.transform = transform
        width = clip.text_projection.shape[1]
        self.seen, self.read = SceneHeads(width), SceneHeads(width)

    def pixels(self, batch: SceneBatch) -> Tensor:
        return self.transform.normalise(render_scenes(batch.scenes, self.transform.size[0]))

    def of_states(self, pooled: Tensor, _patches: Tensor, batch: SceneBatch) -> Tensor:
        """The loss of the image tower's states: (B, D) and (B, P, D)."""
        images = pooled @ self.clip.visual.proj
        num_images = len(images)
        texts = encode_text(self.clip, torch.cat([batch.input_ids, batch.detailed_ids]))
        image_features = gather(F.normalize(images, dim=-1))
        text_features = gather(F.normalize(texts[:num_images], dim=-1))
        scale = clamped_scale(self.clip.logit_scale)
        contrast = distinct_caption_loss(image_features, text_features, gather(batch.input_ids), scale)
        kept: Tensor = self.seen(images, batch.scenes, torch.ones_like(batch.is_said))
        kept = kept + self.read(texts[num_images:], batch.scenes, batch.is_said)
        return contrast + KEEPING * kept


def distinct_caption_loss(image_features: Tensor, text_features: Tensor, input_ids: Tensor, scale: Tensor) -> Tensor:
    """Symmetric cross-entropy over unit features (B, E) and the distinct captions among `input_ids` (B, W).

    An image chooses among the A distinct captions; a caption chooses among the images, all its own being right.
    """
    _, index = torch.unique(input_ids, dim=0, return_inverse=True)
    first = torch.full((int(index.max()) + 1,), len(index), device=index.device)
    first = first.scatter_reduce(0, index, torch.arange(len(index), device=index.device), "amin")
    with torch.autocast(index.device.type, enabled=False):
        logits = scale * image_features.float() @ text_features[first].float().T  # (B, A)
    to_image = logits.log_softmax(dim=0).gather(1, index[:, None])
    return (F.cross_entropy(logits, index) - to_image.mean()) / 2


def create_scene_clip(directory: Path, *, width: int = 256, layers: int = 3) -> ClipModel:
    """Create a randomly initialised model with its own vocabulary, which is written to `directory`."""
    merges = learn_merges([*scene_vocabulary(), *claim_vocabulary()])
    directory.mkdir(parents=True, exist_ok=True)
    write_merges(merges, directory / MERGES)
    vision = {
        "image_size": IMAGE_SIDE, "patch_size": 8, "width": width, "layers": layers,
        "head_width": math.gcd(width, MAX_HEAD_WIDTH), "pool_type": "avg",
    }  # fmt: skip
    text = {"context_length": 77, "vocab_size": vocabulary_size(merges), "width": width, "heads": 4, "layers": 3}
    model = {"embed_dim": width, "vision_cfg": vision, "text_cfg": text}
    config = {
        "model_cfg": model,
        # a wide picture is scored whole, with bars, and not its middle alone
        "preprocess_cfg": {"resize_mode": "longest"},
        "conv_stem": [width // 8, width // 4, width // 2],
        "conv_stem_blocks": [1, 1, 2],
    }
    clip = create_clip(config, directory / MERGES)
    clip.model.visual.conv1.to(memory_format=torch.channels_last)  # convolutions are twice as fast on a CPU
    with torch.no_grad():
        _look_back(clip.model)
    return clip


def _look_back(tower: Any) -> None:
    """Let the heads of a text tower's first block begin by looking at a token itself, at the one before it, and so on.

    Which color belongs to which shape is said by their order alone, which a randomly initialised tower takes thousands
    of steps to notice. Positions p begin as cos ωp and sin ωp of frequencies for which Σ cos ωd is 0 at every distance
    d but 0; a head's queries are those of an earlier position, its keys those of the own one. What the later blocks
    gather is a mean of words that hardly differs from caption to caption, and begins GATHERING times as large.
    """
    for block in tower.transformer.resblocks[1:]:
        block.attn.out_proj.weight.mul_(GATHERING)
    first = tower.transformer.resblocks[0].attn
    head_width = first.in_proj_weight.shape[1] // first.num_heads
    num_frequencies = head_width // 4
    used = 2 * num_frequencies
    frequency = math.pi * (torch.arange(num_frequencies) + 0.5) / num_frequencies
    angle = torch.arange(len(tower.positional_embedding))[:, None] * frequency
    tower.positional_embedding[:, :used] = POSITION_SCALE * torch.stack([angle.cos(), angle.sin()], dim=2).flatten(1)
    tower.positional_embedding[:, used:] = 0
    tower.token_embedding.weight[:, :used] = 0
    queries, keys, _ = first.in_proj_weight.chunk(3)
    for head in range(first.num_heads):
        turned = torch.zeros(used, used)
        for i, turn in enumerate((frequency * head).tolist()):
            cos, sin = math.cos(turn), math.sin(turn)
            turned[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cos, sin], [-sin, cos]])
        rows = slice(head * head_width, head * head_width + used)
        queries[rows], keys[rows] = 0, 0
        queries[rows, :used], keys[rows, :used] = turned, torch.eye(used)
