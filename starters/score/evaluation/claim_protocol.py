"""Evaluation of a CLIP on claims about pictures: the true one of two, by the fact in which they differ.

Accuracies are in percent, and ties count as wrong. The seed of the pictures is not used by any training.

Shapes: R pairs of claims, B pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from services.nn.clip_model import ClipModel
from services.score.fsc_clip import mean_local_similarity, token_cosines
from services.score.model.dense_features import encode_images, encode_texts
from starters.score.data.claimed_pictures import NUM_ALTERNATIVES, ClaimBatch, ClaimedPictures, Pictures
from starters.score.data.claims import ATTRIBUTES, Claim

CLAIM_SEED, FITTING_SEED = 900_003, 900_004
BATCH_SIZE = 100
KINDS = ("exchanged", "relation", "number", "denied", "absent", *ATTRIBUTES, "background")
# Temperatures of probabilities are sought by this many halvings of the interval.
NUM_HALVINGS = 30
MAX_SCALE = 100.0


@dataclass(frozen=True)
class ClaimScores:
    """`kinds` names the fact of each pair, `similarity` (R, 2, 2) float32 is the global and the local similarity of
    the true and the false claim."""

    kinds: tuple[str, ...]
    similarity: Tensor

    def margins(self, local_weight: float) -> Tensor:
        """Compute the differences of the served scores, (R,)."""
        right, wrong = torch.lerp(self.similarity[:, 0], self.similarity[:, 1], local_weight).unbind(1)
        return right - wrong

    def metrics(self, local_weight: float, name: str = "claims") -> dict[str, float]:
        """Return the accuracy of each kind, and their mean as `name`, to four decimals."""
        is_right = (self.margins(local_weight) > 0).double()
        found = {}
        for kind in KINDS:
            some = torch.tensor([other == kind for other in self.kinds])
            if some.any():
                found[f"{name}_{kind}"] = round(100 * float(is_right[some].mean()), 4)
        return {name: round(sum(found.values()) / max(1, len(found)), 4), **found}

    def best_scale(self, local_weight: float) -> float:
        """Fit the factor of the scores by which their softmax is the most probable, from 0 to MAX_SCALE.

        The log-likelihood Σ log σ(s · margin) is concave in s, so its derivative is halved towards zero.
        """
        margins = self.margins(local_weight).double()
        low, high = 0.0, MAX_SCALE
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            rises = float((margins * torch.sigmoid(-middle * margins)).sum()) > 0
            low, high = (middle, high) if rises else (low, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class ClaimProtocol:
    """Held-out pictures with a group of claims about each; if `close`, of the kinds of `close_claims`."""

    num_pictures: int = 1000
    seed: int = CLAIM_SEED
    close: bool = False

    @torch.no_grad()
    def evaluate(self, clip: ClipModel) -> ClaimScores:
        """Measure a model, in evaluation mode, on its current device."""
        kinds: list[str] = []
        parts = []
        for step, start in enumerate(range(0, self.num_pictures, BATCH_SIZE)):
            count = min(BATCH_SIZE, self.num_pictures - start)
            pictures = Pictures(self.seed, count, clip.transform.size[0])
            data = ClaimedPictures(clip.tokenizer, pictures, count, float(self.close))
            batch = data(step)
            similarity = _similarity(clip, batch).view(count, 1 + NUM_ALTERNATIVES, 2)
            is_true = batch.is_true.view(count, -1, count)
            groups = data.claims(step)
            for i, group in enumerate(groups):
                for k in range(1, len(group)):
                    kind = kind_of_change(group[0], group[k])
                    if kind is not None and is_true[i, 0, i] and not is_true[i, k, i]:
                        kinds.append(kind)
                        parts.append(torch.stack([similarity[i, 0], similarity[i, k]], dim=1))
        return ClaimScores(tuple(kinds), torch.stack(parts))


def claim_metrics(clip: ClipModel, num_pictures: int, local_weight: float) -> dict[str, float]:
    """Measure claims of any kind, `claims`, and close ones, `close`, about as many pictures each."""
    found: dict[str, float] = {}
    for name, is_close in (("claims", False), ("close", True)):
        scores = ClaimProtocol(num_pictures, close=is_close).evaluate(clip)
        found |= scores.metrics(local_weight, name)
    return found


def kind_of_change(claim: Claim, other: Claim) -> str | None:
    """Name the fact in which two claims differ, None if there are several."""
    numbers = [(claim.number, other.number), (claim.second_number, other.second_number)]
    if any(one != another for one, another in numbers):
        return "denied" if any(0 in pair for pair in numbers if pair[0] != pair[1]) else "number"
    if (0 in numbers[0] and claim.first != other.first) or (0 in numbers[1] and claim.second != other.second):
        return "absent"
    if claim.relation != other.relation or (
        claim.relation and (claim.first, claim.second) == (other.second, other.first)
    ):
        return "relation"
    if claim.background != other.background:
        return "background"
    if claim.first != other.first and claim.second != other.second:
        return "exchanged"
    changed = _changed_attributes(claim, other)
    return changed[0] if len(changed) == 1 else None


def _changed_attributes(claim: Claim, other: Claim) -> Sequence[str]:
    pairs: list[tuple[Any, Any]] = [(claim.first, other.first), (claim.second, other.second)]
    return [
        name for name in ATTRIBUTES for a, b in pairs if a is not None and getattr(a, name) != getattr(b, name, None)
    ]


def _similarity(clip: ClipModel, batch: ClaimBatch) -> Tensor:
    """Global and local similarity of each group's picture and its claims: (A, 2) float32, on the CPU."""
    device = clip.model.logit_scale.device
    images = encode_images(clip.model, clip.transform.normalise(batch.pictures.pixels.to(device)))
    texts = encode_texts(clip.model, batch.input_ids.to(device))
    own = torch.arange(len(batch.input_ids), device=device) // (1 + NUM_ALTERNATIVES)
    pooled = (images.pooled[own] * texts.pooled).sum(dim=1)
    local = mean_local_similarity(token_cosines(images.tokens[own], texts.tokens), texts.mask)
    return torch.stack([pooled, local], dim=1).float().cpu()
