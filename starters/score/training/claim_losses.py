"""Losses of pictures with claims: choosing the true claim, finding the pictures of a claim, and naming facts.

Both towers first learn their places in the space of `fact_space`, each alone, and then to choose together.

Shapes: B pictures, G groups of K claims, A = G K, T places for things, P patches, D width, E embedding width.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import clamped_scale
from services.score.fsc_clip import ImageFeatures, TextFeatures, mean_local_similarity, token_cosines
from services.score.training.caption_states import encode_by_length
from starters.score.data.claimed_pictures import NUM_ALTERNATIVES, ClaimBatch, PictureBatch, centered_things
from starters.score.data.claims import MAX_THINGS, RELATIONS
from starters.score.training.caption_states import read_captions, word_states
from starters.score.training.fact_space import (
    BOUND,
    COLOR,
    FINISH,
    NUM_VALUES,
    SHAPE,
    FactSpace,
    values_of_things,
)
from starters.score.training.word_labels import WordNaming

K = 1 + NUM_ALTERNATIVES
# Weights: of the choice among a picture's own claims by pooled features and by words, of that among all pictures'
# claims, of finding a claim's pictures, and of naming facts.
OWN, LOCAL, ALL, FOUND, NAMED = 2.0, 1.0, 0.7, 0.5, 0.3
# Weights of the distance to the place in the fact space, of a tower alone and of both together.
MATCHED, KEPT = 10.0, 2.0
# Weight of naming a claim's words beside naming which of them belong together.
SAID = 4.0
# Weights of numbers, most of which are 0, and of places, whose errors are small.
COUNTED, PLACED = 5.0, 50.0


class CenteredThings(nn.Module):
    """Heads that name the thing whose centre lies in a patch, from the patches' features (B, P, D).

    With `binds`, they also name each two of its colour, finish and shape at once, so that the features do too, and a
    mean of the patches still tells which belong together.
    """

    def __init__(self, width: int, *, binds: bool = False) -> None:
        super().__init__()
        bound = BOUND[:3] if binds else ()
        self.bound = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * NUM_VALUES[b]) for a, b in bound])
        self.attributes = nn.ModuleList([nn.Linear(width, size) for size in NUM_VALUES[1:]])
        self.place = nn.Linear(width, 4)

    def forward(self, patches: Tensor, batch: PictureBatch) -> Tensor:
        """The sum of the cross-entropies of colour, finish and shape, of whether there is a thing, and the squared
        errors of its radius and its place in the patch."""
        grid_side = math.isqrt(patches.shape[1])
        thing = centered_things(batch.places, grid_side)
        is_there, index = thing >= 0, thing.clamp(min=0)
        place = self.place(patches).float()
        loss = F.binary_cross_entropy_with_logits(place[..., 0], is_there.float())
        for head, attribute in zip(self.attributes, (COLOR, FINISH, SHAPE), strict=True):
            target = batch.attributes[..., attribute].gather(1, index)[is_there]
            loss = loss + F.cross_entropy(head(patches[is_there]).float(), target)
        codes = batch.attributes.gather(1, index[..., None].expand(-1, -1, 4))[is_there]
        for head, (a, b) in zip(self.bound, BOUND, strict=False):
            target = codes[:, a] * NUM_VALUES[b] + codes[:, b]
            loss = loss + F.cross_entropy(head(patches[is_there]).float(), target)
        known = batch.places.nan_to_num(0.0).gather(1, index[..., None].expand(-1, -1, 3))[is_there]
        where = torch.cat([(known[:, :2] * grid_side).frac(), 4 * known[:, 2:]], dim=1)
        off: Tensor = (place[is_there][:, 1:] - where).square().mean()
        return loss + off


class SeenThings(nn.Module):
    """Heads that name the facts of a picture from one vector (B, D): what is in it, how often, and where."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)  # what pictures have in common says nothing
        self.bound = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * NUM_VALUES[b]) for a, b in BOUND])
        self.counts = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * (MAX_THINGS + 1)) for a in (COLOR, SHAPE)])
        self.total = nn.Linear(width, MAX_THINGS + 1)
        self.places = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * 3) for a in (COLOR, FINISH, SHAPE)])
        self.background = nn.Linear(width, NUM_VALUES[COLOR])

    def forward(self, x: Tensor, batch: PictureBatch) -> Tensor:
        """The sum of the losses of a picture's facts."""
        x = self.norm(x.float())
        is_there = batch.attributes[..., COLOR] >= 0  # (B, T)
        loss = F.cross_entropy(self.total(x).float(), is_there.sum(dim=1))
        loss = loss + F.cross_entropy(self.background(x).float(), batch.background)
        onehot = values_of_things(batch)
        for head, (a, b) in zip(self.bound, BOUND, strict=True):
            target = (onehot[a].mT @ onehot[b]).flatten(1)  # how many of each
            known = target.sum(dim=1) > 0
            shares = target[known] / target[known].sum(dim=1, keepdim=True)
            loss = loss + F.cross_entropy(head(x[known]).float(), shares)
        for head, a in zip(self.counts, (COLOR, SHAPE), strict=True):
            logits = head(x).float().view(-1, MAX_THINGS + 1)
            loss = loss + COUNTED * F.cross_entropy(logits, onehot[a].sum(dim=1).long().flatten())
        for head, a in zip(self.places, (COLOR, FINISH, SHAPE), strict=True):
            where = onehot[a].mT @ batch.places.nan_to_num(0.0)
            guess = head(x).float().view(len(x), NUM_VALUES[a], 3)
            loss = loss + PLACED * (guess - where)[onehot[a].sum(dim=1) == 1].square().mean()
        return loss


