"""Losses of pictures with claims: choosing the true claim, finding the pictures of a claim, and naming facts.

Shapes: B pictures, G groups of K claims, A = G K, T places for things, P patches, D width, E embedding width.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import clamped_scale
from services.score.data.claimed_pictures import NUM_ALTERNATIVES, ClaimBatch, PictureBatch, centered_things
from services.score.data.claims import ATTRIBUTES, MAX_THINGS, RELATIONS, VALUES
from services.score.fsc_clip import ImageFeatures, TextFeatures, mean_local_similarity, token_cosines
from services.score.training.objectives import encode_by_length

K = 1 + NUM_ALTERNATIVES
SIZE, COLOR, FINISH, SHAPE = range(4)
NUM_VALUES = tuple(len(VALUES[name]) for name in ATTRIBUTES)
# Weights: of the choice among a picture's own claims by pooled features and by words, of that among all pictures'
# claims, of finding a claim's pictures, and of naming facts.
OWN, LOCAL, ALL, FOUND, NAMED = 1.0, 1.0, 0.7, 0.5, 0.3
# Pairs of attributes whose presence in one thing is asked.
BOUND = ((COLOR, SHAPE), (FINISH, SHAPE), (FINISH, COLOR), (SIZE, SHAPE), (SIZE, COLOR))
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
        self.bound = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * NUM_VALUES[b]) for a, b in BOUND])
        self.counts = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * (MAX_THINGS + 1)) for a in (COLOR, SHAPE)])
        self.total = nn.Linear(width, MAX_THINGS + 1)
        self.places = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * 3) for a in (COLOR, FINISH, SHAPE)])
        self.background = nn.Linear(width, NUM_VALUES[COLOR])

    def forward(self, x: Tensor, batch: PictureBatch) -> Tensor:
        """The sum of the losses of a picture's facts."""
        is_there = batch.attributes[..., COLOR] >= 0  # (B, T)
        loss = F.cross_entropy(self.total(x).float(), is_there.sum(dim=1))
        loss = loss + F.cross_entropy(self.background(x).float(), batch.background)
        onehot = [
            F.one_hot(batch.attributes[..., a].clamp(min=0), NUM_VALUES[a]) * (batch.attributes[..., a, None] >= 0)
            for a in range(4)
        ]  # (B, T, values) each
        for head, (a, b) in zip(self.bound, BOUND, strict=True):
            target = (onehot[a].float().mT @ onehot[b].float()).flatten(1)  # how many of each
            known = target.sum(dim=1) > 0
            shares = target[known] / target[known].sum(dim=1, keepdim=True)
            loss = loss + F.cross_entropy(head(x[known]).float(), shares)
        for head, a in zip(self.counts, (COLOR, SHAPE), strict=True):
            logits = head(x).float().view(-1, MAX_THINGS + 1)
            loss = loss + COUNTED * F.cross_entropy(logits, onehot[a].sum(dim=1).flatten())
        for head, a in zip(self.places, (COLOR, FINISH, SHAPE), strict=True):
            where = onehot[a].float().mT @ batch.places.nan_to_num(0.0)
            guess = head(x).float().view(len(x), NUM_VALUES[a], 3)
            loss = loss + PLACED * (guess - where)[onehot[a].sum(dim=1) == 1].square().mean()
        return loss


