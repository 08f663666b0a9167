"""Offline answers are those of one prompt alone, whichever way they are made and whatever they are made beside."""

from collections.abc import Sequence

import pytest

from services.generate.calibrate.bench import Bench, in_batches, prefilled
from services.generate.data.questions import QuestionSet, at_positions
from services.generate.evaluation.protocols import AnswerOptions, answer
from services.generate.generation.bias import DummyOptions
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import BadProfile, BiasTable, CalibrationProfile
from services.generate.prompts.templates import Prompt
from starters.generate.questions import generated_facts
from tests.generate.tiny_models import tiny_model, tiny_tokenizer

MAX_TOKENS = 6
EXAMPLES = at_positions(generated_facts(7, 3), (0, 1, 2))
CALIBRATED = CalibrationProfile(enabled=True, layers=(1, 2), rel_layers=(0, 1, 2), temperature=1e-3)
PROFILES = (
    None,
    CALIBRATED,
    CALIBRATED.model_copy(update={"row_scope": "tail", "bias": "exact"}),
    CALIBRATED.model_copy(update={"rel_scope": "per_head", "bias": "single"}),
    CALIBRATED.model_copy(update={"span_rule": "text", "dummy_tokens": 3, "window": 8}),
    CALIBRATED.model_copy(update={"dummy": "whole"}),
    CALIBRATED.model_copy(
        update={"bias": "cached", "tables": (BiasTable(bucket=16, attention=(0.01, 0.0, 0.02), num_prompts=1),)}
    ),
)


def is_even(text: str, answers: Sequence[str]) -> bool:
    """Stands for a check of answers; random weights give right ones to nothing."""
    return len(text) % 2 == 0


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(tiny_model(), tiny_tokenizer())


@pytest.fixture(scope="module")
def bench(model: LanguageModel) -> Bench:
    return Bench(model, QuestionSet("generated", "", MAX_TOKENS, ("e",), is_even), max_cached_tokens=2000)


@pytest.fixture(scope="module")
def prompts(bench: Bench) -> list[Prompt]:
    return bench.prompts(EXAMPLES, "newline")


@pytest.mark.slow
def test_an_answer_is_the_same_alone_and_among_others_that_come_and_go(
    model: LanguageModel, prompts: list[Prompt]
) -> None:
    options = AnswerOptions(MAX_TOKENS, max_running=3)
    ended: list[int] = []
    together = answer(model, prompts, options, CALIBRATED, ended.append)
    assert together == [answer(model, [prompt], options, CALIBRATED)[0] for prompt in prompts]
    assert sum(ended) == len(prompts)
    assert len(set(together)) > 1
    assert together != answer(model, prompts, options)


def test_an_answer_ends_before_its_stop_string(model: LanguageModel, prompts: list[Prompt]) -> None:
    whole = answer(model, prompts, AnswerOptions(MAX_TOKENS))
    stopped = answer(model, prompts, AnswerOptions(MAX_TOKENS, stop=("e",)))
    assert stopped == [text.split("e")[0] for text in whole]
    assert stopped != whole


def test_a_prompt_without_room_for_its_answer_is_refused_with_its_tokens(
    model: LanguageModel, prompts: list[Prompt]
) -> None:
    length = len(prompts[0].input_ids) + MAX_TOKENS
    with pytest.raises(ValueError, match=f"take {length} tokens; there is room for {length - 1}"):
        answer(model, prompts[:1], AnswerOptions(MAX_TOKENS, max_cached_tokens=length - 1))


@pytest.mark.slow
def test_prompts_prefilled_once_are_answered_as_the_service_answers_them_under_every_setting(
    bench: Bench, model: LanguageModel
) -> None:
    """Run in one batch after another, so that no setting may affect the next."""
    wanted = [
        [is_even(text, ()) for text in answer(model, bench.prompts(EXAMPLES, rule), options, profile)]
        for profile in PROFILES
        for rule in [profile.span_rule if profile else "newline"]
        for options in [AnswerOptions(MAX_TOKENS, stop=("e",))]
    ]
    profiles = [*PROFILES, *reversed(PROFILES)]
    assert bench.ask(profiles, EXAMPLES) == [*wanted, *reversed(wanted)]
    assert len({tuple(one) for one in wanted}) > 2


def test_a_setting_leaves_the_next_ones_answers_as_they_were(model: LanguageModel, prompts: list[Prompt]) -> None:
    with prefilled(model, prompts, MAX_TOKENS) as batch:
        estimates = batch.estimate("tree")
        plain = batch.answers([None] * len(prompts), "last", lambda answer: False)
        calibrated = batch.calibrations(CALIBRATED.model_copy(update={"layers": (0, 1, 2, 3)}), estimates)
        for row_scope in ("tail", "last"):
            assert batch.answers(calibrated, row_scope, lambda answer: False) != plain
            assert batch.answers([None] * len(prompts), "last", lambda answer: False) == plain
        assert all(
            one.attention.equal(other.attention)
            for one, other in zip(estimates, batch.estimate("tree", DummyOptions()), strict=True)
        )


def test_an_answer_that_is_complete_is_not_continued(model: LanguageModel, prompts: list[Prompt]) -> None:
    with prefilled(model, prompts, MAX_TOKENS) as batch:
        none = [None] * len(prompts)
        whole = batch.answers(none, "last", lambda answer: False)
        assert batch.answers(none, "last", lambda answer: len(answer) == 2) == [answer[:2] for answer in whole]


def test_a_cached_bias_without_a_table_for_so_many_documents_is_refused(bench: Bench) -> None:
    table = BiasTable(bucket=16, attention=(0.01, 0.02), num_prompts=1)
    profile = CALIBRATED.model_copy(update={"bias": "cached", "tables": (table,)})
    with pytest.raises(BadProfile, match="no table of the bias for 3 documents"):
        bench.ask([profile], EXAMPLES)


def test_measured_attention_and_bias_are_those_of_the_prompt_alone(bench: Bench) -> None:
    together = list(bench.measure(EXAMPLES, "newline", "tree"))
    assert [one.gold for one in together] == [0, 1, 2, 0, 1, 2, 0]
    attention = list(bench.attention(EXAMPLES, "newline"))
    for example, one, seen in zip(EXAMPLES, together, attention, strict=True):
        (alone,) = bench.measure([example], "newline", "tree")
        assert one.attention.shape == one.bias.shape == (4, 4, 3)
        assert one.attention.allclose(alone.attention, atol=1e-6)
        assert one.bias.allclose(alone.bias, atol=1e-6)
        assert seen.allclose(alone.attention, atol=1e-6)
        assert one.prompt_tokens > one.bias_tokens / 3 > 0


def test_batches_hold_what_fits_and_never_nothing() -> None:
    prompts = [Prompt(tuple(range(length)), (), 0) for length in (10, 20, 90, 5, 5, 5)]
    batches = list(in_batches(prompts, 10, 64))
    assert [list(batch) for batch in batches] == [[0, 1], [2], [3, 4, 5]]
    assert list(in_batches([], 10, 64)) == []