class SaidThings(nn.Module):
    """Heads that name the words of a claim from its caption's vector (A, D): see `ClaimBatch.said`.

    Others name, without their order, which two values one thing is said to have, and which values are said to lie on
    which side: sums of these are the claim's place in the fact space.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)  # what captions have in common says nothing
        # of a noun also that it says nothing
        sizes = [*(size + 1 for size in NUM_VALUES * 2), 1 + len(RELATIONS), MAX_THINGS + 2, MAX_THINGS + 2,
                 1 + NUM_VALUES[COLOR]]  # fmt: skip
        self.heads = nn.ModuleList([nn.Linear(width, size) for size in sizes])
        self.bound = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * NUM_VALUES[b]) for a, b in BOUND])
        self.sides = nn.ModuleList([nn.Linear(width, size * len(RELATIONS)) for size in NUM_VALUES])

    def forward(self, x: Tensor, said: Tensor) -> Tensor:
        x, target = self.norm(x.float()), said.clone()
        target[:, :8] += 1
        target[:, 11] += 1
        losses = [F.cross_entropy(head(x).float(), target[:, i]) for i, head in enumerate(self.heads)]
        loss = SAID * torch.stack(losses).mean()
        for head, (a, b) in zip(self.bound, BOUND, strict=True):
            pairs = [(said[:, k + a], said[:, k + b]) for k in (0, 4)]
            loss = loss + _of_pairs(head(x), pairs, NUM_VALUES[b])
        side = said[:, 8] - 1
        opposite = torch.where(side >= 0, side ^ 1, side)
        for a, head in enumerate(self.sides):
            loss = loss + _of_pairs(head(x), [(said[:, a], side), (said[:, 4 + a], opposite)], len(RELATIONS))
        return loss


def _of_pairs(logits: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], size: int) -> Tensor:
    """Cross-entropy of logits (A, first values · size) against the said pairs of codes, (A,) each, −1 for none. These
    share the probability. Claims without a pair count as 0."""
    logits = logits.float()
    target = torch.zeros_like(logits)
    for first, second in pairs:
        is_said = ((first >= 0) & (second >= 0))[:, None]
        target = target + F.one_hot(first.clamp(min=0) * size + second.clamp(min=0), logits.shape[1]) * is_said
    shares = target / target.sum(dim=1, keepdim=True).clamp_min(1)
    return F.cross_entropy(logits, shares)


class StemSeeing(nn.Module):
    """Supervision of all but the last convolution of the image tower's stem. The heads are discarded."""

    def __init__(self, visual: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.stem, self.transform = visual.conv1[:-1], transform
        self.heads = CenteredThings(visual.conv1[-1].in_channels)

    def forward(self, batch: PictureBatch) -> Tensor:
        features = self.stem(self.transform.normalise(batch.pixels)).flatten(2).mT
        loss: Tensor = self.heads(features, batch)
        return loss


class PictureSeeing(nn.Module):
    """Supervision of patches and pooled token by the facts of pictures. The heads are discarded."""

    def __init__(self, visual: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.visual, self.transform = visual, transform
        width = visual.class_embedding.shape[0]
        self.centered, self.seen = CenteredThings(width, binds=True), SeenThings(width)

    def pixels(self, batch: PictureBatch) -> Tensor:
        return self.transform.normalise(batch.pixels)

    def of_states(self, pooled: Tensor, patches: Tensor, batch: PictureBatch) -> Tensor:
        """The loss of the image tower's states: (B, D) and (B, P, D)."""
        loss: Tensor = self.centered(patches, batch) + self.seen(pooled, batch)
        return loss


class FactChoice(nn.Module):
    """Choice among claims by the fact space alone, which learns it in a minute; see `FactSpace`."""

    def __init__(self, space: FactSpace) -> None:
        super().__init__()
        self.space = space

    def forward(self, batch: ClaimBatch) -> Tensor:
        images, texts = self.space.of_pictures(batch.pictures), self.space.of_claims(batch.said)
        return pooled_loss(images, texts, batch.is_true, clamped_scale(self.space.log_scale))


class FactSeeing(nn.Module):
    """Choice among claims of the fact space by pictures as the image tower sees them, its distance to their facts, and
    the naming of these facts."""

    def __init__(self, seeing: PictureSeeing, space: FactSpace) -> None:
        super().__init__()
        self.seeing, self.space = seeing, space

    def pixels(self, batch: ClaimBatch) -> Tensor:
        return self.seeing.pixels(batch.pictures)

    def of_states(self, pooled: Tensor, patches: Tensor, batch: ClaimBatch) -> Tensor:
        """The loss of the image tower's states: (B, D) and (B, P, D)."""
        images = F.normalize((pooled @ self.seeing.visual.proj).float(), dim=-1)
        texts = self.space.of_claims(batch.said)
        loss = pooled_loss(images, texts, batch.is_true, clamped_scale(self.space.log_scale))
        loss = loss + MATCHED * _distance(images, self.space.of_pictures(batch.pictures))
        total: Tensor = loss + NAMED * self.seeing.of_states(pooled, patches, batch.pictures)
        return total


class ClaimNaming(nn.Module):
    """The naming of facts by the words that complete them, with nothing else to learn."""

    def __init__(self, clip: Any, words: WordNaming) -> None:
        super().__init__()
        self.clip, self.words = clip, words

    def forward(self, batch: ClaimBatch) -> Tensor:
        loss: Tensor = self.words(word_states(self.clip, batch.input_ids), batch.input_ids, batch.said)
        return loss


class ClaimReading(nn.Module):
    """Choice among claims by captions as the text tower reads them, the distances of their ends and of the means of
    their words to the claims' places in the fact space, and the naming of facts by the words that complete them and by
    the ends.

    A place is nearly a sum of what words say, so words whose mean lies there leave little for the last block to do.
    """

    def __init__(self, naming: ClaimNaming, said: SaidThings, space: FactSpace) -> None:
        super().__init__()
        self.naming, self.said, self.space = naming, said, space

    def forward(self, batch: ClaimBatch) -> Tensor:
        read = read_captions(self.naming.clip, batch.input_ids)
        pooled = F.normalize(read.ends.float(), dim=-1)
        images, places = self.space.of_pictures(batch.pictures), self.space.of_claims(batch.said)
        loss = pooled_loss(images, pooled, batch.is_true, clamped_scale(self.space.log_scale))
        loss = loss + MATCHED * (_distance(pooled, places) + _distance(read.means, places))
        named = self.naming.words(read.words, batch.input_ids, batch.said)
        total: Tensor = loss + self.said(read.ends, batch.said) + NAMED * named
        return total


class ClaimChoice(nn.Module):
    """Choice among claims by both similarities, and the naming of facts by both towers, whose heads are discarded."""

    def __init__(self, clip: Any, seeing: PictureSeeing, space: FactSpace) -> None:
        super().__init__()
        self.clip, self.seeing, self.space = clip, seeing, space

    def pixels(self, batch: ClaimBatch) -> Tensor:
        return self.seeing.pixels(batch.pictures)

    def of_states(self, pooled: Tensor, patches: Tensor, batch: ClaimBatch) -> Tensor:
        """The loss of the image tower's states: (B, D) and (B, P, D)."""
        projection = self.clip.visual.proj
        images = ImageFeatures(F.normalize((pooled @ projection).float(), dim=-1), patches @ projection)
        texts = encode_by_length(self.clip, batch.input_ids)
        loss = claim_loss(images, texts, batch.is_true, clamped_scale(self.clip.logit_scale))
        kept = _distance(images.pooled, self.space.of_pictures(batch.pictures))
        kept = kept + _distance(texts.pooled, self.space.of_claims(batch.said))
        total: Tensor = loss + KEPT * kept + NAMED * self.seeing.of_states(pooled, patches, batch.pictures)
        return total


def _distance(features: Tensor, targets: Tensor) -> Tensor:
    """Mean of 1 − cosine between unit features and their targets, (N, E) each."""
    return 1 - (features.float() * targets).sum(dim=-1).mean()


def image_states(visual: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the pooled token (B, D) and the patches (B, P, D) from normalised pixels, after the last layer norm and
    before the projection to the shared space."""
    tokens = visual.forward_intermediates(
        pixels, indices=1, normalize_intermediates=True, intermediates_only=True, output_fmt="NLC",
        output_extra_tokens=True,
    )  # fmt: skip
    patches: Tensor = tokens["image_intermediates"][-1]
    is_mean = visual.pool_type == "avg"
    pooled: Tensor = patches.mean(dim=1) if is_mean else tokens["image_intermediates_prefix"][-1][:, 0]
    return pooled, patches


def pooled_loss(images: Tensor, texts: Tensor, is_true: Tensor, scale: Tensor) -> Tensor:
    """Cross-entropies of the true claims by unit features (B, E) and (A, E); `is_true` (A, B) tells of which pictures.

    Each of the first G pictures chooses among the claims of its own group, and each picture among those of any group
    with true and false claims; each claim chooses among all pictures. All right choices share the probability.
    """
    # a caption differs from another by less than bfloat16 shows
    with torch.autocast(is_true.device.type, enabled=False):
        logits = scale * texts.float() @ images.float().T  # (A, B)
        num_groups, num_pictures = len(logits) // K, logits.shape[1]
        groups, right = logits.view(num_groups, K, num_pictures), is_true.reshape(num_groups, K, num_pictures)
        number = torch.arange(num_groups, device=logits.device)
        of_own = choice_loss(groups[number, :, number], right[number, :, number])
        of_all = choice_loss(groups.mT.flatten(0, 1), right.mT.flatten(0, 1))
        return OWN * of_own + ALL * of_all + FOUND * choice_loss(logits, is_true)


def claim_loss(images: ImageFeatures, texts: TextFeatures, is_true: Tensor, scale: Tensor) -> Tensor:
    """Add to `pooled_loss` the choice of each of the first G pictures in its own group by the local similarity."""
    with torch.autocast(is_true.device.type, enabled=False):
        num_groups = len(is_true) // K
        number = torch.arange(num_groups, device=is_true.device)
        words = texts.tokens.reshape(num_groups, -1, texts.tokens.shape[-1])  # (G, K W, E)
        cosines = token_cosines(images.tokens[:num_groups], words).view(num_groups, K, -1)
        local = mean_local_similarity(cosines, texts.mask.reshape(num_groups, K, -1))
        own = is_true.reshape(num_groups, K, -1)[number, :, number]
        of_own = LOCAL * choice_loss(scale * local, own)
        return of_own + pooled_loss(images.pooled, texts.pooled, is_true, scale)


def choice_loss(logits: Tensor, is_right: Tensor) -> Tensor:
    """Mean of −log of the probability of the right choices, (N, choices), over rows with right and wrong ones."""
    is_asked = is_right.any(dim=1) & ~is_right.all(dim=1)
    logits, is_right = logits[is_asked], is_right[is_asked]
    chosen = logits.masked_fill(~is_right, -torch.inf).logsumexp(dim=1)
    loss: Tensor = (logits.logsumexp(dim=1) - chosen).sum() / is_asked.sum().clamp_min(1)
    return loss
