"""Found-in-the-middle calibration: documents are attended by their relevance, not by their position.

A document's attention Attn(k) is modelled as relevance plus a bias of its position (Eq. 3.2, Hsieh et al. 2024). The
attention to a dummy in its place is that bias, so the difference is relevance (Eq. 3.4). Its softmax, α, is the desired
attention to the documents, and Eq. 3.5 rescales the weights of document k by

    c_k = α_k C / Attn(k)        with C = Σ_j N_j Attn(j) / Σ_j N_j α_j

so that the documents' total weight, the sum of every row, and the weight of every other token do not change. With S_k
the total weight on document k, that is

    log c_k = log(N_k α_k / Σ_j N_j α_j) − log(S_k / Σ_j S_j)

the share of the documents' weight that k should have, divided by the share that it has: a difference of two
log-softmaxes, of log α_k + log N_k and of LSE_k, the log of document k's summed exponentials. The partition function
cancels, so adding log c_k to the logits of k's tokens before the softmax is exactly Eq. 3.5. C must be computed for
each row of each head of each layer; otherwise rows would no longer sum to 1.

Relevance is by default one vector per prompt, its mean over layers and heads, or one vector per head ("per_head").

Whole prompts go through torch's SDPA, which returns no weights. Only the few rows that are measured or calibrated have
their scores computed a second time, (B, H, Q, T) with a small Q. From these, `attend_calibrated` computes the softmax
itself and applies Eq. 3.5 to its weights, or adds log c_k to the scores if weights would lose precision. SDPA gives the
same with log c_k in an additive mask (`score_change`), but needs one as wide as the keys for each layer, head and row.
(FlexAttention could add log c_k inside its kernel, but needs it in advance, which requires the same scores; and it has
to be compiled, on a CPU with a C++ compiler.)

Grouped queries: head h reads the keys of group h // (H / H'), so the heads of a group are stacked as rows of one
matrix product and keys are never repeated.

Shapes: B batch, L layers, H query heads, H' key heads, D' head width, Q rows, T tokens that a row may see, K documents,
N tokens of the longest of them.
Everything is float32, or float64 if the input is; half precision is widened before any sum. A document is empty if it
has no tokens, and unseen if a row's mask hides all of them: it is then left out, and the others share the weight.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.generate.retrieval_heads import Head, mean_over_heads
from services.nn.device_copies import integers

Scope = Literal["mean", "per_head"]

LIGHTEST = 1e-30  # share of a row's weight; smaller values near the limit of float32, where they lose precision
MAX_SCORES = 1 << 24  # scores of measured rows in memory at once: 64 MiB of float32


@dataclass(frozen=True, eq=False)
class Documents:
    """Positions of the documents of B rows, padded for different numbers of documents and lengths.

    `index` (B, K, N) int64 are their tokens' places on the token axis, `mask` (B, K, N) bool tells which of these are
    real (padding points at token 0), `num_tokens` (B, K) int64 counts them. Spans of a row do not overlap; `end` comes
    after the last token of all rows.
    """

    index: Tensor
    mask: Tensor
    num_tokens: Tensor
    end: int

    @classmethod
    def of(cls, spans: Sequence[Sequence[tuple[int, int]]], device: torch.device | str = "cpu") -> "Documents":
        """Create from each row's half-open token spans; a row may have none, and a span may be empty.

        Raises ValueError for a span that starts below 0 or ends before it starts.
        """
        for start, end in (span for row in spans for span in row):
            if not 0 <= start <= end:
                raise ValueError(f"({start}, {end}) is not a span of tokens: 0 <= start <= end must hold")
        num_documents = max(map(len, spans), default=0)
        padded = [[*row, *[(0, 0)] * (num_documents - len(row))] for row in spans]
        bounds = np.array(padded, dtype=np.int64).reshape(len(spans), num_documents, 2)
        longest = int((bounds[..., 1] - bounds[..., 0]).max(initial=1))  # so that reductions have something to reduce
        (copied,) = integers(bounds.ravel(), device=torch.device(device))
        starts, ends = copied.view(bounds.shape).unbind(-1)
        num_tokens = ends - starts
        offset = torch.arange(longest, device=copied.device)
        mask = offset < num_tokens[..., None]
        index = (starts[..., None] + offset).masked_fill_(~mask, 0)
        end = bounds[..., 1].max(where=bounds[..., 0] < bounds[..., 1], initial=0)
        return cls(index, mask, num_tokens, int(end))

    @functools.cached_property
    def document_of_token(self) -> Tensor:
        """(B, E) int64, the document that each token belongs to, K for none; E is where the last document ends."""
        num_rows, num_documents, longest = self.index.shape
        end = self.end
        places = torch.where(self.mask, self.index, end).flatten(1)  # padding goes to one extra place, cut off below
        documents = torch.arange(num_documents, device=self.index.device).repeat_interleave(longest)
        of_token = self.index.new_full((num_rows, end + 1), num_documents)
        return of_token.scatter_(1, places, documents.expand(num_rows, -1))[:, :end].contiguous()

    @functools.cached_property
    def membership(self) -> Tensor:
        """(B, K, E) float32, 1 where a token is one of document k's, else 0."""
        documents = torch.arange(self.index.shape[1], device=self.index.device)[:, None]
        return (self.document_of_token[:, None] == documents).float()

    @functools.cached_property
    def is_empty(self) -> Tensor:
        """(B, 1, K) float32, 1 for documents without tokens, else 0."""
        return (self.num_tokens == 0).float()[:, None]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Changes of an answer's attention to its documents.

    `spans` are K half-open ranges of the prompt's tokens; `log_alpha` is (K,), or (L, H, K) for one per layer and head,
    on the host; `layers` are those that are intervened.
    """

    spans: tuple[tuple[int, int], ...]
    log_alpha: Tensor
    layers: frozenset[int]


def document_log_mass(scores: Tensor, documents: Tensor, documents_mask: Tensor) -> Tensor:
    """LSE_k, the log of the summed exponentials of document k's logits.

    `scores` (B, …, T) are logits of any float dtype, −inf where hidden; `documents` (B, K, N) int64 and
    `documents_mask` (B, K, N) bool as in `Documents`, with B = 1 for the same documents in every row. Returns
    (B, …, K), −inf for a document that is empty or unseen.

    Each document is summed relative to its own largest logit: a document whose weight underflows in its row still has
    an LSE, and can be scaled up again.
    """
    logits = _gather(scores, documents, documents_mask, padding=-torch.inf)
    # in place and without torch.logsumexp, which is a dozen small operations: this runs for every generated token
    largest = logits.amax(dim=-1, keepdim=True).clamp_min_(torch.finfo(logits.dtype).min)
    return logits.sub_(largest).exp_().sum(dim=-1).log_().add_(largest.squeeze(-1))


def document_attention(log_mass: Tensor, log_total: Tensor, num_tokens: Tensor) -> Tensor:
    """Attn(k) = exp(LSE_k − LSE) / N_k, the mean weight on a token of document k, from logits alone.

    `log_mass` (…, K); `log_total` (…), LSE over every token that the row sees; `num_tokens` (…, K) or broadcastable to
    it. Returns (…, K), from 0 to 1; 0 for an empty or unseen document.
    """
    share = torch.exp(log_mass - log_total[..., None])
    return torch.where(log_mass > -torch.inf, share / num_tokens.clamp_min(1), 0.0)


def relevance(
    attention: Tensor,
    dummy_attention: Tensor,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[Head] = (),
    scope: Scope = "mean",
) -> Tensor:
    """rel(k) = Attn(doc, k) − Attn(dummy, k), Eq. 3.4, up to a constant that does not affect α.

    Both (…, L, H, K): Attn(k) of the last prompt row with the document in place, and with the dummy. `layers` are those
    that count, None for all, and `heads` the only ones of them, none for all. Returns (…, K), the mean over layers and
    heads, or with `per_head`, which ignores `heads`, (…, L, H, K), where L are the layers that count.
    """
    difference = widen(attention) - widen(dummy_attention)
    if scope == "mean":
        return mean_over_heads(difference, layers=layers, heads=heads)
    return difference if layers is None else difference[..., list(layers), :, :]


def log_alpha(rel: Tensor, temperature: float, num_tokens: Tensor) -> Tensor:
    """log α = log softmax(rel / t), over the documents that are not empty; −inf for those that are.

    `rel` (…, K); `temperature` t in the unit of `rel`, mean weight per token; `num_tokens` (…, K) or broadcastable.
    Returns (…, K); all −inf if every document is empty. The largest `rel` is subtracted before the division, so that
    t → 0 gives log one-hot rather than ∞ − ∞. Raises ValueError for a temperature that is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0, not {temperature}")
    rel = widen(rel)
    is_there = num_tokens > 0
    rel = torch.where(is_there, rel, -torch.inf)
    if rel.shape[-1] == 0:
        return rel
    scaled = (rel - rel.amax(dim=-1, keepdim=True)) / max(temperature, torch.finfo(rel.dtype).tiny)
    return torch.where(is_there, scaled.log_softmax(dim=-1), -torch.inf)


