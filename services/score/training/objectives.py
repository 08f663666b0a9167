"""Losses for tuning: CLIP's, NegCLIP's, only the global hard negative loss, and FSC-CLIP's.

Shapes: B images, N hard negatives, K kinds of them, W text tokens, E embedding width.
"""

from dataclasses import replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.jobs.training import gather, world_size
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import MAX_LOG_SCALE
from services.score.fsc_clip import FscClipWeights, TextFeatures, clip_loss, fsc_clip_losses, negclip_loss
from services.score.model.dense_features import encode_images, encode_texts
from services.score.training.batches import TuningBatch

# "clip" uses no negatives, "negclip" adds them to the batch's softmax, "global" is FSC-CLIP without its local loss and
# without its regularisation of the global one (plain cross-entropy).
Method = Literal["clip", "negclip", "global", "fsc-clip"]
METHODS: tuple[Method, ...] = get_args(Method)

TEXT_GROUPS = 3


def method_weights(method: Method, weights: FscClipWeights) -> FscClipWeights:
    """FSC-CLIP's constants, adapted to a method."""
    if method == "fsc-clip":
        return weights
    return replace(weights, lambda_global=weights.lambda_global if method == "global" else 0.0, lambda_local=0.0,
                   gamma=0.0, beta=None)  # fmt: skip


class TuningLoss(nn.Module):
    """A loss over batches of images, captions and packed hard negatives.

    CLIP's softmax contains the captions of all processes. With `gather_negatives`, several processes minimise the same
    loss as one process on the whole batch; without, as released, NegCLIP's softmax contains only the process's own hard
    negatives, and a hard negative loss is the mean of the processes' means.

    Batch norm of a convolutional stem keeps its statistics, and the temperature stays within [0, ln 100].
    """

    def __init__(
        self,
        tuned: tuple[Any, ImageTransform],
        method: Method,
        weights: FscClipWeights | None = None,
        *,
        gather_negatives: bool = True,
    ) -> None:
        super().__init__()
        self.clip, self.transform = tuned
        self.method = method
        self.weights = method_weights(method, weights or FscClipWeights())
        self.gather_negatives = gather_negatives

    def train(self, mode: bool = True) -> "TuningLoss":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, batch: TuningBatch) -> Tensor:
        with torch.no_grad():
            self.clip.logit_scale.clamp_(0, MAX_LOG_SCALE)
        scale = self.clip.logit_scale.exp()
        num_images = batch.exists.shape[1]
        images = encode_images(self.clip, batch.pixels(self.transform))
        texts = encode_by_length(self.clip, batch.input_ids)
        image_features, captions = gather(images.pooled), gather(texts.pooled[:num_images])
        if self.method == "negclip":
            return self._negclip(image_features, captions, texts.pooled[num_images:], batch.exists.numel())
        clip = clip_loss(image_features, captions, scale)
        if self.method == "clip":
            return clip
        losses = fsc_clip_losses(images, texts, batch.exists, scale, self.weights)
        share = _share_of_rows(batch.exists) if self.gather_negatives else 1.0
        return clip + share * (losses.global_negatives + losses.local_negatives)

    def _negclip(self, images: Tensor, captions: Tensor, negatives: Tensor, num_places: int) -> Tensor:
        """Compute NegCLIP's loss, with places for B K negatives in each process."""
        if self.gather_negatives:
            negatives, num_places = _gather_uneven(negatives), num_places * world_size()
        # a batch without any negative has CLIP's own loss in the released code too
        num_zeros = num_places - len(negatives) if self.weights.missing == "zero" and len(negatives) else 0
        scale = self.clip.logit_scale.exp()
        return negclip_loss(images, torch.cat([captions, negatives]), scale, num_zeros=num_zeros)


def encode_by_length(clip: Any, input_ids: Tensor) -> TextFeatures:
    """Encode texts, on a CPU in TEXT_GROUPS groups of similar length, because padding costs as much as words."""
    if input_ids.device.type != "cpu":
        return encode_texts(clip, input_ids)
    order = (input_ids != 0).sum(dim=1).argsort(stable=True)
    groups = [encode_texts(clip, input_ids[some]) for some in order.tensor_split(TEXT_GROUPS) if len(some)]
    longest = max(group.mask.shape[1] for group in groups)
    padded = [F.pad(group.tokens, (0, 0, 0, longest - group.mask.shape[1])) for group in groups]
    masks = [F.pad(group.mask, (0, longest - group.mask.shape[1])) for group in groups]
    back = order.argsort()
    return TextFeatures(
        torch.cat([group.pooled for group in groups])[back], torch.cat(padded)[back], torch.cat(masks)[back]
    )


def _share_of_rows(exists: Tensor) -> Tensor | float:
    """Compute a factor for a process's mean over its images with negatives, so that the mean over all processes is the
    mean over all such images."""
    if world_size() == 1:
        return 1.0
    own = exists.any(dim=0).sum()
    total = own.clone()
    torch.distributed.all_reduce(total)
    return own * world_size() / total.clamp_min(1)


def _gather_uneven(x: Tensor) -> Tensor:
    """Gather the rows of all processes, with gradient, if their numbers differ."""
    if world_size() == 1:
        return x
    numbers = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(world_size())]
    torch.distributed.all_gather(numbers, torch.tensor([len(x)], device=x.device))
    sizes = [int(number) for number in numbers]
    padded = torch.cat([x, x.new_zeros(max(sizes) - len(x), *x.shape[1:])])
    parts = torch.split(gather(padded), max(1, *sizes))
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=False)])
