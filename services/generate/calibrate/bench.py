"""Answers to questions under many calibration settings, with one prefill and one estimate for all of them.

`Bench` asks the own engine, `VllmBench` a server of vLLM.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer
from torch import Tensor

from services.core.settings import DeviceName
from services.core.store.errors import StoreError
from services.core.text_files import BadFile
from services.generate.calibrate.search import Measured
from services.generate.calibration import Calibration
from services.generate.capacity import DEFAULT_SHARE
from services.generate.data.questions import Example, Part, QuestionSet, Unanswerable, question_set
from services.generate.generation.bias import (
    BiasEstimate,
    BiasJob,
    DummyOptions,
    EstimateKind,
    estimate_bias,
    num_estimate_tokens,
)
from services.generate.generation.generation import Generation
from services.generate.generation.prompt_calibration import calibration_of, document_relevance
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import (
    CPU_CACHED_TOKENS,
    LanguageModel,
    ModelConfig,
    Prefill,
    Row,
    fitting_tokens,
)
from services.generate.model.profile import OFF, BiasKind, CalibrationProfile, RowScope, SpanRule
from services.generate.prompts.chat import render_question
from services.generate.prompts.templates import QUERY_AWARE, Prompt, Template, filler_ids, tokenise
from services.generate.vllm.client import VllmAddress, VllmClient
from services.generate.vllm.engine import VllmAnswering, VllmEngine
from services.jobs.checkpoints import CheckpointSource, find_checkpoint
from services.jobs.options import parse_numbers
from services.nn.devices import DeviceOptions

# Tells whether an answer of these tokens is complete.
IsComplete = Callable[[tuple[int, ...]], bool]


@dataclass(eq=False)
class PrefilledPrompts:
    """Prompts with room for `max_tokens` of an answer, one cache slot each; `attention` is (L, H, K) per prompt."""

    model: LanguageModel
    prompts: tuple[Prompt, ...]
    slots: tuple[Slot, ...]
    attention: tuple[Tensor, ...]
    max_tokens: int

    def estimate(self, kind: EstimateKind, options: DummyOptions | None = None) -> list[BiasEstimate]:
        """Estimate Attn(dummy, k) of each prompt, over all layers."""
        filler = filler_ids(self.model.tokenizer)
        jobs = [BiasJob(slot, prompt, filler) for slot, prompt in zip(self.slots, self.prompts, strict=True)]
        return estimate_bias(self.model, jobs, kind, options=options)

    def calibrations(
        self, profile: CalibrationProfile, estimates: Sequence[BiasEstimate] | None
    ) -> list[Calibration | None]:
        """Make each prompt's calibration by a profile; None for one without documents. `cached` needs no estimates.

        Raises BadProfile if a cached bias has no table for a prompt's documents.
        """
        return [
            self._calibration(profile, place, None if estimates is None else estimates[place].attention)
            if prompt.spans
            else None
            for place, prompt in enumerate(self.prompts)
        ]

    def answers(
        self, calibrations: Sequence[Calibration | None], row_scope: RowScope, is_complete: IsComplete
    ) -> list[tuple[int, ...]]:
        """Answer greedily, without the end-of-text token; later answers are not affected."""
        lengths = [len(prompt.input_ids) for prompt in self.prompts]
        logits = self.first_logits(calibrations, row_scope)
        answers = self._decoded(logits, calibrations, is_complete)
        for slot, length in zip(self.slots, lengths, strict=True):
            slot.length = length
        if row_scope == "tail":
            # later answers read these rows as keys, but each re-runs only the last row
            self.first_logits([None] * len(self.slots), row_scope)
        return answers

    def first_logits(self, calibrations: Sequence[Calibration | None], row_scope: RowScope) -> Tensor:
        """Run the prompts' last rows once more, which keep their places only with `tail`: (B, V)."""
        rows = zip(self.slots, self.prompts, calibrations, strict=True)
        if row_scope == "tail":
            return self.model.rerun(
                [Row(slot, prompt.input_ids[prompt.tail_start :], calibration) for slot, prompt, calibration in rows]
            )
        # one row of each: decoding runs them as a batch, whereas a re-run would run one prompt after the other
        for slot in self.slots:
            slot.length -= 1
        return self.model.decode([Row(slot, prompt.input_ids[-1:], calibration) for slot, prompt, calibration in rows])

    def _decoded(
        self, logits: Tensor, calibrations: Sequence[Calibration | None], is_complete: IsComplete
    ) -> list[tuple[int, ...]]:
        answers: list[tuple[int, ...]] = [() for _ in self.slots]
        running = list(range(len(self.slots)))
        for step in range(self.max_tokens):
            tokens = logits.argmax(dim=-1).tolist()
            going_on = []
            for place, token in zip(running, tokens, strict=True):
                if token in self.model.config.eos_token_ids:
                    continue
                answers[place] += (token,)
                if not is_complete(answers[place]):
                    going_on.append(place)
            running = going_on
            if not running or step + 1 == self.max_tokens:
                break
            logits = self.model.decode(
                [Row(self.slots[place], answers[place][-1:], calibrations[place]) for place in running]
            )
        return answers

    def _calibration(self, profile: CalibrationProfile, place: int, bias: Tensor | None) -> Calibration:
        attention, prompt = self.attention[place].cpu(), self.prompts[place]
        rel = document_relevance(profile, prompt, attention, None if bias is None else bias.cpu())
        return calibration_of(profile, prompt, rel, len(attention))