class SaidThings(nn.Module):
    """Heads that name the words of a claim from its caption's vector (A, D): see `ClaimBatch.said`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # of a noun also that it says nothing
        sizes = [*(size + 1 for size in NUM_VALUES * 2), 1 + len(RELATIONS), MAX_THINGS + 2, MAX_THINGS + 2]
        self.heads = nn.ModuleList([nn.Linear(width, size) for size in sizes])

    def forward(self, x: Tensor, said: Tensor) -> Tensor:
        target = said.clone()
        target[:, :8] += 1
        losses = [F.cross_entropy(head(x).float(), target[:, i]) for i, head in enumerate(self.heads)]
        return torch.stack(losses).mean()


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


class ClaimReading(nn.Module):
    """Supervision of the end of a caption by the words of its claim. The heads are discarded."""

    def __init__(self, clip: Any) -> None:
        super().__init__()
        self.clip = clip
        self.heads = SaidThings(clip.text_projection.shape[1])

    def forward(self, batch: ClaimBatch) -> Tensor:
        texts = encode_by_length(self.clip, batch.input_ids)
        loss: Tensor = self.heads(ends(texts), batch.said)
        return loss


class ClaimChoice(nn.Module):
    """Choice among claims by both similarities, and the naming of facts by both towers, whose heads are discarded."""

    def __init__(self, clip: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.clip, self.transform = clip, transform
        self.seeing = PictureSeeing(clip.visual, transform)
        self.said = SaidThings(clip.text_projection.shape[1])

    def pixels(self, batch: ClaimBatch) -> Tensor:
        return self.seeing.pixels(batch.pictures)

    def of_states(self, pooled: Tensor, patches: Tensor, batch: ClaimBatch) -> Tensor:
        """The loss of the image tower's states: (B, D) and (B, P, D)."""
        projection = self.clip.visual.proj
        images = ImageFeatures(F.normalize((pooled @ projection).float(), dim=-1), patches @ projection)
        texts = encode_by_length(self.clip, batch.input_ids)
        loss = claim_loss(images, texts, batch.is_true, clamped_scale(self.clip.logit_scale))
        named = self.said(ends(texts), batch.said) + self.seeing.of_states(pooled, patches, batch.pictures)
        total: Tensor = loss + NAMED * named
        return total


def ends(texts: TextFeatures) -> Tensor:
    """Return the last token of each text, (A, E), not normalised."""
    return texts.tokens[torch.arange(len(texts.mask), device=texts.mask.device), texts.mask.sum(dim=1)]


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


def claim_loss(images: ImageFeatures, texts: TextFeatures, is_true: Tensor, scale: Tensor) -> Tensor:
    """Cross-entropies of the true claims; `is_true` (A, B) tells of which pictures.

    Each of the first G pictures chooses among the claims of its own group, by the pooled features and again by the
    local similarity, and each picture among those of any group with true and false claims; each claim chooses among all
    pictures. All right choices share the probability.
    """
    # a caption differs from another by less than bfloat16 shows
    with torch.autocast(is_true.device.type, enabled=False):
        logits = scale * texts.pooled @ images.pooled.T  # (A, B)
        num_groups, num_pictures = len(logits) // K, logits.shape[1]
        groups, right = logits.view(num_groups, K, num_pictures), is_true.reshape(num_groups, K, num_pictures)
        number = torch.arange(num_groups, device=logits.device)
        words = texts.tokens.reshape(num_groups, -1, texts.tokens.shape[-1])  # (G, K W, E)
        cosines = token_cosines(images.tokens[:num_groups], words).view(num_groups, K, -1)
        local = mean_local_similarity(cosines, texts.mask.reshape(num_groups, K, -1))
        own = right[number, :, number]
        of_own = OWN * _choice(groups[number, :, number], own) + LOCAL * _choice(scale * local, own)
        of_all = _choice(groups.mT.flatten(0, 1), right.mT.flatten(0, 1))
        return of_own + ALL * of_all + FOUND * _choice(logits, is_true)


def _choice(logits: Tensor, is_right: Tensor) -> Tensor:
    """Mean of −log of the probability of the right choices, (N, choices), over rows with right and wrong ones."""
    is_asked = is_right.any(dim=1) & ~is_right.all(dim=1)
    logits, is_right = logits[is_asked], is_right[is_asked]
    chosen = logits.masked_fill(~is_right, -torch.inf).logsumexp(dim=1)
    loss: Tensor = (logits.logsumexp(dim=1) - chosen).sum() / is_asked.sum().clamp_min(1)
    return loss
