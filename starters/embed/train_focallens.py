"""Offline job: FocalLens tuning of the small CLIP on drawn pictures and questions about them.

`torchrun -m starters.embed.train_focallens …` splits each batch over several processes, which share their negatives.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from accelerate.utils import set_seed
from torch import Tensor, nn

from services.embed.evaluation.colorshape import UNSEEN_CONDITIONS
from services.embed.evaluation.embedders import load_embedder
from services.embed.focallens import FocalLens, Visibility, unique_answer_loss
from services.embed.model.focallens_engine import load_focallens, save_focallens
from services.embed.training.objectives import Rows, TripletLoss
from services.embed.training.train import KIND, NAME, Start
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, among, command_line, finite
from services.jobs.training import Run, rank, train
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from starters.embed.measures import ImagesPerClass, evaluate_wordings, measure_colorshape
from starters.embed.questions import CONDITIONS, FAMILIES, Asked, DrawnTriplets, all_answers
from starters.embed.spelling import spelled

UNTUNED_WEIGHT = 60.0
FAMILY_WEIGHT = 0.3

STATEMENT = (
    "Tuned on generated drawings to follow conditions that ask for color, shape, size, texture, background or position,"
    " in many wordings and some other languages. Other conditions and photographs it does not know."
)

app = command_line(help="Tune the small CLIP to follow conditions, on drawn pictures.")

Questions = Annotated[int, typer.Option(min=1, help="Number of different questions about each drawn picture.")]


@dataclass(frozen=True)
class QuestionRows(Rows):
    """Rows of drawn pictures, about which more is known."""

    answer_index: Tensor  # (R,) into the answer bank, −1 where there is none
    families: Tensor  # (C, number of FAMILIES), 1 for those that a condition is about
    is_unrelated: Tensor  # (R,) bool, of conditions about nothing in the picture


@dataclass(frozen=True)
class QuestionData:
    """Batches of drawn pictures, tokenized in the loader's workers."""

    tokenizer: Tokenizer
    source: DrawnTriplets
    spelled_share: float

    def __call__(self, step: int) -> QuestionRows:
        images, triplets = self.source(step)
        bank = {answer: i for i, answer in enumerate(all_answers(self.source.asked.unseen))}
        about = {
            text: families or ()
            for text, families in zip(triplets.instructions, triplets.families, strict=True)
            if text is not None
        }
        place = {text: i for i, text in enumerate(about)}
        dice = Random(f"{self.source.seed} {step}")
        return QuestionRows(
            images=images,
            answer_ids=self.tokenizer(triplets.answers),
            image_index=triplets.image_index,
            condition_ids=spelled(self.tokenizer, list(about), dice, self.spelled_share),
            condition_index=torch.tensor([-1 if t is None else place[t] for t in triplets.instructions]),
            answer_index=torch.tensor([bank.get(text, -1) for text in triplets.answers]),
            families=torch.tensor([[float(name in told) for name in FAMILIES] for told in about.values()]),
            is_unrelated=torch.tensor([families == () for families in triplets.families]),
        )


