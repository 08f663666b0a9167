"""Answers to questions under many calibration settings by a server of vLLM, as `Bench` has them of the own engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from services.generate.calibrate.bench import Bench, question_prompts
from services.generate.calibrate.search import Measured
from services.generate.data.question_sets import QuestionSet
from services.generate.data.questions import Example, Unanswerable
from services.generate.generation.bias import DummyOptions, EstimateKind, num_estimate_tokens
from services.generate.generation.generation import Generation
from services.generate.model.profile import OFF, BiasKind, CalibrationProfile, SpanRule
from services.generate.prompts.templates import QUERY_AWARE, Prompt, Template
from services.generate.vllm.client import VllmClient
from services.generate.vllm.engine import VllmAnswering, VllmEngine

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

    def refusal_odds(
        self, examples: Sequence[Example | Unanswerable], profile: CalibrationProfile, token_id: int
    ) -> Iterator[Tensor]:
        """Yield the log odds of an answer's first token under a profile, float64, of each example in order."""
        generations = self._generations(examples, profile)
        work = [_work(lambda answering, one: answering.answers.refusal_odds(one, token_id), one) for one in generations]
        yield from self._all(work)

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
            places = asyncio.Semaphore(MAX_AT_ONCE)
            async with VllmClient.opened(self.engine.address) as client:
                answering = self.engine.answering(client)

                async def one_of(one: Work[T]) -> T:
                    async with places:
                        came = await one(answering)
                    self.on_progress(1)
                    return came

                return await asyncio.gather(*map(one_of, work))

        return asyncio.run(run())


AnyBench = Bench | VllmBench

ItemT = TypeVar("ItemT")


def without_tree(search_bias: EstimateKind, kinds: Sequence[BiasKind]) -> tuple[EstimateKind, tuple[BiasKind, ...]]:
    """Replace `tree`, which vLLM cannot run, by `exact` in the search, and leave it out among those to choose from."""
    others = tuple(kind for kind in kinds if kind != "tree")
    return "exact" if search_bias == "tree" else search_bias, others or ("exact",)


def _work(ask: Callable[[VllmAnswering, ItemT], Awaitable[T]], item: ItemT) -> Work[T]:
    return lambda answering: ask(answering, item)


async def _text(answering: VllmAnswering, generation: Generation) -> str:
    return "".join([progress.text async for progress in answering.answers.answer(generation)])
