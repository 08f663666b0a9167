"""FSC-CLIP: fine-tuning CLIP on hard negative captions without losing the rest (equations of the paper).

    S_g(I, T) = exp(cos(v, t) / τ)                                          the pooled features                 Eq. 1
    S_l(I, T) = Σ_w exp(cos(v̂_w, t_w) / τ),   v̂_w = Σ_p a_wp v_p / Σ_p a_wp    each token and its patches       Eq. 6–8
    a_w       = s_w scaled to [0, 1],   s_wp = t_w · v_p                    as weights: no gradient passes
    p         = softmax of log S over a caption and its K hard negatives                                        Eq. 3, 5
    ỹ         = (1 − β) y + β / (1 + K)                                                                         Eq. 10
    L_neg     = − Σ_k ỹ_k (1 − p_k)^γ log p_k                                                                   Eq. 9
    L         = L_clip + λ_g L_neg(S_g) + λ_l L_neg(S_l)                                                        Eq. 11

Everything after the features is computed in at least float32, also under autocast.

Shapes: B images, N hard negatives of a batch, K kinds of them, R image-text pairs, P patches, W text tokens,
E embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Normalizer = Literal["minmax", "softmax"]
Missing = Literal["exclude", "zero"]

# A vector with a smaller squared length has no direction.
SMALLEST_SQUARE = 1e-24


@dataclass(frozen=True)
class ImageFeatures:
    """`pooled` (B, E) is L2-normalised, `tokens` (B, P, E) are not; patches are in row-major order."""

    pooled: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class TextFeatures:
    """`pooled` (N, E) is L2-normalised, `tokens` (N, W, E) are not; token w is that of `input_ids[:, w]`.

    `mask` (N, W) bool is true from the first word to the end of text, inclusive; W is that of the longest text.
    """

    pooled: Tensor
    tokens: Tensor
    mask: Tensor


@dataclass(frozen=True)
class FscClipWeights:
    """The constants of Eq. 11; `beta` None means no label smoothing, `gamma` 0 plain cross-entropy.

    `missing` tells how the softmax treats a negative that a caption lacks: it is excluded, or has a logit of 0 as in
    the released code. `normalizer` and `sparsify` are those of `patch_weights`.
    """

    lambda_global: float = 0.5
    lambda_local: float = 0.2
    gamma: float = 2.0
    beta: float | None = 0.02
    missing: Missing = "exclude"
    normalizer: Normalizer = "minmax"
    sparsify: bool = False


@dataclass(frozen=True)
class FscClipLosses:
    """The three terms of Eq. 11, weighted: scalars."""

    clip: Tensor
    global_negatives: Tensor
    local_negatives: Tensor

    @property
    def total(self) -> Tensor:
        return self.clip + self.global_negatives + self.local_negatives


def clip_loss(
    image_features: Tensor, text_features: Tensor, logit_scale: Tensor | float, rivals: Tensor | None = None
) -> Tensor:
    """Eq. 2, symmetric: (B, E) and (B, E), both L2-normalised, row i of one belonging to row i of the other.

    `rivals` (B, B) bool tells which texts (columns) are wrong of which images; without it, all others are. Those that
    are not are left out of both softmaxes.
    """
    with _full_precision(image_features):
        logits = logit_scale * _wide(image_features) @ _wide(text_features).T
        if rivals is not None:
            own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
            logits = logits.masked_fill(~(rivals | own), -torch.inf)
        target = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def negclip_loss(
    image_features: Tensor, text_features: Tensor, logit_scale: Tensor | float, *, num_zeros: int = 0
) -> Tensor:
    """NegCLIP: (B, E) images and (B + N, E) texts, the captions first, all L2-normalised.

    Hard negatives are additional texts in the softmax of each image, and have no softmax over images themselves. The
    released code has a logit of 0 for each negative that a caption lacks: `num_zeros` adds these.
    """
    with _full_precision(image_features):
        logits = logit_scale * _wide(image_features) @ _wide(text_features).T
        num_images = len(logits)
        target = torch.arange(num_images, device=logits.device)
        of_images = F.cross_entropy(F.pad(logits, (0, num_zeros)), target)
        return (of_images + F.cross_entropy(logits[:, :num_images].T, target)) / 2


def patch_weights(
    image_tokens: Tensor, text_tokens: Tensor, *, normalizer: Normalizer = "minmax", sparsify: bool = False
) -> Tensor:
    """Eq. 6, each text token's weight of each patch: (R, P, E) and (R, W, E), un-normalised → (R, W, P) in [0, 1].

    A token that is equally similar to all patches gives them full weight. `sparsify` drops weights below 1 / P. Without
    gradient.
    """
    with torch.no_grad(), _full_precision(image_tokens):
        return _weights(_wide(text_tokens) @ _wide(image_tokens).mT, normalizer, sparsify=sparsify)


def token_cosines(
    image_tokens: Tensor, text_tokens: Tensor, *, normalizer: Normalizer = "minmax", sparsify: bool = False
) -> Tensor:
    """cos(v̂_w, t_w): (R, P, E) and (R, W, E), un-normalised → (R, W), with gradient to both.

    A token's cosine depends on no other token, so several texts of one image may be concatenated along W: R images
    instead of R pairs. v̂ itself is never computed: its product with t and its length follow from the patches' products
    with the token and with each other.
    """
    with _full_precision(image_tokens):
        patches, words = _wide(image_tokens), _wide(text_tokens)
        similarity = words @ patches.mT  # (R, W, P)
        weights = _weights(similarity.detach(), normalizer, sparsify=sparsify)
        product = (weights * similarity).sum(dim=-1)
        squared_length = ((weights @ (patches @ patches.mT)) * weights).sum(dim=-1)
        squared_words = words.square().sum(dim=-1)
        lengths = squared_length.clamp_min(SMALLEST_SQUARE).sqrt() * squared_words.clamp_min(SMALLEST_SQUARE).sqrt()
        return product / lengths


def log_local_similarity(cosines: Tensor, mask: Tensor, logit_scale: Tensor | float) -> Tensor:
    """Eq. 8, log S_l: cosines (…, W), of which those in `mask` (…, W) bool count, at least one → (…,)."""
    with _full_precision(cosines):
        return (logit_scale * _wide(cosines)).masked_fill(~mask, -torch.inf).logsumexp(dim=-1)


def mean_local_similarity(cosines: Tensor, mask: Tensor) -> Tensor:
    """The mean cosine of a text's tokens with their parts of the image: (…, W) → (…,) in [−1, 1].

    Unlike S_l it does not grow with the number of tokens.
    """
    return _wide(cosines).masked_fill(~mask, 0.0).sum(dim=-1) / mask.sum(dim=-1).clamp_min(1)


def hard_negative_loss(
    logits: Tensor, exists: Tensor, *, gamma: float, beta: float | None, missing: Missing = "exclude"
) -> Tensor:
    """Eq. 3–5 with 9 and 10: `logits` (B, 1 + K) of the caption and its negatives, of which those `exists` (B, K) bool.

    The K of Eq. 10 counts the negatives that exist in a row. Returns the mean over the rows with at least one, 0 if
    there are none.
    """
    is_candidate = F.pad(exists, (1, 0), value=True)
    num_candidates = is_candidate.sum(dim=-1, keepdim=True)
    with _full_precision(logits):
        absent = -torch.inf if missing == "exclude" else 0.0
        log_p = _wide(logits).masked_fill(~is_candidate, absent).log_softmax(dim=-1)
        log_p = log_p.masked_fill(~is_candidate, 0.0)  # 0 · −∞ is not 0
        terms = _smoothed_target(is_candidate, beta or 0.0, log_p.dtype) * -log_p
        if gamma > 0:
            # never quite 0, where the slope of a power below 1 is infinite
            miss = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
            terms = miss**gamma * terms
        has_negative = (num_candidates > 1).squeeze(-1)
        rows = terms.sum(dim=-1).masked_fill(~has_negative, 0.0)
        return rows.sum() / has_negative.sum().clamp_min(1)


def fsc_clip_losses(
    images: ImageFeatures, texts: TextFeatures, exists: Tensor, logit_scale: Tensor | float, weights: FscClipWeights
) -> FscClipLosses:
    """Eq. 11 over a batch of B images.

    The texts are the B captions, then the N hard negatives that exist: all of the first kind in the order of the
    captions, then all of the second, and so on; `exists` (K, B) bool tells which do. Only the captions are in L_clip.
    A term whose λ is 0 is not computed. Raises ValueError for any other number of texts.
    """
    num_images = len(images.pooled)
    own = _texts_of_images(exists, num_images)
    num_texts = num_images + int(exists.sum())
    if len(texts.pooled) != num_texts:
        raise ValueError(f"{len(texts.pooled)} texts for {num_images} captions and {num_texts - num_images} negatives")
    clip = clip_loss(images.pooled, texts.pooled[:num_images], logit_scale)
    global_negatives = local_negatives = torch.zeros_like(clip)
    if weights.lambda_global > 0:
        logits = _global_logits(images.pooled, texts.pooled, own, logit_scale)
        global_negatives = weights.lambda_global * _negatives(logits, exists, weights)
    if weights.lambda_local > 0:
        logits = _local_logits(images.tokens, texts, own, logit_scale, weights)
        local_negatives = weights.lambda_local * _negatives(logits, exists, weights)
    return FscClipLosses(clip, global_negatives, local_negatives)


def interpolate(theta0: Mapping[str, Tensor], theta1: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """WiSE-FT: (1 − α) θ0 + α θ1, weight by weight, of a model before (θ0) and after fine-tuning (θ1).

    The position embeddings of texts are cut to the shorter context of θ1; non-float values (a count of batches) are
    θ1's. Raises ValueError if the two have different weights.
    """
    if theta0.keys() != theta1.keys():
        names = sorted(theta0.keys() ^ theta1.keys())
        raise ValueError(f"the two models differ in their weights: {', '.join(names)}")
    return {name: _between(name, theta0[name], tensor, alpha) for name, tensor in theta1.items()}


def _full_precision(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _weights(similarity: Tensor, normalizer: Normalizer, *, sparsify: bool) -> Tensor:
    if normalizer == "softmax":
        weights = similarity.softmax(dim=-1)
    else:
        low, high = similarity.aminmax(dim=-1, keepdim=True)
        spread = high - low
        # patches that differ by less than rounding are equally similar
        is_flat = spread <= torch.finfo(similarity.dtype).eps * torch.maximum(low.abs(), high.abs())
        weights = torch.where(is_flat, 1.0, (similarity - low) / spread.masked_fill(is_flat, 1.0))
    if sparsify:
        weights = weights.masked_fill(weights < 1 / weights.shape[-1], 0.0)
    return weights


def _smoothed_target(is_candidate: Tensor, beta: float, dtype: torch.dtype) -> Tensor:
    """Eq. 10: (B, 1 + K) bool → ỹ, 0 for non-candidates."""
    target = beta * is_candidate.to(dtype) / is_candidate.sum(dim=-1, keepdim=True)
    target[:, 0] += 1 - beta
    return target


def _texts_of_images(exists: Tensor, num_images: int) -> Tensor:
    """Rows of the texts, (B, 1 + K): an image's caption and its negatives, with the caption for missing negatives."""
    captions = torch.arange(num_images, device=exists.device)
    numbers = exists.flatten().cumsum(dim=0).view_as(exists) - 1
    return torch.cat([captions[None], torch.where(exists, num_images + numbers, captions)]).T


