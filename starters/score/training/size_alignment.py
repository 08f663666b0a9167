"""Job that aligns captions about sizes with what a tuned CLIP's image tower sees; the image tower stays as it is.

First `size_places` finds where captions that say the sizes of two things should lie, then the text tower learns to put
them there and to leave all others where they are.

Shapes: G pictures with K claims each, A = G K, S other captions, W text tokens, E embedding width.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from accelerate.utils import set_seed
from torch import Tensor, nn

from services.jobs.checkpoints import check_publication, find_checkpoint, publish_trained
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, output_folder, positive
from services.jobs.progress import standard_bars
from services.jobs.training import Run, rank, train
from services.score.fsc_clip import TextFeatures
from services.score.model.checkpoint import FSC_CLIP_KIND, FscClipCheckpoint, load_fsc_clip, save_fsc_clip
from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import HardNegatives
from services.score.training.batches import TuningData
from services.score.training.caption_states import encode_by_length
from starters.score.data.claimed_pictures import ClaimedPictures, Pictures
from starters.score.data.close_claims import absent, numbered, textured, two_sizes, two_textures
from starters.score.evaluation.claim_protocol import claim_metrics
from starters.score.evaluation.scene_protocol import SceneProtocol
from starters.score.training.claim_losses import K
from starters.score.training.size_places import SeenClaims, fit_places, moved, own_choice, see_claims, size_facts
from starters.score.training.tuning import SceneLexicon, SceneRecipe, SceneSource

# Of the pictures, the share that is drawn for one fact, and for which: more than half of them for two sizes.
CLOSE = 0.6
MAKERS = (*(two_sizes,) * 5, two_textures, textured, numbered, absent)
SEEN_AT_ONCE = 50
# Weights of the distance from a caption's place, of the errors of differences within a group, which alone decide a
# choice, and of the words' distance from where they were.
PLACED, APART, WORDS = 10.0, 20.0, 2.0


@dataclass(frozen=True)
class PlacedBatch:
    """Claims that were seen, and captions of scenes: `input_ids` (A + S, W) int64, the claims' first."""

    seen: SeenClaims
    input_ids: Tensor

    def to(self, device: torch.device) -> "PlacedBatch":
        """Check the device: the job is for one CPU. Raises ValueError for another."""
        if device.type != "cpu":
            raise ValueError(f"sizes are aligned on the CPU, not on {device}")
        return self


@dataclass(frozen=True)
class PlacedData:
    """Endless batches by step number: groups of claims that were seen, and captions of scenes with hard negatives."""

    seen: SeenClaims
    scenes: TuningData
    num_groups: int
    seed: int

    def __call__(self, step: int) -> PlacedBatch:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        part = self.seen.groups(torch.randint(len(self.seen.images), (self.num_groups,), generator=generator))
        return PlacedBatch(part, torch.cat([part.input_ids, self.scenes(step).input_ids]))


class PlaceReading(nn.Module):
    """The distance of captions from their places, and the choice among claims; only the text tower learns."""

    def __init__(self, checkpoint: FscClipCheckpoint, before: FscClipCheckpoint, vectors: Tensor) -> None:
        super().__init__()
        self.checkpoint, self.clip, self.before = checkpoint, checkpoint.clip.model, before.clip.model
        self.vectors = nn.Parameter(vectors, requires_grad=False)
        self.before.requires_grad_(False)
        self.clip.requires_grad_(True)
        self.clip.visual.requires_grad_(False)
        self.clip.logit_scale.requires_grad_(False)

    def train(self, mode: bool = True) -> "PlaceReading":
        """Leave both models in evaluation mode: the image tower's statistics stay."""
        return self

    def forward(self, batch: PlacedBatch) -> Tensor:
        texts = encode_by_length(self.clip, batch.input_ids)
        with torch.no_grad():
            before = encode_by_length(self.before, batch.input_ids)
            number = len(batch.seen.said)
            claims = moved(before.pooled[:number], size_facts(batch.seen.said), self.vectors)
            places = torch.cat([claims, before.pooled[number:]])
        loss = PLACED * (1 - (texts.pooled * places).sum(dim=1)).mean()
        differ = _differences(texts.pooled[:number]) - _differences(places[:number])
        loss = loss + APART * differ.square().sum(dim=-1).mean()
        loss = loss + own_choice(texts.pooled[:number], batch.seen, self.checkpoint)
        return loss + WORDS * _words_moved(texts, before, batch.input_ids)


