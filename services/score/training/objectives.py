"""Losses for tuning: CLIP's, NegCLIP's, only the global hard negative loss, and FSC-CLIP's.

Shapes: B images, N hard negatives, K kinds of them, W text tokens, E embedding width.
"""

from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.jobs.training import gather, world_size
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import MAX_LOG_SCALE
from services.score.fsc_clip import FscClipWeights, ImageFeatures, clip_loss, fsc_clip_losses, negclip_loss
from services.score.model.dense_features import encode_images, missing_for_tokens
from services.score.training.batches import TuningBatch
from services.score.training.caption_states import encode_by_length

# "clip" uses no negatives, "negclip" adds them to the batch's softmax, "global" is FSC-CLIP without its local loss and
# without its regularisation of the global one (plain cross-entropy).
Method = Literal["clip", "negclip", "global", "fsc-clip"]


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

    Batch norm keeps its statistics unless `from_scratch`, and the temperature stays within [0, ln 100]. CLIP's and
    NegCLIP's losses take any image tower. With `naming`, a loss of the image features and the batch's facts is added.
    """

    def __init__(
        self,
        tuned: tuple[Any, ImageTransform],
        method: Method,
        weights: FscClipWeights | None = None,
        *,
        gather_negatives: bool = True,
        naming: nn.Module | None = None,
        from_scratch: bool = False,
    ) -> None:
        super().__init__()
        self.naming = naming
        self.clip, self.transform = tuned
        self.method = method
        self.weights = method_weights(method, weights or FscClipWeights())
        self.gather_negatives = gather_negatives
        self.from_scratch = from_scratch
        self.has_tokens = missing_for_tokens(self.clip) is None

    def train(self, mode: bool = True) -> "TuningLoss":
        super().train(mode)
        for module in () if self.from_scratch else self.clip.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, batch: TuningBatch) -> Tensor:
        with torch.no_grad():
            self.clip.logit_scale.clamp_(0, MAX_LOG_SCALE)
        scale = self.clip.logit_scale.exp()
        num_images = batch.exists.shape[1]
        images = self._encode_images(batch.pixels(self.transform))
        texts = encode_by_length(self.clip, batch.input_ids)
        image_features, captions = gather(images.pooled), gather(texts.pooled[:num_images])
        if self.method == "negclip":
            return self._negclip(image_features, captions, texts.pooled[num_images:], batch.exists.numel())
        clip = clip_loss(image_features, captions, scale, _all_rivals(batch.rivals))
        if self.naming is not None and batch.facts is not None:
            clip = clip + self.naming(images, batch.facts)
        if self.method == "clip":
            return clip
        losses = fsc_clip_losses(images, texts, batch.exists, scale, self.weights)
        share = _share_of_rows(batch.exists) if self.gather_negatives else 1.0
        return clip + share * (losses.global_negatives + losses.local_negatives)

    def _encode_images(self, pixels: Tensor) -> ImageFeatures:
        if self.has_tokens:
            return encode_images(self.clip, pixels)
        pooled = F.normalize(self.clip.encode_image(pixels).float(), dim=-1)
        return ImageFeatures(pooled, pooled.new_empty(len(pooled), 0, pooled.shape[1]))

    def _negclip(self, images: Tensor, captions: Tensor, negatives: Tensor, num_places: int) -> Tensor:
        """Compute NegCLIP's loss, with places for B K negatives in each process."""
        if self.gather_negatives:
            negatives, num_places = _gather_uneven(negatives), num_places * world_size()
        # a batch without any negative has CLIP's own loss in the released code too
        num_zeros = num_places - len(negatives) if self.weights.missing == "zero" and len(negatives) else 0
        scale = self.clip.logit_scale.exp()
        return negclip_loss(images, torch.cat([captions, negatives]), scale, num_zeros=num_zeros)


def _all_rivals(rivals: Tensor | None) -> Tensor | None:
    """Put the rivals of all processes on the diagonal of one matrix; captions of others are not known to be wrong."""
    if rivals is None or world_size() == 1:
        return rivals
    joined: Tensor = torch.block_diag(*gather(rivals).chunk(world_size()))  # type: ignore[no-untyped-call]
    return joined


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