def _negatives(logits: Tensor, exists: Tensor, weights: FscClipWeights) -> Tensor:
    return hard_negative_loss(logits, exists.T, gamma=weights.gamma, beta=weights.beta, missing=weights.missing)


def _global_logits(image_features: Tensor, text_features: Tensor, own: Tensor, logit_scale: Tensor | float) -> Tensor:
    """log S_g of each image with its own texts: (B, E) and (B + N, E) → (B, 1 + K)."""
    with _full_precision(image_features):
        texts = _wide(text_features)[own]  # (B, 1 + K, E)
        return logit_scale * (texts @ _wide(image_features)[..., None]).squeeze(-1)


def _local_logits(
    image_tokens: Tensor, texts: TextFeatures, own: Tensor, logit_scale: Tensor | float, weights: FscClipWeights
) -> Tensor:
    """log S_l of each image with its own texts, concatenated: (B, P, E) and (B + N, W, E) → (B, 1 + K)."""
    words = texts.tokens[own].flatten(1, 2)  # (B, (1 + K) W, E)
    cosines = token_cosines(image_tokens, words, normalizer=weights.normalizer, sparsify=weights.sparsify)
    return log_local_similarity(cosines.view(*own.shape, -1), texts.mask[own], logit_scale)


def _between(name: str, before: Tensor, after: Tensor, alpha: float) -> Tensor:
    if not after.is_floating_point():
        return after
    if name in ("positional_embedding", "text.positional_embedding"):
        before = before[: len(after)]
    return ((1 - alpha) * _wide(before) + alpha * _wide(after)).to(after.dtype)
