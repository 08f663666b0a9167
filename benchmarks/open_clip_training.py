"""open_clip's own training: `open_clip_train`, which its wheel brings, with the settings of a plain float32 run.

Its loop, loss, optimizer, schedule, image transform and tokenizer. Its reader of webdataset shards too, where
pandas and a webdataset that it works with (0.2.86) are installed; else its transform and tokenizer over our reader.
"""

import importlib
import importlib.util
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from services.nn.clip_model import ClipModel, open_clip
from services.score.data.captioned_images import CaptionedImages, open_shards

Batches = Iterable[tuple[Tensor, Tensor]]


def open_clip_train(module: str) -> Any:
    """Import a module of the package, which imports torchvision."""
    open_clip()
    return importlib.import_module(f"open_clip_train.{module}")


def has_webdataset() -> bool:
    """Whether open_clip's own reader of shards can be used."""
    return all(importlib.util.find_spec(name) for name in ("webdataset", "pandas", "braceexpand"))


@dataclass(frozen=True)
class EpochOf:
    """The data as open_clip's loop expects it: `dataloader` iterates, and has two numbers."""

    dataloader: "Counted"

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the order is that of the batches."""


@dataclass(frozen=True)
class Counted:
    """Batches of images (B, 3, S, S) float32 and texts (B, W) int64, and the numbers of them that the loop is told."""

    batches: Batches
    num_batches: int
    num_samples: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches)


@dataclass(frozen=True)
class OpenClipTraining:
    """Plain CLIP fine-tuning of a model on shards. `precision` is open_clip's (fp32, amp_bf16)."""

    clip: ClipModel
    shards: str
    num_images: int
    batch_size: int
    device: torch.device
    precision: str
    learning_rate: float = 5e-6
    weight_decay: float = 0.1

    def batches(self) -> Batches:
        """Return one epoch, made in this process."""
        transform, size = self.clip.transform, self.clip.transform.size
        preprocess = open_clip().image_transform(
            size, is_train=True, mean=transform.mean, std=transform.std, aug_cfg={"scale": (0.9, 1.0)}
        )
        if has_webdataset():
            arguments = Namespace(
                train_data=self.shards, train_num_samples=self.num_images, train_data_upsampling_factors=None,
                dataset_resampled=False, seed=0, batch_size=self.batch_size, workers=0, world_size=1,
            )  # fmt: skip
            get_data = open_clip_train("data").get_wds_dataset
            data = get_data(arguments, preprocess, is_train=True, tokenizer=self.clip.tokenizer)
            batches: Batches = data.dataloader
            return batches
        examples = _Examples(open_shards([self.shards]), preprocess, self.clip.tokenizer)
        return DataLoader(examples, self.batch_size, drop_last=True)

    def run(self, batches: Batches, num_batches: int) -> None:
        """Run one epoch of open_clip's loop over the batches; it is told that there are `num_batches`."""
        arguments = Namespace(
            device=str(self.device), precision=self.precision, distill=False, accum_freq=1, skip_scheduler=False,
            horovod=False, grad_clip_norm=None, rank=0, local_rank=0, world_size=1, batch_size=self.batch_size,
            log_every_n_steps=100, wandb=False,
        )  # fmt: skip
        model, optimizer = self.clip.model, self._optimizer()
        schedule = open_clip_train("scheduler").cosine_lr(optimizer, self.learning_rate, 50, num_batches)
        data = {"train": EpochOf(Counted(batches, num_batches, num_batches * self.batch_size))}
        open_clip_train("train").train_one_epoch(
            model, data, open_clip().ClipLoss(), 0, optimizer, None, schedule, None, arguments
        )

    def loss(self, images: Tensor, texts: Tensor) -> float:
        """Return the loss of one batch, in evaluation mode."""
        with torch.inference_mode():
            outputs = self.clip.model.eval()(images, texts)
            return float(open_clip().ClipLoss()(**outputs))

    def _optimizer(self) -> torch.optim.Optimizer:
        """Create the optimizer as open_clip_train's `main` does."""
        named = list(self.clip.model.named_parameters())
        spared = [p for name, p in named if p.ndim < 2 or any(part in name for part in ("bn", "ln", "bias"))]
        rest = [p for name, p in named if p.ndim >= 2 and not any(part in name for part in ("bn", "ln", "bias"))]
        groups = [{"params": spared, "weight_decay": 0.0}, {"params": rest, "weight_decay": self.weight_decay}]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=(0.9, 0.98), eps=1e-6)


class _Examples(Dataset[tuple[Tensor, Tensor]]):
    """A user's own reader: images and captions by number, through open_clip's transform and tokenizer."""

    def __init__(self, images: CaptionedImages, preprocess: Any, tokenizer: Any) -> None:
        self._images = images
        self._preprocess = preprocess
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, caption, *_ = self._images.example(0, index)
        return self._preprocess(image), self._tokenizer([caption])[0]
