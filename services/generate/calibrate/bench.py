"""Answers to questions under many calibration settings, with one prefill and one estimate for all of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from services.generate.calibrate.prefilled_prompts import PrefilledPrompts, in_batches, prefilled
from services.generate.calibrate.search import Measured
from services.generate.calibration import Calibration
from services.generate.data.question_sets import QuestionSet
from services.generate.data.questions import Example, Unanswerable
from services.generate.generation.bias import BiasEstimate, DummyOptions, EstimateKind
from services.generate.generation.relevance import refusal_log_odds
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import OFF, CalibrationProfile, SpanRule
from services.generate.prompts.chat import render_question
from services.generate.prompts.templates import QUERY_AWARE, Prompt, Template, tokenise


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
                        text = self._before_stop(texts[answer])
                        right[number][place] = self.questions.is_right(text, examples[place].answers)
                    self.on_progress(len(places))
        return right

    def first_logits(self, examples: Sequence[Example | Unanswerable], profile: CalibrationProfile) -> Iterator[Tensor]:
        """Yield the logits (V,) of the answer's first token under a profile, of each example in order."""
        for places, batch in self._batches(examples, profile.span_rule):
            calibrations = _calibrations(batch, profile, _Estimates(batch))
            yield from batch.first_logits(calibrations, profile.row_scope).cpu()
            self.on_progress(len(places))

    def refusal_odds(
        self, examples: Sequence[Example | Unanswerable], profile: CalibrationProfile, token_id: int
    ) -> Iterator[Tensor]:
        """Yield the log odds of an answer's first token under a profile, float64, of each example in order."""
        for logits in self.first_logits(examples, profile):
            yield refusal_log_odds(logits, token_id)

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

    def _before_stop(self, text: str) -> str:
        return text[: min((place for stop in self.questions.stop if (place := text.find(stop)) >= 0), default=None)]

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