class QuestionLoss(TripletLoss):
    """Eq. 5.1 over drawn pictures, whose rows without an answer keep their embedding.

    The negatives are the other answers of `bank` (A, E), or of the batch where there is none. Rows without a condition,
    and rows whose condition is about nothing in the picture, are pulled to the embedding of their image by the image
    tower as it was before tuning, with weight `plain_weight`: what no condition asks for stays as it was. The condition
    tokens must also tell by a linear head, which is thrown away, what they are about.
    """

    bank: Tensor | None

    def __init__(
        self, tuned: tuple[FocalLens, ImageTransform], bank: Tensor | None, scale: float | None, plain_weight: float
    ) -> None:
        super().__init__(*tuned, scale)
        self.plain_weight = plain_weight
        self.untuned = copy.deepcopy(self.model.clip.visual).requires_grad_(False) if plain_weight > 0 else None
        self.family_head = nn.Linear(self.model.condition_projection.out_features, len(FAMILIES))
        self.register_buffer("bank", bank, persistent=False)

    def forward(self, batch: Rows) -> Tensor:
        assert isinstance(batch, QuestionRows)
        conditions = self.model.encode_conditions(batch.condition_ids)
        features = self.encode_rows(batch, conditions)
        is_kept = (batch.condition_index < 0) | batch.is_unrelated
        asked = features[~is_kept]
        if self.bank is None:
            loss = self.contrast(asked, batch.answer_ids[~is_kept])
        else:
            loss = unique_answer_loss(asked, self.bank, batch.answer_index[~is_kept], self.logit_scale)
        if self.untuned is not None and bool(is_kept.any()):
            moved = self._moved(self.untuned, features[is_kept], batch, batch.image_index[is_kept])
            loss = loss + self.plain_weight * UNTUNED_WEIGHT * moved
        told = self.family_head(conditions).float()
        return loss + FAMILY_WEIGHT * F.binary_cross_entropy_with_logits(told, batch.families)

    def _moved(self, untuned: nn.Module, kept: Tensor, batch: Rows, images: Tensor) -> Tensor:
        """Average the cosine distance of rows from the untuned tower's embeddings of their images."""
        with torch.no_grad():
            before = F.normalize(untuned.eval()(self.transform.normalise(batch.images)), dim=-1)[images]
        return 1 - (kept * before).sum(dim=-1).mean()


@app.command()
@interruptible(resumable)
def focallens(
    output: options.RunFolder,
    base: Annotated[str, typer.Option(help="CLIP to tune: a name in the store, or a folder.")] = "clip-shapes",
    start: Start = None,
    steps: options.Steps = 1500,
    batch_size: options.BatchSize = 64,
    learning_rate: options.LearningRate = 5e-4,
    seed: options.Seed = 0,
    precision: options.ComputePrecision = "bf16",
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    condition_layer: Annotated[int, typer.Option(min=0, help="Block before which the condition token joins.")] = 0,
    visibility: Annotated[Visibility, typer.Option(help="Tokens that see the condition.")] = "readout",
    questions: Questions = 3,
    scale: options.LogitScale = 10.0,
    bank: Annotated[bool, typer.Option(help="Use all known answers as negatives, not only those of the batch.")] = True,
    plain_weight: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="Weight of the loss that preserves the unconditional embedding."),
    ] = 0.5,
    spelled_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the conditions in which one word is spelled, to be read by letters."),
    ] = 0.3,
    never_asked: Annotated[
        str, typer.Option(help="Conditions to leave out of tuning, to see what an unseen one does.")
    ] = ",".join(UNSEEN_CONDITIONS),
    images_per_class: ImagesPerClass = 125,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a CLIP to follow conditions (FocalLens-CLIP), on drawn pictures."""
    given = dict(locals())
    unseen = among(never_asked, list(CONDITIONS), "--never-asked") if never_asked else ()
    check_publication(NAME, store_url, is_wanted=publish)
    run = Run(
        output, steps, batch_size, learning_rate, 0.0, 0.03, seed, stage="tuning", precision=precision,
        num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    clip, base_reference = load_base(base, None, store_url)
    model = FocalLens(clip.model, condition_layer=condition_layer, visibility=visibility)
    answers = None
    if bank:
        with torch.no_grad():
            answers = model.encode_texts(clip.tokenizer(all_answers(unseen)))
    model.clip.logit_scale.requires_grad_(scale == 0)
    asked = Asked(questions, plain_weight > 0, unseen)
    data = QuestionData(
        clip.tokenizer, DrawnTriplets(seed, run.num_examples, clip.transform.size[0], asked), spelled_share
    )
    loss = QuestionLoss((model, clip.transform), answers, scale or None, plain_weight)
    if start is not None:
        model.load_state_dict(load_focallens(start).model.state_dict())
    train(run, loss, data)
    if rank() == 0:
        directory = output / "checkpoint"
        save_focallens(model, clip, directory)
        described = {**given, "base": base_reference, "statement": STATEMENT}
        publish_trained(directory, NAME, KIND, described, _measure(directory, images_per_class))


def _measure(directory: Path, images_per_class: int) -> dict[str, float]:
    worded = evaluate_wordings(load_embedder(str(directory)), num_per_class=max(2, images_per_class // 16))
    return {**measure_colorshape(directory, images_per_class), **worded}


if __name__ == "__main__":
    app()