def log_rescale(log_alpha: Tensor, log_mass: Tensor, num_tokens: Tensor) -> Tensor:
    """log c_k of Eq. 3.5, to be added to the logits of document k's tokens.

    `log_alpha` and `num_tokens` (…, K), broadcastable to `log_mass` (…, K), one row of one head of one layer each.
    Returns (…, K); 0 for an empty or unseen document, −inf where α is 0. Unseen documents do not count in Σ_j N_j α_j:
    the weight that they cannot receive stays with the others, so that the documents' total is preserved.
    """
    is_unseen = log_mass == -torch.inf
    wanted = (log_alpha + num_tokens.to(log_mass.dtype).log()).masked_fill(is_unseen, -torch.inf)
    return (wanted.log_softmax(dim=-1) - log_mass.log_softmax(dim=-1)).masked_fill_(is_unseen, 0.0)


def calibrate_weights_(weights: Tensor, documents: Documents, log_alpha: Tensor) -> bool:
    """Apply Eq. 3.5 in place, in few operations and without a second exponential, as decoding does at every token.

    `weights` (B, R, T) of R rows, float32 or float64; `log_alpha` (B, 1, K) or (B, R, K). Returns False and changes
    nothing if a non-empty document has less than `LIGHTEST` of a row, because it is unseen or underflows: `log_rescale`
    is needed then.
    """
    membership = documents.membership.to(weights.dtype)
    inside = weights[..., : membership.shape[-1]]
    mass = torch.bmm(inside, membership.transpose(1, 2))
    divisor = mass + documents.is_empty
    if divisor.numel() and divisor.min() < LIGHTEST:
        return False
    share = (log_alpha + documents.num_tokens[:, None].to(weights.dtype).log()).softmax(dim=-1).nan_to_num_(0.0)
    c = share * mass.sum(dim=-1, keepdim=True) / divisor
    inside.addcmul_(inside, torch.bmm(c.sub_(1).to(weights.dtype), membership))
    return True


