"""Offline jobs: a small CLIP on ColorShape captions, and FocalLens tuning of any CLIP (dissertation, section 5.3).

`torchrun -m services.embed.train …` splits each batch over several processes, which share their negatives.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from accelerate.utils import set_seed
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from services.core.checkpoint_files import DESCRIPTION_FILE
from services.core.manifest import CheckpointInfo
from services.core.settings import ServiceSettings
from services.core.store import Store
from services.embed.checkpoint import (
    MERGES,
    ClipModel,
    ImageTransform,
    Tokenizer,
    create_clip,
    load_clip,
    load_focallens,
    save_clip,
    save_focallens,
    write_merges,
)
from services.embed.colorshape import (
    BACKGROUNDS,
    COLORS,
    COLUMNS,
    ROWS,
    SHAPES,
    SIZES,
    TEXTURES,
    Scenes,
    covering_objects,
    render,
)
from services.embed.data import (
    LlavaData,
    TripletBatch,
    all_answers,
    caption_batch,
    learn_merges,
    triplet_batch,
)
from services.embed.evaluate import ColorShapeProtocol, evaluate_colorshape, load_embedder, summary
from services.embed.focallens import FocalLens, Readouts, Visibility, clamped_scale, encode_text, unique_answer_loss
from services.embed.training import Run, gather, gather_rows, rank, train

CLIP_NAME = "clip-shapes"
FOCALLENS_NAME = "focallens-shapes"

app = typer.Typer(help="Train and publish checkpoints of the embed service.", no_args_is_help=True)


@dataclass(frozen=True)
class Rows:
    """A batch of (image, condition, answer) rows, tokenized; scenes are rendered where they are trained on."""

    images: Scenes | Tensor  # scenes, or (B, height, width, 3) uint8
    answer_ids: Tensor  # (R, W)
    answer_index: Tensor  # (R,) into the answer bank, −1 where there is none
    image_index: Tensor  # (R,)
    condition_ids: Tensor  # (C, W), the distinct conditions
    condition_index: Tensor  # (R,), −1 for none

    def to(self, device: torch.device) -> "Rows":
        return Rows(**{name: getattr(self, name).to(device) for name in Rows.__dataclass_fields__})

    def pixels(self, transform: ImageTransform) -> Tensor:
        """(B, 3, height, width), normalised."""
        images = self.images if isinstance(self.images, Tensor) else render(self.images, transform.size[0])
        return transform.normalise(images)


class AttributeLoss(nn.Module):
    """Warm-up of a small ViT: what each patch token and the class token must tell of a scene.

    Contrastive learning alone leaves shapes at chance for thousands of steps; patches that know their object's
    shape and colour get it going. The heads are thrown away.
    """

    def __init__(self, visual: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.visual = visual
        self.transform = transform
        width = visual.class_embedding.shape[0]
        self.patch_heads = nn.ModuleList([nn.Linear(width, len(COLORS)), nn.Linear(width, len(SHAPES))])
        sizes = (len(BACKGROUNDS), len(TEXTURES), len(SIZES), len(ROWS) * len(COLUMNS))
        self.image_heads = nn.ModuleList([nn.Linear(width, size) for size in sizes])

    def forward(self, batch: Rows) -> Tensor:
        scenes = batch.images
        assert isinstance(scenes, Scenes)  # LLaVA's images are tuned on, never warmed up with
        tokens = self.visual.forward_intermediates(
            batch.pixels(self.transform), indices=1, normalize_intermediates=True, intermediates_only=True,
            output_fmt="NLC", output_extra_tokens=True,
        )  # fmt: skip
        patches, cls = tokens["image_intermediates"][-1], tokens["image_intermediates_prefix"][-1][:, 0]
        slot = covering_objects(scenes, self.visual.grid_size[0])
        is_single = scenes.num_objects == 1
        loss = torch.zeros((), device=cls.device)
        for head, labels in zip(self.patch_heads, (scenes.color, scenes.shape), strict=True):
            target = labels.gather(1, slot.clamp(min=0)).masked_fill(slot < 0, -100)
            loss = loss + F.cross_entropy(head(patches).flatten(0, 1), target.flatten())
        # size and position are those of a lone object
        size, cell = (x.masked_fill(~is_single, -100) for x in (scenes.size[:, 0], scenes.cell))
        for head, target in zip(self.image_heads, (scenes.background, scenes.texture, size, cell), strict=True):
            loss = loss + F.cross_entropy(head(cls), target)
        return loss


class CaptionLoss(nn.Module):
    """CLIP's symmetric loss, where rows with the same caption are no negatives of one another."""

    def __init__(self, clip: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.clip = clip
        self.transform = transform

    def forward(self, batch: Rows) -> Tensor:
        image_features = gather(self.clip.encode_image(batch.pixels(self.transform), normalize=True))
        text_features = gather(F.normalize(encode_text(self.clip, batch.answer_ids), dim=-1))
        representative, answer_index = _distinct(gather(batch.answer_ids))
        scale = clamped_scale(self.clip.logit_scale)
        return unique_answer_loss(image_features, text_features[representative], answer_index, scale, symmetric=True)


class TripletLoss(nn.Module):
    """Eq. 5.1 over (image, instruction, answer) rows.

    The negatives are the other answers of `bank` (A, E), or of the batch where there is none. `scale` None is
    CLIP's own temperature, trained further. Rows without a condition are pulled to their captions at CLIP's scale,
    with weight `plain_weight`, so that the plain embedding stays one.
    """

    bank: Tensor | None

    def __init__(
        self, tuned: tuple[FocalLens, ImageTransform], bank: Tensor | None, scale: float | None, plain_weight: float
    ) -> None:
        super().__init__()
        self.model, self.transform = tuned
        self.scale = scale
        self.plain_weight = plain_weight
        self.register_buffer("bank", bank, persistent=False)

    def forward(self, batch: Rows) -> Tensor:
        conditions = self.model.encode_conditions(batch.condition_ids)
        readouts = Readouts(batch.image_index, batch.condition_index)
        features = self.model.encode_images(batch.pixels(self.transform), conditions, readouts)
        is_conditional = batch.condition_index >= 0
        clip_scale = clamped_scale(self.model.clip.logit_scale)
        scale = clip_scale if self.scale is None else self.scale
        asked = self._loss(features, batch, is_conditional, scale, self.bank)
        if bool(is_conditional.all()):
            return asked
        plain = self._loss(features, batch, ~is_conditional, clip_scale.detach(), None)
        return asked + self.plain_weight * plain

    def _loss(self, features: Tensor, batch: Rows, rows: Tensor, scale: Tensor | float, bank: Tensor | None) -> Tensor:
        if bank is not None:
            return unique_answer_loss(features[rows], bank, batch.answer_index[rows], scale)
        # the text tower is frozen: other processes' answers serve as negatives without any gradient
        own = batch.answer_ids[rows]
        everyone, start = gather_rows(own)
        representative, index = _distinct(everyone)
        with torch.no_grad():
            answers = self.model.encode_texts(everyone[representative])
        return unique_answer_loss(features[rows], answers, index[start : start + len(own)], scale)


@dataclass(frozen=True)
class TripletData:
    """Batches for FocalLens, tokenized in the loader's workers: ColorShape, or LLaVA's JSON where `llava` is given."""

    tokenizer: Tokenizer
    transform: ImageTransform
    seed: int
    num_images: int
    num_questions: int
    has_plain: bool
    llava: LlavaData | None = None

    def __call__(self, step: int) -> Rows:
        if self.llava is not None:
            files, triplets = self.llava.batch(self.seed, step, self.num_images)
            pixels = [torch.tensor(self.transform(Image.open(file).convert("RGB"))) for file in files]
            return self._tokenize(torch.stack(pixels), triplets, {})
        scenes, triplets = triplet_batch(
            self.seed, step, self.num_images, num_questions=self.num_questions, has_unconditional=self.has_plain
        )
        return self._tokenize(scenes, triplets, {answer: i for i, answer in enumerate(all_answers())})

    def _tokenize(self, images: Scenes | Tensor, triplets: TripletBatch, bank: Mapping[str, int]) -> Rows:
        conditions = sorted({text for text in triplets.instructions if text is not None})
        place = {text: i for i, text in enumerate(conditions)}
        return Rows(
            images=images,
            answer_ids=self.tokenizer(triplets.answers),
            answer_index=torch.tensor([bank.get(text, -1) for text in triplets.answers]),
            image_index=triplets.image_index,
            condition_ids=self.tokenizer(conditions),
            condition_index=torch.tensor([-1 if t is None else place[t] for t in triplets.instructions]),
        )


@dataclass(frozen=True)
class CaptionData:
    """Batches for CLIP: ColorShape scenes and captions."""

    tokenizer: Tokenizer
    seed: int
    num_images: int

    def __call__(self, step: int) -> Rows:
        batch = caption_batch(self.seed, step, self.num_images)
        everyone = torch.arange(self.num_images)
        nothing = torch.empty(0, dtype=torch.int64)
        return Rows(batch.scenes, self.tokenizer(batch.captions), nothing, everyone, nothing, nothing)


@app.command()
def clip(
    output: Annotated[Path, typer.Option(help="Where the checkpoint, the log and the resume state go.")],
    warmup_steps: Annotated[int, typer.Option(help="Steps of the supervised warm-up before; 0 leaves it out.")] = 1500,
    steps: Annotated[int, typer.Option(help="Optimizer steps of the contrastive training.")] = 5000,
    batch_size: Annotated[int, typer.Option(help="Images a step, over all processes.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="On matrices; biases, gains and scales have none.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the weights and of the data.")] = 0,
    precision: Annotated[str, typer.Option(help="no, bf16 or fp16.")] = "bf16",
    num_workers: Annotated[int, typer.Option(help="Processes that draw and tokenize batches.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between two resume states.")] = 500,
    width: Annotated[int, typer.Option(help="Width of the ViT.")] = 128,
    layers: Annotated[int, typer.Option(help="Blocks of the ViT.")] = 4,
    images_per_class: Annotated[int, typer.Option(help="ColorShape images a class that measure the result.")] = 125,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: Annotated[str | None, typer.Option(envvar="FOVEA_STORE_URL", help="The model store.")] = None,
) -> None:
    """Train the small CLIP that FocalLens starts from, on generated scenes and captions."""
    options = dict(locals())
    warmup = Run(
        output, warmup_steps, batch_size, 1.5 * learning_rate, weight_decay, 0.05, seed, stage="warmup",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    run = replace(warmup, num_steps=steps, learning_rate=learning_rate, stage="contrastive")
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    write_merges(learn_merges(), output / MERGES)
    model = create_clip(_clip_config(width, layers), output / MERGES)
    if warmup_steps > 0:
        # a seed of its own: the contrastive stage sees other scenes
        data = CaptionData(model.tokenizer, seed + 1_000, warmup.num_examples)
        train(warmup, AttributeLoss(model.model.visual, model.transform), data)
    train(run, CaptionLoss(model.model, model.transform), CaptionData(model.tokenizer, seed, run.num_examples))
    if rank() == 0:
        directory = output / "checkpoint"
        save_clip(model, directory)
        baseline = load_embedder(directory, "cpu")
        result = evaluate_colorshape(
            baseline,
            CLIP_NAME,
            ColorShapeProtocol(num_per_class=images_per_class, side=model.transform.size[0]),
            is_conditional=False,
        )
        _finish(directory, CLIP_NAME, "open-clip", options, summary(result))


@app.command()
def focallens(
    output: Annotated[Path, typer.Option(help="Where the checkpoint, the log and the resume state go.")],
    base: Annotated[
        str, typer.Option(help="The CLIP to tune: a name in the store, an open_clip directory, or an open_clip name.")
    ] = CLIP_NAME,
    pretrained: Annotated[str | None, typer.Option(help="Weights for an open_clip name: a tag or a file.")] = None,
    llava: Annotated[Path | None, typer.Option(help="LLaVA's JSON instead of ColorShape.")] = None,
    image_folder: Annotated[Path, typer.Option(help="Where the images of --llava lie.")] = Path(),
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 1500,
    batch_size: Annotated[int, typer.Option(help="Images a step, over all processes and accumulated batches.")] = 64,
    accumulate: Annotated[int, typer.Option(help="Batches that one optimizer step adds up.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-4,
    seed: Annotated[int, typer.Option(help="Of the weights and of the data.")] = 0,
    precision: Annotated[str, typer.Option(help="no, bf16 or fp16.")] = "bf16",
    num_workers: Annotated[int, typer.Option(help="Processes that draw and tokenize batches.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between two resume states.")] = 500,
    condition_layer: Annotated[int, typer.Option(help="The block that the condition enters before.")] = 0,
    visibility: Annotated[str, typer.Option(help="full (the paper), or readout.")] = "readout",
    questions: Annotated[int, typer.Option(help="Different questions about each generated scene.")] = 3,
    scale: Annotated[
        float, typer.Option(help="Fixed logit scale; 0 trains CLIP's own further, as the paper does.")
    ] = 10.0,
    bank: Annotated[bool, typer.Option(help="All known answers as negatives, not only the batch's.")] = True,
    plain_weight: Annotated[
        float, typer.Option(help="Weight of the loss that keeps the unconditional embedding; 0 is the paper.")
    ] = 0.5,
    images_per_class: Annotated[int, typer.Option(help="ColorShape images a class that measure the result.")] = 125,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: Annotated[str | None, typer.Option(envvar="FOVEA_STORE_URL", help="The model store.")] = None,
) -> None:
    """Tune a CLIP to follow conditions (FocalLens-CLIP), on ColorShape or on visual instruction data."""
    options = dict(locals())
    run = Run(
        output, steps, batch_size, learning_rate, 0.0, 0.03, seed, accumulate=accumulate, stage="tuning",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    start, base_reference = _base(base, pretrained, store_url, output)
    model = FocalLens(start.model, condition_layer=condition_layer, visibility=_visibility(visibility))
    records = None if llava is None else LlavaData(llava, image_folder)
    answers = None
    if bank and records is None:
        with torch.no_grad():
            answers = model.encode_texts(start.tokenizer(all_answers()))
    has_plain = plain_weight > 0
    model.clip.logit_scale.requires_grad_(scale == 0)
    data = TripletData(start.tokenizer, start.transform, seed, run.num_examples, questions, has_plain, records)
    train(run, TripletLoss((model, start.transform), answers, scale or None, plain_weight), data)
    if rank() == 0:
        directory = output / "checkpoint"
        save_focallens(model, start, directory)
        tuned = load_focallens(directory)
        protocol = ColorShapeProtocol(num_per_class=images_per_class, side=start.transform.size[0])
        metrics = {} if llava else summary(evaluate_colorshape(tuned, FOCALLENS_NAME, protocol, is_conditional=True))
        _finish(directory, FOCALLENS_NAME, "focallens-clip", {**options, "base": base_reference}, metrics)


def _clip_config(width: int, layers: int) -> dict[str, Any]:
    """An open_clip configuration; the vocabulary is SimpleTokenizer's bytes, merges and two special tokens."""
    vision = {"image_size": 64, "patch_size": 16, "width": width, "layers": layers, "head_width": 32}
    text = {"context_length": 77, "vocab_size": 512 + len(learn_merges()) + 2, "width": 128, "heads": 4, "layers": 3}
    model = {"embed_dim": 128, "vision_cfg": vision, "text_cfg": text}
    return {"model_cfg": model, "preprocess_cfg": {}, "conv_stem": [24, 48, 96]}


def _visibility(value: str) -> Visibility:
    if value not in ("full", "readout"):
        raise typer.BadParameter(f"{value!r} is neither full nor readout", param_hint="--visibility")
    return "full" if value == "full" else "readout"


def _base(name: str, pretrained: str | None, store_url: str | None, output: Path) -> tuple[ClipModel, str]:
    """The model to tune and how to name it: a directory, a name in the store, or an open_clip name."""
    if pretrained is None and not Path(name).is_dir():
        store = _store(store_url)
        if name in store.names():
            version = store.resolve(name)
            return load_clip(str(store.fetch(name, version, output / "base"))), f"{name}@{version}"
    return load_clip(name, pretrained), name if pretrained is None else f"{name}:{pretrained}"


def _store(url: str | None) -> Store:
    return Store.open(url or ServiceSettings(port=0).store_url)


def _finish(directory: Path, name: str, kind: str, options: dict[str, Any], metrics: dict[str, float]) -> None:
    """Write what the publisher knows beside the weights, and publish."""
    training = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    is_published = training.pop("publish")
    store_url = training.pop("store_url")
    info = CheckpointInfo(
        kind=kind,
        base=training.pop("base", None),
        training=training,
        seed=training["seed"],
        metrics=dict(metrics),
        code_revision=os.environ.get("FOVEA_CODE_REVISION"),
        licence="MIT",
    )
    console = Console(highlight=False)
    console.print_json(json.dumps(metrics))
    if is_published:
        version = _store(store_url).publish(name, directory, info)
        console.print(f"published {version}")
    (directory / DESCRIPTION_FILE).write_text(
        json.dumps({"name": name, **info.model_dump(mode="json")}, indent=2) + "\n"
    )


def _distinct(input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (R, W) → one row index for each distinct text (A,), and each row's text (R,) among them."""
    distinct, index = torch.unique(input_ids, dim=0, return_inverse=True)
    representative = torch.empty(len(distinct), dtype=torch.int64, device=input_ids.device)
    representative[index] = torch.arange(len(index), device=index.device)  # any row of a text will do
    return representative, index


if __name__ == "__main__":
    app()
