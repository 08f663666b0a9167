"""Attention that a document's position brings by itself: the attention that a dummy in that position receives.

Three estimates of Attn(dummy, k), on a prompt that is prefilled already:

* `exact`, the paper's: for each k the prompt with document k replaced, all K of them. Each continues the cached
  prompt from document k on, so they cost half of K prefills, not K.
* `tree`: for each k a dummy in document k's place, then the question's tail once more, which sees the dummy in place
  of document k. Documents behind k keep the keys and values that they have with the real document k: that is the
  approximation, and why all branches together cost one or two prefills, whatever K is.
* `single`: one prompt with every document replaced. A dummy then competes with dummies.

A dummy is neutral text cut to its document's number of tokens; the newline that ends a document stays.

`tree` takes less with shorter dummies, with dummies that see a window and the prompt's first tokens alone, with only
as many layers as relevance needs, and with a `DummyCache` for the next question over the same documents.

Shapes: L' layers that run, H heads, K documents.
"""

import hashlib
import itertools
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from services.generate.generation.passes import Passes, finish
from services.generate.model.branches import Branch, Branched, Range, Segment
from services.generate.model.kv_cache import KeyValues, Slot
from services.generate.model.language_model import LanguageModel, in_passes
from services.generate.prompts.templates import Prompt

EstimateKind = Literal["exact", "tree", "single"]


@dataclass(frozen=True)
class TreeOptions:
    """Savings of `tree`. None is without.

    dummy_tokens: the most tokens of a dummy; they have the first positions of its document.
    window: number of tokens before its document that a dummy sees, besides the prompt's first `num_sinks`.
    """

    dummy_tokens: int | None = None
    window: int | None = None
    num_sinks: int = 4


@dataclass(frozen=True, eq=False)
class BiasJob:
    """A prompt whose tokens are all in `slot`; `filler_ids` are what dummies are made of, at least one."""

    slot: Slot
    prompt: Prompt
    filler_ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BiasEstimate:
    """`attention` (L', H, K) float32, Attn(dummy, k) of the last prompt row; 0 for an empty document.

    `num_tokens` were run for it, in `num_passes` forward passes if each were of one sequence: K for `exact`, 1 for the
    others, whose branches share theirs, and 0 where nothing had to be run.
    """

    attention: Tensor
    num_tokens: int
    num_passes: int