def spread(values: Tensor, documents: Documents) -> Tensor:
    """Spread each document's value to its tokens: (B, …, K) → (B, …, E), 0 on tokens outside documents.

    E is where the last document ends; later tokens have no value.
    """
    places = _over_rows(documents.document_of_token, values)
    return F.pad(values, (0, 1)).gather(-1, places.expand(*values.shape[:-1], places.shape[-1]))


def rank(rel: Tensor) -> Tensor:
    """Order documents from the most relevant to the least: (…, K) → (…, K) int64; of equal ones, the earlier first."""
    return rel.argsort(dim=-1, descending=True, stable=True)


def row_scores(query: Tensor, key: Tensor, scaling: float, mask: Tensor | None = None) -> Tensor:
    """Compute the logits of the softmax: (B, H, Q, D') and (B, H', T, D') → (B, H, Q, T), −inf where hidden.

    `mask` (B, 1, T) or (B, Q, T) bool, true where a row sees a key, None if every row sees all. Products of half
    precision are accumulated and returned in float32; float32 and float64 do not change.
    """
    num_batch, num_heads, num_rows, width = query.shape
    rows = query.reshape(-1, num_heads // key.shape[1] * num_rows, width)
    columns = key.flatten(0, 1).transpose(1, 2)
    if key.is_cuda and key.dtype in (torch.bfloat16, torch.float16):
        products = torch.bmm(rows, columns, out_dtype=torch.float32)  # avoids a float32 copy of the keys
    else:
        products = torch.bmm(widen(rows), widen(columns))
    scores = products.mul_(scaling).view(num_batch, num_heads, num_rows, -1)
    return scores if mask is None else scores.masked_fill_(~mask[:, None], -torch.inf)


def measure_scores(scores: Tensor, documents: Documents) -> Tensor:
    """Attn(k), the mean weight of each row on a document's tokens: (B, H, Q, T) → (B, H, Q, K), from 0 to 1.

    0 for a document that is empty or that the row does not see.
    """
    log_mass = document_log_mass(scores, documents.index, documents.mask)
    return document_attention(log_mass, scores.logsumexp(dim=-1), documents.num_tokens[:, None, None])


def measure_rows(
    query: Tensor,
    key: Tensor,
    scaling: float,
    mask: Tensor | None,
    documents: Documents,
    max_scores: int = MAX_SCORES,
) -> Tensor:
    """`measure_scores` of the rows' scores, a few groups of heads at a time: → (B, H, Q, K).

    At most `max_scores` scores are in memory at once, unless a single group has more.
    """
    num_groups = key.shape[1]
    heads_per_group = query.shape[1] // num_groups
    per_group = query.shape[0] * heads_per_group * query.shape[2] * key.shape[2]
    step = max(1, max_scores // max(1, per_group))
    parts = [
        measure_scores(
            row_scores(
                query[:, first * heads_per_group : (first + step) * heads_per_group],
                key[:, first : first + step],
                scaling,
                mask,
            ),
            documents,
        )
        for first in range(0, num_groups, step)
    ]
    return torch.cat(parts, dim=1)


def score_change(scores: Tensor, documents: Documents, log_alpha: Tensor) -> Tensor:
    """Compute the addition of calibration to its rows' scores: (B, H, Q, T) → (B, H, Q, E), log c_k on k's tokens.

    `log_alpha` (B, K), or one per head (B, H, K). 0 on tokens outside documents; E is where the last document ends, and
    nothing is added after it. As SDPA's additive mask, padded to T and −inf for hidden keys, it gives the result of
    `attend_calibrated`.
    """
    rows = log_alpha[:, None, None] if log_alpha.dim() == 2 else log_alpha[:, :, None]
    log_mass = document_log_mass(scores, documents.index, documents.mask)
    return spread(log_rescale(rows, log_mass, documents.num_tokens[:, None, None]), documents)


def attend_calibrated(  # noqa: PLR0913 (a layer's attention and what calibrates it)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    mask: Tensor | None,
    documents: Documents,
    log_alpha: Tensor,
) -> Tensor:
    """Attention of a few rows with their documents' weights rescaled by Eq. 3.5: → (B, H, Q, D'), as `query`.

    Shapes as in `row_scores` and `score_change`, `value` (B, H', T, D'). A row without documents, or with only empty
    ones, is attended as without calibration. Raises nothing; a row that sees no key is NaN.
    """
    scores = row_scores(query, key, scaling, mask)
    # on a GPU always by the scores, because checking whether weights suffice would wait for all queued work
    weights = None if scores.is_cuda else scores.softmax(dim=-1)
    if weights is None or not calibrate_weights_(weights.flatten(1, 2), documents, _of_rows(log_alpha, query)):
        change = score_change(scores, documents, log_alpha)
        scores[..., : change.shape[-1]] += change
        weights = scores.softmax(dim=-1)
    grouped = weights.to(value.dtype).view(-1, query.shape[1] // key.shape[1] * query.shape[2], key.shape[2])
    return torch.bmm(grouped, value.flatten(0, 1)).view(*query.shape[:-1], value.shape[-1])


def _of_rows(log_alpha: Tensor, query: Tensor) -> Tensor:
    """Expand to rows: (B, K) → (B, 1, K), and (B, H, K) → (B, H · Q, K)."""
    return log_alpha[:, None] if log_alpha.dim() == 2 else log_alpha.repeat_interleave(query.shape[2], dim=1)


def widen(x: Tensor) -> Tensor:
    """Convert half precision to float32, and nothing else."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _over_rows(x: Tensor, like: Tensor) -> Tensor:
    """Insert in (B, n) the dimensions that `like` (B, …, n) has in between, with size 1."""
    return x.reshape(x.shape[0], *(1,) * (like.dim() - 2), x.shape[-1])


def _tokens_over_rows(x: Tensor, like: Tensor) -> Tensor:
    """Insert in (B, K, N) the dimensions that `like` (B, …, n) has in between, with size 1."""
    return x.reshape(x.shape[0], *(1,) * (like.dim() - 2), *x.shape[1:])


def _gather(values: Tensor, documents: Tensor, documents_mask: Tensor, *, padding: float) -> Tensor:
    """Gather the values at the documents' tokens, (B, …, T) → (B, …, K, N), widened."""
    num_documents, longest = documents.shape[1:]
    places = _over_rows(documents.flatten(1), values).expand(*values.shape[:-1], num_documents * longest)
    gathered = widen(values.gather(-1, places)).reshape(*values.shape[:-1], num_documents, longest)
    return gathered.masked_fill_(~_tokens_over_rows(documents_mask, values), padding)
