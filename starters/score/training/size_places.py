"""Places of captions that say the sizes of two things, by which a frozen image tower tells which thing is the bigger.

The image tower's features tell it, but captions that exchange the sizes lie where they do not choose by it. Each fact
that a claim says of a size, together with a shape, with a color or alone, has a vector r_f, and a caption's place is
t' = normalise(t + Σ r_f). These vectors are few, so they are fitted in a minute to choices among claims about pictures
that were seen once.

Shapes: G pictures, each with a group of K claims, A = G K, E embedding width, M = 12 facts at most of a claim, N facts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.score.fsc_clip import mean_local_similarity, token_cosines
from services.score.model.checkpoint import FscClipCheckpoint
from services.score.model.dense_features import encode_images
from services.score.training.caption_states import encode_by_length
from starters.score.data.claimed_pictures import ClaimBatch
from starters.score.data.claims import RELATIONS, SIZES
from starters.score.training.claim_losses import K, choice_loss
from starters.score.training.fact_space import COLOR, NUM_VALUES, SHAPE, SIZE

# A size is said by an adjective or by a relation, of a shape, of a color, and by itself.
BY_WORD, BY_RELATION = range(2)
NUM_NOUNS = NUM_VALUES[SHAPE] + NUM_VALUES[COLOR] + 1
NUM_FACTS = 2 * len(SIZES) * NUM_NOUNS
BIGGER, SMALLER = 1 + RELATIONS.index("bigger"), 1 + RELATIONS.index("smaller")
# Columns of `ClaimBatch.said`: each noun's attributes and its number, and the relation.
NOUNS = ((0, 9), (4, 10))
RELATION = 8
# Weights of the distance from a caption's own place, and of the vectors' squared lengths.
STAYED, SHORT = 2.0, 0.08
RATE, NUM_ROUNDS, GROUPS_PER_STEP = 0.005, 25, 1024


@dataclass(frozen=True)
class SeenClaims:
    """Claims of pictures as a frozen model sees and reads them, float32.

    `images` (G, E) and `captions` (A, E) are pooled features, `local` (A,) the local similarity of a claim's caption
    and its picture, `input_ids` (A, W) and `said` (A, 12) int64 as in `ClaimBatch`, and `is_true` (A,) bool tells which
    claims are true of their own picture.
    """

    images: Tensor
    captions: Tensor
    local: Tensor
    input_ids: Tensor
    said: Tensor
    is_true: Tensor

    def groups(self, some: Tensor) -> "SeenClaims":
        """Select pictures by number, with their claims."""
        claims = (K * some[:, None] + torch.arange(K)).flatten()
        return SeenClaims(
            self.images[some], self.captions[claims], self.local[claims], self.input_ids[claims], self.said[claims],
            self.is_true[claims],
        )  # fmt: skip


@torch.no_grad()
def see_claims(
    checkpoint: FscClipCheckpoint, batches: Iterable[ClaimBatch], tell: Callable[[], None] = lambda: None
) -> SeenClaims:
    """See and read batches of pictures that each have a group of claims; `tell` is called after each batch."""
    clip: Any = checkpoint.clip.model
    found = []
    for batch in batches:
        images = encode_images(clip, checkpoint.clip.transform.normalise(batch.pictures.pixels))
        texts = encode_by_length(clip, batch.input_ids)
        own = torch.arange(len(batch.input_ids)) // K
        local = mean_local_similarity(token_cosines(images.tokens[own], texts.tokens), texts.mask)
        is_true = batch.is_true[torch.arange(len(own)), own]
        found.append((images.pooled, texts.pooled, local, batch.input_ids, batch.said, is_true))
        tell()
    return SeenClaims(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def size_facts(said: Tensor) -> Tensor:
    """Number the facts that claims say of the sizes of two things: (A, 12) int64 → (A, M) int64; −1 for none.

    Claims about one thing have none, and neither has a thing that is said to be absent.
    """
    is_pair = (said[:, :4] >= 0).any(dim=1) & (said[:, 4:8] >= 0).any(dim=1)
    relation = said[:, RELATION]
    big, small, nothing = (torch.full_like(relation, size) for size in (1, 0, -1))
    first = torch.where(relation == BIGGER, big, torch.where(relation == SMALLER, small, nothing))
    facts = []
    for noun, number in NOUNS:
        is_there = is_pair & (said[:, number] != 0)
        of_relation = first if noun == 0 else torch.where(first >= 0, 1 - first, nothing)
        for way, size in ((BY_WORD, said[:, noun + SIZE]), (BY_RELATION, of_relation)):
            start = (len(SIZES) * way + size) * NUM_NOUNS
            for place, value in (
                (0, said[:, noun + SHAPE]), (NUM_VALUES[SHAPE], said[:, noun + COLOR]), (NUM_NOUNS - 1, 0 * relation),
            ):  # fmt: skip
                facts.append(torch.where(is_there & (size >= 0) & (value >= 0), start + place + value, nothing))
    return torch.stack(facts, dim=1)


def moved(captions: Tensor, facts: Tensor, vectors: Tensor) -> Tensor:
    """Move captions (A, E) by the vectors (N, E) of their facts (A, M), and normalise them."""
    table = torch.cat([vectors, vectors.new_zeros(1, vectors.shape[1])])  # the last one is that of none, −1
    return F.normalize(captions + table[facts].sum(dim=1), dim=-1)


def own_choice(captions: Tensor, seen: SeenClaims, checkpoint: FscClipCheckpoint) -> Tensor:
    """Compute the loss of each picture's choice among its claims by the served score, with these captions (A, E)."""
    own = torch.arange(len(captions)) // K
    pooled = (captions * seen.images[own]).sum(dim=1)
    score = torch.lerp(pooled, seen.local, checkpoint.local_weight)
    return choice_loss(checkpoint.logit_scale * score.view(-1, K), seen.is_true.view(-1, K))


def fit_places(seen: SeenClaims, checkpoint: FscClipCheckpoint, seed: int) -> Tensor:
    """Fit the vectors of facts, (N, E) float32: the choice among claims, near the captions' own places."""
    vectors = nn.Parameter(torch.zeros(NUM_FACTS, seen.captions.shape[1]))
    optimizer, generator = torch.optim.Adam([vectors], lr=RATE), torch.Generator().manual_seed(seed)
    for _ in range(NUM_ROUNDS):
        for some in torch.split(torch.randperm(len(seen.images), generator=generator), GROUPS_PER_STEP):
            part = seen.groups(some)
            captions = moved(part.captions, size_facts(part.said), vectors)
            stayed = 1 - (captions * part.captions).sum(dim=1).mean()
            loss = own_choice(captions, part, checkpoint) + STAYED * stayed + SHORT * vectors.square().sum(dim=1).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return vectors.detach()