@contextmanager
def prefilled(model: LanguageModel, prompts: Sequence[Prompt], max_tokens: int) -> Iterator[PrefilledPrompts]:
    """Prefill prompts side by side in their own cache, which is discarded afterwards."""
    capacity = max((len(prompt.input_ids) for prompt in prompts), default=0) + max_tokens
    cache = model.new_cache(capacity * len(prompts))
    slots = tuple(cache.open(capacity) for _ in prompts)
    done = model.prefill(
        [Prefill(slot, prompt.input_ids, prompt.spans) for slot, prompt in zip(slots, prompts, strict=True)]
    )
    without = torch.zeros(model.config.num_layers, model.config.num_heads, 0)
    attention = tuple(without if one.attention is None else one.attention for one in done)
    yield PrefilledPrompts(model, tuple(prompts), slots, attention, max_tokens)


def in_batches(prompts: Sequence[Prompt], max_tokens: int, max_cached_tokens: int) -> Iterator[range]:
    """Yield ranges of prompts that fit into `max_cached_tokens` with their answers, at least one prompt each."""
    start, longest = 0, 0
    for place, prompt in enumerate(prompts):
        longest = max(longest, len(prompt.input_ids) + max_tokens)
        if place > start and (place + 1 - start) * longest > max_cached_tokens:
            yield range(start, place)
            start, longest = place, len(prompt.input_ids) + max_tokens
    if start < len(prompts):
        yield range(start, len(prompts))