def _differences(captions: Tensor) -> Tensor:
    """Subtract the first caption of each group from the others: (A, E) → (G, K − 1, E)."""
    groups = captions.view(-1, K, captions.shape[-1])
    return groups[:, 1:] - groups[:, :1]


def _words_moved(texts: TextFeatures, before: TextFeatures, input_ids: Tensor) -> Tensor:
    """Compute how far words moved, as a share of their squared lengths; the ends of captions, which must move, not."""
    is_word = before.mask.clone()
    is_word[torch.arange(len(input_ids)), input_ids.argmax(dim=1)] = False
    difference = (texts.tokens - before.tokens)[is_word].square().sum()
    return difference / before.tokens[is_word].square().sum()


@interruptible(resumable)
def align_sizes(
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
    ],
    base: Annotated[str, typer.Option(help="FSC-CLIP to align: a name in the store or a folder.")] = "fsc-clip-scenes",
    pictures: Annotated[int, typer.Option(min=SEEN_AT_ONCE, help="Number of pictures that are seen, once each.")] = (
        15_000
    ),
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the text tower.")] = 600,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures per step, with four claims each.")] = 40,
    scenes: Annotated[int, typer.Option(min=1, help="Scenes per step, with a caption and its hard negatives each.")] = (
        10
    ),
    learning_rate: Annotated[float, typer.Option(callback=positive, help="Peak learning rate.")] = 4e-4,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the data.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")] = 100,
    num_evaluated: Annotated[
        int, typer.Option(min=0, help="Scenes of each task for the evaluation. 0: no evaluation.")
    ] = 1000,
    name: Annotated[str, typer.Option(help="Name to publish under.")] = "fsc-clip-scenes",
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Teach a tuned CLIP's text tower to say sizes as its image tower sees them, and change nothing else."""
    options = dict(locals())
    check_publication(name, store_url, is_wanted=publish)
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    source = find_checkpoint(base, store_url)
    checkpoint, before = load_fsc_clip(source.directory), load_fsc_clip(source.directory)
    run = Run(output, steps, batch_size, learning_rate, 0.0, 0.05, seed, checkpoint_every=checkpoint_every)
    clip = checkpoint.clip
    data = ClaimedPictures(
        clip.tokenizer, Pictures(seed + 8_000, SEEN_AT_ONCE, clip.transform.size[0]), SEEN_AT_ONCE, CLOSE, MAKERS
    )
    count = pictures // SEEN_AT_ONCE
    with standard_bars().bar("pictures", total=count, shown=rank() == 0) as bar:
        seen = see_claims(checkpoint, map(data, range(count)), bar.advance)
    vectors = fit_places(seen, checkpoint, seed)
    negatives = HardNegatives(TextBlobAnnotator(), SceneLexicon())
    kinds = SceneRecipe.read("scenes").negatives
    captions = TuningData(SceneSource(clip.transform.size[0]), clip.tokenizer, negatives, kinds, seed + 8_000, scenes)
    train(run, PlaceReading(checkpoint, before, vectors), PlacedData(seen, captions, batch_size, seed))
    if rank() == 0:
        directory = output / "checkpoint"
        save_fsc_clip(checkpoint, directory)
        metrics = {}
        if num_evaluated:
            scores = SceneProtocol("test", num_evaluated).evaluate(clip)
            metrics = scores.metrics(checkpoint.local_weight)
            metrics |= claim_metrics(clip, num_evaluated, checkpoint.local_weight)
        publish_trained(directory, name, FSC_CLIP_KIND, {**options, "base": source.label}, metrics)
