"""Attention due to a document's position: that of a dummy in its place, or of the document without a question.

There are three estimates of Attn(dummy, k) by dummies, on a prefilled prompt:

* `exact`, the paper's: for each k the prompt with document k replaced, all K of them. Each continues the cached
  prompt from document k on, so they cost half of K prefills, not K.
* `tree`: for each k a dummy in document k's place, then the question's tail once more, which sees the dummy instead of
  document k. Later documents keep the keys and values that they have with the real document k: this approximation is
  the reason why all branches together cost one or two prefills, for any K.
* `single`: one prompt with every document replaced. A dummy then competes with dummies.

A fourth has no dummies:

* `query`: the attention that document k itself gets when a question without content ("N/A", repeated to the question's
  length) stands in the question's place after the documents, as in in-context reranking (Chen et al. 2024, arXiv
  2410.02642), whose sum over the query's rows is the last row here. Only the prompt's end runs again.

A dummy has its document's number of tokens. In a `framed` one, neutral text replaces only title and text: the
template's own text (`Document [3](Title:`) stays, because attention to it is bias as well. In a `whole` one, neutral
text replaces all but the newline that ends a document.

`tree` costs less with shorter dummies, with dummies that see only a window and the prompt's first tokens, and with only
the layers that relevance needs.

Shapes: L' layers that run, H heads, K documents.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from services.generate.generation.passes import Passes, finish
from services.generate.model.branches import Branch, Range, Segment
from services.generate.model.kv_cache import KeyValues, Slot
from services.generate.model.language_model import LanguageModel, in_passes
from services.generate.model.profile import BiasKind, CalibrationProfile, DummyForm
from services.generate.prompts.templates import CONTENT_FREE, Prompt, filler_ids, with_question
from services.nn.device_copies import to_device

EstimateKind = Literal["exact", "tree", "single", "query"]


def estimated(bias: BiasKind) -> EstimateKind:
    """Return how a bias is estimated: a cached one by `tree`, as it is for numbers of documents without a table."""
    return "tree" if bias == "cached" else bias


@dataclass(frozen=True)
class DummyOptions:
    """The form of dummies, and savings of `tree`, which None turns off.

    dummy_tokens: the most tokens of a whole dummy, or of the filler for one title or text of a framed one; a shorter
    dummy has the first positions of its document, and its filler is weighted by the number of tokens that it replaces.
    window: number of tokens before its document that a dummy sees, besides the prompt's first `num_sinks`.
    """

    form: DummyForm = "framed"
    dummy_tokens: int | None = None
    window: int | None = None
    num_sinks: int = 4

    @classmethod
    def of(cls, profile: CalibrationProfile) -> Self:
        """The options of a profile."""
        return cls(profile.dummy, profile.dummy_tokens, profile.window, profile.num_sinks)


@dataclass(frozen=True, eq=False)
class BiasJob:
    """A prompt whose tokens are all in `slot`; `filler_ids` are the tokens of dummies, at least one."""

    slot: Slot
    prompt: Prompt
    filler_ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BiasEstimate:
    """`attention` (L', H, K) float32, Attn(dummy, k) of the last prompt row; 0 for an empty document.

    `num_tokens` were run for it, in `num_passes` forward passes if each ran one sequence: K for `exact`, 1 for the
    others, whose branches share a pass, and 0 if nothing had to be run.
    """

    attention: Tensor
    num_tokens: int
    num_passes: int


@dataclass(frozen=True)
class Dummy:
    """A dummy's tokens, in stretches, with each one's length and the number of document tokens that it replaces."""

    input_ids: tuple[int, ...]
    stretches: tuple[tuple[int, int], ...]

    def spans(self, start: int) -> tuple[Range, ...]:
        """The positions of the stretches if the dummy begins at `start`."""
        ends = list(itertools.accumulate((length for length, _ in self.stretches), initial=start))
        return tuple(itertools.pairwise(ends))

    @property
    def shares(self) -> tuple[float, ...]:
        """The stretches' shares of the document, which add up to 1."""
        total = sum(replaced for _, replaced in self.stretches)
        return tuple(replaced / total for _, replaced in self.stretches)


@dataclass(frozen=True, eq=False)
class _Planned:
    """A branch of a job, with the document and the share of its document that each of its spans is.

    Without `shares`, each span is a whole document.
    """

    branch: Branch
    documents: tuple[int, ...]
    shares: tuple[float, ...] = ()


def estimate_bias(
    model: LanguageModel,
    jobs: Sequence[BiasJob],
    kind: EstimateKind,
    *,
    num_layers: int | None = None,
    options: DummyOptions | None = None,
) -> list[BiasEstimate]:
    """Attn(dummy, k) of each job's prompt in the first `num_layers` layers, None for all; jobs share their passes.

    All `options` except the form apply only to `tree`, and no option to `query`. Raises ValueError for a prompt that is
    not fully cached, that ends with a document, that has documents but no filler for their dummies, or that lacks the
    places which an estimate replaces: of titles and texts for framed dummies, of the question for `query`.
    """
    return finish(estimating(model, jobs, kind, num_layers=num_layers, options=options))


def estimating(
    model: LanguageModel,
    jobs: Sequence[BiasJob],
    kind: EstimateKind,
    *,
    num_layers: int | None = None,
    options: DummyOptions | None = None,
) -> Passes[list[BiasEstimate]]:
    """Run `estimate_bias` one pass at a time; the prompts stay in their slots meanwhile."""
    depth = model.config.num_layers if num_layers is None else num_layers
    options = options or DummyOptions()
    planned: list[list[_Planned]] = []
    for job in jobs:
        _check(job, options.form, kind)
        if kind == "query":
            planned.append(_query(job, filler_ids(model.tokenizer, CONTENT_FREE)))
            continue
        max_tokens = options.dummy_tokens if kind == "tree" else None
        dummies = dummies_of(model.tokenizer, job.prompt, job.filler_ids, options.form, max_tokens)
        if kind == "tree":
            planned.append(_tree(job, dummies, options))
        else:
            planned.append((_exact if kind == "exact" else _single)(job, dummies))
    branches = [each.branch for some in planned for each in some]
    found: list[Tensor] = []
    while rest := branches[len(found) :]:
        max_tokens = _within(depth, model, (yield))
        if max_tokens is not None and rest[0].num_tokens > max_tokens and rest[0].sees_all:
            found.append((yield from _in_pieces(model, rest[0], depth, max_tokens)))
        else:
            together = next(in_passes(rest, [branch.num_tokens for branch in rest], max_tokens))
            found += model.branch(together, num_layers=depth)
    each_found = iter(found)
    return [
        _estimate(model, job, some, list(itertools.islice(each_found, len(some))), depth)
        for job, some in zip(jobs, planned, strict=True)
    ]


def _within(num_layers: int, model: LanguageModel, max_tokens: int | None) -> int | None:
    """Return how many tokens run through the first layers in the time of `max_tokens` through all."""
    return None if max_tokens is None else max(1, max_tokens * model.config.num_layers // num_layers)


def _in_pieces(model: LanguageModel, branch: Branch, num_layers: int, max_tokens: int | None) -> Passes[Tensor]:
    """Measure a branch that sees all before it in a copy of its prompt, the first piece of at most `max_tokens`."""
    prompt = branch.slot.cache.copy_out(branch.slot, branch.slot.length)
    cache = model.new_cache(prompt.num_tokens, num_layers)
    slot = cache.open(prompt.num_tokens)
    cache.copy_in(slot, KeyValues(prompt.keys[:num_layers], prompt.values[:num_layers]))
    del prompt
    measured: Tensor | None = None
    for place, segment in enumerate(branch.segments):
        slot.length = segment.position
        while slot.length < segment.stop:
            if place or slot.length > segment.position:
                max_tokens = _within(num_layers, model, (yield))
            start = slot.length - segment.position
            input_ids = segment.input_ids[start : None if max_tokens is None else start + max_tokens]
            is_last = segment is branch.segments[-1] and slot.length + len(input_ids) == segment.stop
            measured = model.measure(slot, input_ids, branch.spans if is_last else (), num_layers)
    assert measured is not None  # every branch has spans
    return measured


def num_estimate_tokens(prompt: Prompt, kind: EstimateKind, options: DummyOptions) -> int:
    """Number of tokens that an estimate runs if nothing is cached."""
    num_tokens = len(prompt.input_ids)
    if kind == "exact":
        return sum(num_tokens - start for start, stop in prompt.spans if start < stop)
    if kind == "single":
        return num_tokens - prompt.spans[0][0] if prompt.spans else 0
    if kind == "query":
        return num_tokens - prompt.question[0] if prompt.spans and prompt.question else 0
    return sum(
        stop - start - _num_saved(prompt, k, options) + num_tokens - prompt.tail_start
        for k, (start, stop) in enumerate(prompt.spans)
        if start < stop
    )


def _num_saved(prompt: Prompt, k: int, options: DummyOptions) -> int:
    """Number of tokens by which `dummy_tokens` shortens the dummy of document k."""
    limit = options.dummy_tokens
    replaced = prompt.contents[k] if options.form == "framed" else prompt.spans[k : k + 1]
    return 0 if limit is None else sum(max(0, stop - start - limit) for start, stop in replaced)


def _estimate(
    model: LanguageModel,
    job: BiasJob,
    planned: Sequence[_Planned],
    found: Sequence[Tensor],
    num_layers: int,
) -> BiasEstimate:
    shape = (num_layers, model.config.num_heads, len(job.prompt.spans))
    attention = torch.zeros(shape, device=model.device)
    if planned:
        of_spans = torch.cat(list(found), dim=-1).to(attention)
        shares = torch.zeros(of_spans.shape[-1], shape[-1])
        shares[range(len(shares)), [k for each in planned for k in each.documents]] = torch.tensor(
            [share for each in planned for share in each.shares or (1.0,) * len(each.documents)]
        )
        attention = of_spans @ to_device(shares, model.device)
    is_tree = any(len(each.branch.segments) > 1 for each in planned)
    return BiasEstimate(
        attention,
        num_tokens=sum(each.branch.num_tokens for each in planned),
        num_passes=1 if is_tree else len(planned),
    )


def _exact(job: BiasJob, dummies: Sequence[Dummy]) -> list[_Planned]:
    """Plan a branch for each document: the dummy and everything after it."""
    input_ids = job.prompt.input_ids
    planned = []
    for k, ((start, stop), dummy) in enumerate(zip(job.prompt.spans, dummies, strict=True)):
        if dummy.input_ids:
            segment = Segment((*dummy.input_ids, *input_ids[stop:]), start, ((0, start),))
            planned.append(_Planned(Branch(job.slot, (segment,), ((start, stop),)), (k,)))
    return planned


def _single(job: BiasJob, dummies: Sequence[Dummy]) -> list[_Planned]:
    """Plan one branch: everything from the first document on, with a dummy for each document."""
    if not any(dummy.input_ids for dummy in dummies):
        return []
    replaced = list(job.prompt.input_ids)
    for (start, stop), dummy in zip(job.prompt.spans, dummies, strict=True):
        replaced[start:stop] = dummy.input_ids
    first = job.prompt.spans[0][0]
    segment = Segment(tuple(replaced[first:]), first, ((0, first),))
    return [_Planned(Branch(job.slot, (segment,), job.prompt.spans), tuple(range(len(dummies))))]


def _query(job: BiasJob, content_free: Sequence[int]) -> list[_Planned]:
    """Plan one branch: the prompt from the question after the documents on, with a question without content."""
    prompt = job.prompt
    if not any(start < stop for start, stop in prompt.spans):
        return []
    assert prompt.question is not None  # it was checked
    start = prompt.question[0]
    segment = Segment(with_question(prompt, content_free)[start:], start, ((0, start),))
    return [_Planned(Branch(job.slot, (segment,), prompt.spans), tuple(range(len(prompt.spans))))]


def _tree(job: BiasJob, dummies: Sequence[Dummy], options: DummyOptions) -> list[_Planned]:
    """Plan a branch for each document: the dummy, then the question's tail; the prompt in between is unchanged."""
    prompt = job.prompt
    tail = prompt.input_ids[prompt.tail_start :]
    planned = []
    for k, ((start, stop), dummy) in enumerate(zip(prompt.spans, dummies, strict=True)):
        if not dummy.input_ids:
            continue
        segments = (
            Segment(dummy.input_ids, start, _seen_by_dummy(start, options)),
            Segment(tail, prompt.tail_start, ((0, start), (stop, prompt.tail_start))),
        )
        branch = Branch(job.slot, segments, dummy.spans(start))
        planned.append(_Planned(branch, (k,) * len(dummy.shares), dummy.shares))
    return planned


def _seen_by_dummy(start: int, options: DummyOptions) -> tuple[Range, ...]:
    if options.window is None:
        return ((0, start),)
    return ((0, min(options.num_sinks, start)), (max(0, start - options.window), start))


def dummies_of(
    tokenizer: Any, prompt: Prompt, filler_ids: Sequence[int], form: DummyForm, max_tokens: int | None = None
) -> list[Dummy]:
    """Make a dummy of each document, with at most `max_tokens` of filler (a whole one: with at most as many in all).

    A token that ends the document with a newline also ends the dummy, because small models aggregate a document there.
    """
    return [_dummy(tokenizer, prompt, filler_ids, k, form, max_tokens) for k in range(len(prompt.spans))]


def _dummy(
    tokenizer: Any, prompt: Prompt, filler_ids: Sequence[int], k: int, form: DummyForm, max_tokens: int | None
) -> Dummy:
    start, stop = prompt.spans[k]
    ids = prompt.input_ids
    has_newline = start < stop and tokenizer.decode([ids[stop - 1]]).endswith("\n")
    last = stop - 1 if has_newline else stop
    if form == "whole":
        length = stop - start if max_tokens is None else min(max_tokens, stop - start)
        dummy = (*_filler(filler_ids, length - (stop - last)), *ids[last:stop])
        return Dummy(dummy, ((length, stop - start),) if dummy else ())
    framed: list[int] = []
    stretches = []
    done = start
    for first, end in prompt.contents[k]:
        replaced = min(end, last) - first
        length = replaced if max_tokens is None else min(max_tokens, replaced)
        framed += (*ids[done:first], *_filler(filler_ids, length))
        stretches += [(first - done, first - done), (length, replaced)]
        done = first + replaced
    framed += ids[done:stop]
    stretches.append((stop - done, stop - done))
    return Dummy(tuple(framed), tuple(stretch for stretch in stretches if stretch[1]))


def _filler(filler_ids: Sequence[int], num_tokens: int) -> Iterator[int]:
    return itertools.islice(itertools.cycle(filler_ids), num_tokens)


def _check(job: BiasJob, form: DummyForm, kind: EstimateKind) -> None:
    prompt = job.prompt
    if not prompt.spans:
        return
    if job.slot.length < len(prompt.input_ids):
        raise ValueError(f"{job.slot.length} of the prompt's {len(prompt.input_ids)} tokens are cached")
    if prompt.tail_start >= len(prompt.input_ids):
        raise ValueError("the prompt ends with a document: no question follows it to be measured")
    if kind == "query":
        if prompt.question is None:
            raise ValueError("the prompt does not say where its question is, which query replaces")
        return
    if not job.filler_ids:
        raise ValueError("dummies need at least one token of filler")
    if form == "framed" and len(prompt.contents) < len(prompt.spans):
        raise ValueError("the prompt does not say where titles and texts are, which framed dummies replace")