class DummyCache:
    """Keys and values of dummies, for questions over documents that were asked about before.

    A dummy depends on nothing but itself and the tokens before it, so where a prompt puts its question behind the
    documents the next question finds all of them. Of at most `max_bytes`; what was not used for longest goes first.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[bytes, KeyValues] = OrderedDict()

    def get(self, key: bytes, num_layers: int) -> KeyValues | None:
        """Return the first `num_layers` layers of what was put under a key; None where there are fewer."""
        kept = self._kept.get(key)
        if kept is None or kept.keys.shape[0] < num_layers:
            return None
        self._kept.move_to_end(key)
        return kept

    def put(self, key: bytes, key_values: KeyValues) -> None:
        """Replaces what stood under the key."""
        if (old := self._kept.pop(key, None)) is not None:
            self._num_bytes -= old.num_bytes
        if key_values.num_bytes <= self._max_bytes:
            self._kept[key] = key_values
            self._num_bytes += key_values.num_bytes
        while self._num_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes


@dataclass(frozen=True, eq=False)
class _Planned:
    """A branch of a job, with the documents that it measures and the keys under which its segments are to be kept."""

    branch: Branch
    documents: tuple[int, ...]
    keep_as: bytes | None = None


def estimate_bias(
    model: LanguageModel,
    jobs: Sequence[BiasJob],
    kind: EstimateKind,
    *,
    num_layers: int | None = None,
    options: TreeOptions | None = None,
    dummy_cache: DummyCache | None = None,
) -> list[BiasEstimate]:
    """Attn(dummy, k) of each job's prompt in the first `num_layers` layers, None for all; jobs share their passes.

    `options` and `dummy_cache` are `tree`'s alone. Raises ValueError for a prompt that is not cached whole, that ends
    with a document, or that has documents but no filler for their dummies.
    """
    return finish(estimating(model, jobs, kind, num_layers=num_layers, options=options, dummy_cache=dummy_cache))


def estimating(
    model: LanguageModel,
    jobs: Sequence[BiasJob],
    kind: EstimateKind,
    *,
    num_layers: int | None = None,
    options: TreeOptions | None = None,
    dummy_cache: DummyCache | None = None,
) -> Passes[list[BiasEstimate]]:
    """`estimate_bias`, a pass at a time; the prompts stay in their slots meanwhile."""
    depth = model.config.num_layers if num_layers is None else num_layers
    options = options or TreeOptions()
    planned: list[list[_Planned]] = []
    for job in jobs:
        _check(job)
        max_tokens = options.dummy_tokens if kind == "tree" else None
        dummies = [_dummy(model, job, span, max_tokens) for span in job.prompt.spans]
        if kind == "tree":
            planned.append(_tree(job, dummies, options, dummy_cache, depth))
        else:
            planned.append((_exact if kind == "exact" else _single)(job, dummies))
    branches = [each.branch for some in planned for each in some]
    found: list[Branched] = []
    for together in in_passes(branches, [branch.num_tokens for branch in branches]):
        yield
        found += model.branch(together, num_layers=depth)
    rest = iter(found)
    return [
        _estimate(model, job, some, list(itertools.islice(rest, len(some))), depth, dummy_cache)
        for job, some in zip(jobs, planned, strict=True)
    ]


def num_estimate_tokens(prompt: Prompt, kind: EstimateKind, options: TreeOptions) -> int:
    """Tokens that an estimate runs of which nothing is known yet."""
    num_tokens = len(prompt.input_ids)
    if kind == "exact":
        return sum(num_tokens - start for start, stop in prompt.spans if start < stop)
    if kind == "single":
        return num_tokens - prompt.spans[0][0] if prompt.spans else 0
    limit = num_tokens if options.dummy_tokens is None else options.dummy_tokens
    return sum(
        min(stop - start, limit) + num_tokens - prompt.tail_start for start, stop in prompt.spans if start < stop
    )


def _estimate(
    model: LanguageModel,
    job: BiasJob,
    planned: Sequence[_Planned],
    found: Sequence[Branched],
    num_layers: int,
    dummy_cache: DummyCache | None,
) -> BiasEstimate:
    shape = (num_layers, model.config.num_heads, len(job.prompt.spans))
    attention = torch.zeros(shape, device=model.device)
    for each, branched in zip(planned, found, strict=True):
        attention[:, :, list(each.documents)] = branched.attention.to(attention)
        if dummy_cache is not None and each.keep_as is not None and (dummy := branched.kept[0]) is not None:
            dummy_cache.put(each.keep_as, dummy)
    is_tree = any(len(each.branch.segments) > 1 for each in planned)
    return BiasEstimate(
        attention,
        num_tokens=sum(each.branch.num_tokens for each in planned),
        num_passes=1 if is_tree else len(planned),
    )


def _exact(job: BiasJob, dummies: Sequence[tuple[int, ...]]) -> list[_Planned]:
    """A branch each: the dummy and everything behind it."""
    input_ids = job.prompt.input_ids
    planned = []
    for k, ((start, stop), dummy) in enumerate(zip(job.prompt.spans, dummies, strict=True)):
        if dummy:
            segment = Segment((*dummy, *input_ids[stop:]), start, ((0, start),))
            planned.append(_Planned(Branch(job.slot, (segment,), ((start, stop),)), (k,)))
    return planned


def _single(job: BiasJob, dummies: Sequence[tuple[int, ...]]) -> list[_Planned]:
    """Plan one branch: everything from the first document on, with a dummy for each document."""
    if not any(dummies):
        return []
    replaced = list(job.prompt.input_ids)
    for (start, stop), dummy in zip(job.prompt.spans, dummies, strict=True):
        replaced[start:stop] = dummy
    first = job.prompt.spans[0][0]
    segment = Segment(tuple(replaced[first:]), first, ((0, first),))
    return [_Planned(Branch(job.slot, (segment,), job.prompt.spans), tuple(range(len(dummies))))]


def _tree(
    job: BiasJob,
    dummies: Sequence[tuple[int, ...]],
    options: TreeOptions,
    dummy_cache: DummyCache | None,
    num_layers: int,
) -> list[_Planned]:
    """A branch each: the dummy, then the question's tail, between which the prompt is what it was."""
    prompt = job.prompt
    tail = prompt.input_ids[prompt.tail_start :]
    digests = _prefix_digests(prompt)
    planned = []
    for k, ((start, stop), dummy) in enumerate(zip(prompt.spans, dummies, strict=True)):
        if not dummy:
            continue
        key = _key(digests[k], dummy, options)
        known = None if dummy_cache is None else dummy_cache.get(key, num_layers)
        is_kept = dummy_cache is not None and known is None
        segments = (
            Segment(dummy, start, _seen_by_dummy(start, options), key_values=known, is_kept=is_kept),
            Segment(tail, prompt.tail_start, ((0, start), (stop, prompt.tail_start))),
        )
        branch = Branch(job.slot, segments, ((start, start + len(dummy)),))
        planned.append(_Planned(branch, (k,), key if is_kept else None))
    return planned


def _seen_by_dummy(start: int, options: TreeOptions) -> tuple[Range, ...]:
    if options.window is None:
        return ((0, start),)
    return ((0, min(options.num_sinks, start)), (max(0, start - options.window), start))


def _dummy(model: LanguageModel, job: BiasJob, span: Range, max_tokens: int | None) -> tuple[int, ...]:
    """Filler of a document's number of tokens, or of `max_tokens` if those are fewer.

    A token that ends the document with a newline ends the dummy, too: small models gather a document there.
    """
    start, stop = span
    num_tokens = stop - start if max_tokens is None else min(max_tokens, stop - start)
    last = job.prompt.input_ids[stop - 1]
    if num_tokens == 0 or not model.tokenizer.decode([last]).endswith("\n"):
        return tuple(itertools.islice(itertools.cycle(job.filler_ids), num_tokens))
    return (*itertools.islice(itertools.cycle(job.filler_ids), num_tokens - 1), last)


def _prefix_digests(prompt: Prompt) -> list[bytes]:
    """Digest the tokens before each document."""
    running = hashlib.sha256()
    digests, done = [], 0
    for start, _ in prompt.spans:
        running.update(array("q", prompt.input_ids[done:start]).tobytes())
        digests.append(running.digest())
        done = start
    return digests


def _key(prefix: bytes, dummy: tuple[int, ...], options: TreeOptions) -> bytes:
    view = () if options.window is None else (options.window, options.num_sinks)
    return hashlib.sha256(prefix + array("q", dummy).tobytes() + repr(view).encode()).digest()


def _check(job: BiasJob) -> None:
    prompt = job.prompt
    if not prompt.spans:
        return
    if job.slot.length < len(prompt.input_ids):
        raise ValueError(f"{job.slot.length} of the prompt's {len(prompt.input_ids)} tokens are cached")
    if prompt.tail_start >= len(prompt.input_ids):
        raise ValueError("the prompt ends with a document: no question follows it to be measured")
    if not job.filler_ids:
        raise ValueError("dummies need at least one token of filler")