@dataclass(frozen=True)
class Bench:
    """A model, the options of the questions' answers, and the maximum number of prompt tokens in the cache."""

    model: LanguageModel
    questions: QuestionSet
    max_cached_tokens: int = 65_536
    template: Template = QUERY_AWARE
    on_progress: Callable[[int], None] = lambda count: None

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return self.model.config.num_layers

    def prompts(self, examples: Sequence[Example | Unanswerable], span_rule: SpanRule) -> list[Prompt]:
        """Make one prompt per example, as in the service."""
        return question_prompts(self.model.tokenizer, examples, self.template, span_rule)

    def measure(
        self,
        examples: Sequence[Example],
        span_rule: SpanRule,
        kind: EstimateKind,
        options: DummyOptions | None = None,
    ) -> Iterator[Measured]:
        """Yield Attn(k) with documents and with dummies, for all layers and heads, of each example in order."""
        for places, batch in self._batches(examples, span_rule):
            for place, prompt, attention, estimate in zip(
                places, batch.prompts, batch.attention, batch.estimate(kind, options), strict=True
            ):
                yield Measured(
                    attention.cpu(),
                    estimate.attention.cpu(),
                    examples[place].gold,
                    prompt_tokens=len(prompt.input_ids),
                    bias_tokens=estimate.num_tokens,
                )
            self.on_progress(len(places))

    def attention(self, examples: Sequence[Example], span_rule: SpanRule) -> Iterator[Tensor]:
        """Yield Attn(k) with only the documents, (L, H, K), of each example in order."""
        for places, batch in self._batches(examples, span_rule):
            yield from (attention.cpu() for attention in batch.attention)
            self.on_progress(len(places))

    def ask(
        self, profiles: Sequence[CalibrationProfile | None], examples: Sequence[Example | Unanswerable]
    ) -> list[list[bool]]:
        """Return by profile, None for vanilla, which examples are answered right. Raises BadProfile like a profile."""
        right: list[list[bool]] = [[False] * len(examples) for _ in profiles]
        for span_rule in dict.fromkeys((profile or OFF).span_rule for profile in profiles):
            chosen = [place for place, profile in enumerate(profiles) if (profile or OFF).span_rule == span_rule]
            for places, batch in self._batches(examples, span_rule):
                estimates = _Estimates(batch)
                texts: dict[tuple[int, ...], str] = {}
                for number in chosen:
                    for place, answer in zip(
                        places, self._answers(batch, profiles[number], estimates, texts), strict=True
                    ):
                        ends = [end for stop in self.questions.stop if (end := texts[answer].find(stop)) >= 0]
                        text = texts[answer][: min(ends, default=None)]
                        right[number][place] = self.questions.is_right(text, examples[place].answers)
                    self.on_progress(len(places))
        return right

    def first_logits(self, examples: Sequence[Example | Unanswerable], profile: CalibrationProfile) -> Iterator[Tensor]:
        """Yield the logits (V,) of the answer's first token under a profile, of each example in order."""
        for places, batch in self._batches(examples, profile.span_rule):
            calibrations = _calibrations(batch, profile, _Estimates(batch))
            yield from batch.first_logits(calibrations, profile.row_scope).cpu()
            self.on_progress(len(places))

    def _answers(
        self,
        batch: PrefilledPrompts,
        profile: CalibrationProfile | None,
        estimates: "_Estimates",
        texts: dict[tuple[int, ...], str],
    ) -> list[tuple[int, ...]]:
        profile = profile or OFF
        calibrations = _calibrations(batch, profile, estimates)

        def is_complete(answer: tuple[int, ...]) -> bool:
            return any(stop in self._text(answer, texts) for stop in self.questions.stop)

        answers = batch.answers(calibrations, profile.row_scope, is_complete)
        for answer in answers:
            self._text(answer, texts)
        return answers

    def _text(self, answer: tuple[int, ...], texts: dict[tuple[int, ...], str]) -> str:
        """Detokenise an answer once: most settings' answers are equal, and decoding all took longer than the model."""
        if answer not in texts:
            texts[answer] = self.model.tokenizer.decode(list(answer), skip_special_tokens=True)
        return texts[answer]

    def _batches(
        self, examples: Sequence[Example | Unanswerable], span_rule: SpanRule
    ) -> Iterator[tuple[range, PrefilledPrompts]]:
        prompts = self.prompts(examples, span_rule)
        max_tokens = self.questions.max_tokens
        for places in in_batches(prompts, max_tokens, self.max_cached_tokens):
            with prefilled(self.model, [prompts[place] for place in places], max_tokens) as batch:
                yield places, batch


def question_prompts(
    tokenizer: Any, examples: Sequence[Example | Unanswerable], template: Template, span_rule: SpanRule
) -> list[Prompt]:
    """Make one prompt per example, as in the service."""
    return [
        tokenise(tokenizer, render_question(tokenizer, one.question, one.documents, template, span_rule))
        for one in examples
    ]


def _calibrations(
    batch: PrefilledPrompts, profile: CalibrationProfile, estimates: "_Estimates"
) -> Sequence[Calibration | None]:
    """Make each prompt's calibration; None for all by a profile that is off."""
    return batch.calibrations(profile, estimates.of(profile)) if profile.enabled else [None] * len(batch.slots)


class _Estimates:
    """The estimates of a batch's bias, each computed on first use."""

    def __init__(self, batch: PrefilledPrompts) -> None:
        self._batch = batch
        self._made: dict[tuple[EstimateKind, DummyOptions], list[BiasEstimate]] = {}

    def of(self, profile: CalibrationProfile) -> list[BiasEstimate] | None:
        """Return a profile's estimates of the batch; None for a cached bias."""
        if profile.bias == "cached":
            return None
        options = DummyOptions.of(profile)
        key = profile.bias, options
        if key not in self._made:
            self._made[key] = self._batch.estimate(profile.bias, options)
        return self._made[key]


T = TypeVar("T")
Work = Callable[[VllmAnswering], Awaitable[T]]

MAX_AT_ONCE = 16


@dataclass(frozen=True)
class VllmBench:
    """A served model, and the options of the questions' answers. Its methods raise FoveaError as `VllmClient` does."""

    engine: VllmEngine
    questions: QuestionSet
    template: Template = QUERY_AWARE
    on_progress: Callable[[int], None] = lambda count: None

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return self.engine.processor.num_layers

    def prompts(self, examples: Sequence[Example | Unanswerable], span_rule: SpanRule) -> list[Prompt]:
        """Make one prompt per example, as in the service."""
        return question_prompts(self.engine.processor.tokenizer, examples, self.template, span_rule)

    def measure(
        self, examples: Sequence[Example], span_rule: SpanRule, kind: EstimateKind, options: DummyOptions | None = None
    ) -> Iterator[Measured]:
        """Yield Attn(k) with documents and with dummies, `exact` ones for `tree`, of each example in order."""
        options = options or DummyOptions()
        profile = OFF.model_copy(update={"bias": kind, "dummy": options.form})
        prompts = self.prompts(examples, span_rule)
        work = [_work(lambda answering, one: answering.calibrator.measure(one, profile), one) for one in prompts]
        for example, prompt, found in zip(examples, prompts, self._all(work), strict=True):
            assert found.bias is not None, "the profile has no tables"
            num_tokens = num_estimate_tokens(prompt, "exact" if kind == "tree" else kind, options)
            yield Measured(found.attention, found.bias, example.gold, len(prompt.input_ids), num_tokens)

    def ask(
        self, profiles: Sequence[CalibrationProfile | None], examples: Sequence[Example | Unanswerable]
    ) -> list[list[bool]]:
        """Return by profile, None for vanilla, which examples are answered right."""
        asked = [self._generations(examples, profile) for profile in profiles]
        # all answers to one prompt in a row, which measures it once
        work = [_work(_text, of_profile[place]) for place in range(len(examples)) for of_profile in asked]
        texts = iter(self._all(work))
        right: list[list[bool]] = [[] for _ in profiles]
        for example in examples:
            for of_profile in right:
                of_profile.append(self.questions.is_right(next(texts), example.answers))
        return right

    def answers(self, examples: Sequence[Example], profile: CalibrationProfile | None) -> list[str]:
        """Answer as in the service, calibrated by a profile or not."""
        return self._all([_work(_text, one) for one in self._generations(examples, profile)])

    def _generations(
        self, examples: Sequence[Example | Unanswerable], profile: CalibrationProfile | None
    ) -> list[Generation]:
        questions = self.questions
        return [
            Generation(prompt, questions.max_tokens, stop=questions.stop, calibration=profile)
            for prompt in self.prompts(examples, (profile or OFF).span_rule)
        ]

    def _all(self, work: Sequence[Work[T]]) -> list[T]:
        async def run() -> list[T]:
            permits = asyncio.Semaphore(MAX_AT_ONCE)
            async with VllmClient.opened(self.engine.address) as client:
                answering = self.engine.answering(client)

                async def one_of(one: Work[T]) -> T:
                    async with permits:
                        came = await one(answering)
                    self.on_progress(1)
                    return came

                return await asyncio.gather(*map(one_of, work))

        return asyncio.run(run())


AnyBench = Bench | VllmBench

ItemT = TypeVar("ItemT")


def estimates_to_try(kinds: Sequence[BiasKind], *, is_over_vllm: bool) -> tuple[EstimateKind, tuple[BiasKind, ...]]:
    """Return the estimate to try all settings with, and those to choose from; vLLM has no `tree`."""
    usual: EstimateKind = "exact" if is_over_vllm else "tree"
    chosen = tuple(kind for kind in kinds if kind != "tree" or not is_over_vllm) or (usual,)
    return "query" if chosen == ("query",) else usual, chosen


def _work(ask: Callable[[VllmAnswering, ItemT], Awaitable[T]], item: ItemT) -> Work[T]:
    return lambda answering: ask(answering, item)


async def _text(answering: VllmAnswering, generation: Generation) -> str:
    return "".join([progress.text async for progress in answering.answers.answer(generation)])


# Options that calibration and evaluation share, and what they name.
Checkpoint = Annotated[str, typer.Argument(help="A Hugging Face folder, or NAME[@ALIAS] in the store.")]
Data = Annotated[str, typer.Option(help="Questions: a file of lost-in-the-middle (.jsonl.gz) or SynthWiki (.csv).")]
VllmUrl = Annotated[
    str | None,
    typer.Option(
        help="A server of vLLM with Fovea's plug-in that serves the checkpoint, to measure and answer with instead of "
        "this process; FOVEA_GENERATE_VLLM_KEY is its key. It cannot estimate by tree: exact is used for it."
    ),
]
VllmModel = Annotated[
    str, typer.Option(help="The name by which vLLM serves it, or an adapter of it; by default the checkpoint's.")
]


def vllm_address(checkpoint: str, url: str | None, model: str) -> VllmAddress | None:
    """The server that is asked, None for this process; without a name, it serves the checkpoint by its own."""
    if url is None:
        return None
    named = model or Path(checkpoint).name.partition("@")[0]
    return VllmAddress(url, named, os.environ.get("FOVEA_GENERATE_VLLM_KEY", ""))


def open_bench(
    data: str, checkpoint: str, store_url: str | None, device: DeviceName, address: VllmAddress | None
) -> tuple[AnyBench, CheckpointSource, ModelConfig]:
    """Read the data, then the checkpoint, then the model. Raises BadParameter for one that does not exist.

    With an address, the checkpoint is compared with what vLLM serves.
    """
    try:
        questions = question_set(data)
    except BadFile as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error
    try:
        source = find_checkpoint(checkpoint, store_url)
        if address is not None:
            engine = VllmEngine.load(source.directory, address)
            return VllmBench(engine, questions), source, engine.config
        model = LanguageModel.load(source.directory, DeviceOptions(device=device))
        max_cached_tokens = min(CPU_CACHED_TOKENS, fitting_tokens(model, DEFAULT_SHARE))
        return Bench(model, questions, max_cached_tokens), source, model.config
    except (OSError, StoreError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="CHECKPOINT") from error


def drawn(
    questions: QuestionSet, part: Part, num_documents: int, count: int | None, seed: int, option: str
) -> list[Example]:
    """Call `QuestionSet.examples`. Raises BadParameter if there are not as many documents, naming `option`."""
    try:
        return questions.examples(part, num_documents, count, seed)
    except BadFile as error:
        raise typer.BadParameter(str(error), param_hint=f"--data, {option}") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def parse_positions(text: str, num_documents: int) -> tuple[int, ...]:
    """Parse `all`, or numbers separated by commas. Raises BadParameter for a position that does not exist."""
    found = tuple(range(num_documents)) if text == "all" else tuple(sorted(parse_numbers(text, int, "--positions")))
    if found[0] < 0 or found[-1] >= num_documents:
        message = f"the positions of {num_documents} documents are 0 to {num_documents - 1}"
        raise typer.BadParameter(message, param_hint="--positions")
    return found
