"""Answers that give up their room and continue later: their readers see a pause, and nothing else."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions, Generation, Progress
from services.generate.generation.input_processor import Item
from services.generate.generation.ranking import ItemResult, Ranking
from services.generate.generation.running_batch import RunningBatch
from services.generate.generation.sampling import Sampling
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import CalibrationProfile
from services.nn.devices import DeviceOptions
from tests.generate.generation.test_running_batch import PROFILES, ask, ids_of, new_batch, text_of
from tests.generate.scarce_memory import ScarceMemory
from tests.generate.test_engine import QUERY
from tests.generate.test_engine_preparing import EXACT, LONG, MANY
from tests.generate.tiny_models import tiny_model, tiny_tokenizer

MAX_TOKENS = 24
SAMPLINGS = {
    "greedy": Sampling(num_logprobs=2),
    "sampled": Sampling(0.9, top_p=0.95, seed=3, num_logprobs=2, presence_penalty=0.5, logit_bias=((5, -1.0),)),
}


@functools.cache
def exact_model(name: str = "llama") -> LanguageModel:
    """In double precision, in which no order of summation makes one token likelier than another."""
    return LanguageModel(tiny_model(name, dtype=torch.float64), tiny_tokenizer())


def asked(seed: int, profile: CalibrationProfile | None, **settings: Any) -> Generation:
    return ask(seed, profile, **{"max_tokens": MAX_TOKENS, **settings})


def run_paused(batch: RunningBatch, generation: Generation, pauses: Sequence[int]) -> list[Progress]:
    """Return the progress of an answer that is paused after each of these token counts, while another one goes on."""
    other = asked(7, None, max_tokens=200)
    came = [one for one in batch.admit([generation, other]) if one.generation is generation]
    while batch.holds(generation):
        if len(came) in pauses:
            assert batch.pause(generation) and not batch.holds(generation)
            for _ in range(3):
                assert [one.generation for one in batch.step()] == [other]
            came += batch.admit([generation])
        else:
            came += [one for one in batch.step() if one.generation is generation]
    batch.cancel(other)
    return came


def rest(batch: RunningBatch) -> list[Progress]:
    """Return all remaining progress, where there is room for it."""
    came: list[Progress] = []
    while batch.num_running:
        assert batch.grow() == []
        came += batch.step()
    return came


def same(one: Progress, other: Progress) -> bool:
    return (
        (one.text, one.num_tokens, one.finish_reason) == (other.text, other.num_tokens, other.finish_reason)
        and [token.token_id for token in one.tokens] == [token.token_id for token in other.tokens]
        and [token.logprob for token in one.tokens] == pytest.approx([token.logprob for token in other.tokens])
        and [[t.token_id for t in token.top] for token in one.tokens]
        == [[t.token_id for t in token.top] for token in other.tokens]
    )


@pytest.mark.parametrize(
    ("name", "sampling", "prefix_cache_bytes"),
    [
        *((name, "sampled", 0) for name in ("plain", "tree", "exact", "cached", "tail", "per head")),
        *((name, "greedy", 10**6) for name in ("plain", "tree", "tail")),
    ],
)
def test_a_paused_answer_goes_on_token_for_token(name: str, sampling: str, prefix_cache_bytes: int) -> None:
    generation = asked(1, PROFILES[name], sampling=SAMPLINGS[sampling], cites=True)
    undisturbed = run_paused(new_batch(exact_model()), generation, ())
    paused = run_paused(new_batch(exact_model(), prefix_cache_bytes=prefix_cache_bytes), generation, (1, 9, 10))
    assert len(paused) == len(undisturbed) == MAX_TOKENS
    assert all(map(same, paused, undisturbed))
    facts, expected = paused[0].facts, undisturbed[0].facts
    assert facts is not None and expected is not None
    assert facts.attention == pytest.approx(expected.attention)
    assert (facts.relevance is None) == (expected.relevance is None)
    assert facts.relevance is None or facts.relevance == pytest.approx(expected.relevance)
    assert [one.facts for one in paused[1:]] == [None] * (MAX_TOKENS - 1)
    assert len(paused[-1].attention) == MAX_TOKENS
    for own, other in zip(paused[-1].attention, undisturbed[-1].attention, strict=True):
        assert own == pytest.approx(other)


def test_a_paused_answer_goes_on_where_layers_see_a_window() -> None:
    generation = asked(1, None)
    expected, paused = (
        run_paused(new_batch(exact_model("qwen2_sliding")), generation, pauses) for pauses in ((), (4, 17))
    )
    assert ids_of(paused) == ids_of(expected)


@pytest.mark.parametrize("name", ["plain", "tree"])
@pytest.mark.slow
def test_a_stop_string_that_began_ahead_of_the_pause_still_ends_the_answer(name: str) -> None:
    generation = asked(2, PROFILES[name])
    text = text_of(run_paused(new_batch(exact_model()), generation, ()))
    middle = len(text) // 2
    stopped = replace(generation, stop=(text[middle - 4 : middle + 4],))
    expected = run_paused(new_batch(exact_model()), stopped, ())
    assert expected[-1].finish_reason == "stop" and len(expected) < MAX_TOKENS
    paused = run_paused(new_batch(exact_model()), stopped, range(1, len(expected)))
    assert text_of(paused) == text_of(expected) and len(paused) == len(expected)


@pytest.mark.slow
def test_answers_that_go_on_together_are_not_mixed_up() -> None:
    generations = [asked(seed, PROFILES[name]) for seed, name in enumerate(("plain", "tree", "tail", "plain"))]
    expected = [ids_of(run_paused(new_batch(exact_model()), one, ())) for one in generations]
    batch = new_batch(exact_model())
    came: dict[int, list[Progress]] = {id(one): [] for one in generations}
    progress = batch.admit(generations)
    for number in range(MAX_TOKENS):
        for one in progress:
            came[id(one.generation)].append(one)
        if number == 5:
            assert [batch.pause(one) for one in generations] == [True] * 4 and batch.num_running == 0
            progress = batch.admit(generations)
        else:
            progress = batch.step()
    assert [ids_of(came[id(one)]) for one in generations] == expected


# Room


def test_a_slot_grows_with_its_answer_and_who_has_no_room_for_more_takes_no_step() -> None:
    model = exact_model()
    first, second = asked(0, None), asked(3, None)
    expected = [ids_of(run_paused(new_batch(model), one, ())) for one in (first, second)]
    longest = max(len(first.prompt.input_ids), len(second.prompt.input_ids))
    batch = new_batch(model, max_cached_tokens=2 * (longest + 9), headroom_tokens=4)
    assert batch.has_room(first, second)
    came = batch.admit([first, second])
    while not (lacking := batch.grow()):
        came += batch.step()
    assert {id(one) for one in lacking} <= {id(first), id(second)}
    before = len(came)
    came += batch.step()
    assert not {id(one.generation) for one in came[before:]} & {id(one) for one in lacking}
    assert batch.pause(second)
    came += rest(batch)
    assert batch.has_room(second)
    came += [*batch.admit([second]), *rest(batch)]
    assert [ids_of([p for p in came if p.generation is one]) for one in (first, second)] == expected


def test_an_answer_is_never_admitted_that_could_not_end_alone() -> None:
    generation = asked(0, None)
    batch = new_batch(exact_model(), max_cached_tokens=generation.num_tokens - 1, headroom_tokens=4)
    assert not batch.has_room(generation)


def test_a_slot_for_which_there_is_no_memory_waits_and_nothing_is_lost() -> None:
    generation = asked(0, None)
    expected = ids_of(run_paused(new_batch(exact_model()), generation, ()))
    batch = new_batch(exact_model(), headroom_tokens=4)
    came = batch.admit([generation])
    while not any(one.is_full for one in batch._running.values()):
        came += batch.step()
    with ScarceMemory("new_zeros"):
        if not (lacking := batch.grow()):  # the cache had doubled: there was room without more memory
            while not lacking:
                came += batch.step()
                lacking = batch.grow()
    assert lacking == [generation]
    came += batch.step()
    assert came[-1].num_tokens == len(came), "it took no step"
    assert ids_of([*came, *rest(batch)]) == expected


def test_a_cancelled_answer_is_forgotten_while_it_is_paused() -> None:
    generation = asked(0, None)
    batch = new_batch(exact_model())
    batch.admit([generation])
    assert batch.pause(generation)
    batch.cancel(generation)
    (first,) = batch.admit([generation])
    assert first.num_tokens == 1


# The engine


def engine_of(**options: Any) -> GenerateEngine:
    settings = {"max_cached_tokens": 20_000, "max_running": 32, "prefix_cache_bytes": 0, **options}
    return GenerateEngine(exact_model(), EXACT, EngineOptions(DeviceOptions("cpu", "float32", 1), **settings))


def finish(engine: GenerateEngine, item: Item, pauses: Sequence[int] = ()) -> list[ItemResult]:
    """Return all outcomes of an item, which is paused at these turns."""
    came = [outcome for _, outcome, _ in engine.admit([item])]
    for turn in range(10_000):
        if turn in pauses:
            engine.pause(item)
            assert engine.num_running == 0 and engine.has_room([item])
            came += [outcome for _, outcome, _ in engine.admit([item])]
        if not engine.num_running:
            return came
        events = [*engine.step(), *(engine.prepare(engine.preparing[0]) if engine.preparing else [])]
        assert all(one is item for one, _, _ in events)
        came += [outcome for _, outcome, _ in events]
    raise AssertionError("it never ended")


@pytest.mark.parametrize(("reorder", "num_documents"), [("prompt", 3), ("prompt", 40), ("none", 40), ("attention", 5)])
@pytest.mark.slow
def test_a_reordered_answer_goes_on_in_its_order(reorder: Any, num_documents: int) -> None:
    engine = engine_of()
    options = AnswerOptions(12, calibration=EXACT, reorder=reorder, ignore_eos=True)
    item = engine.processor.prepare_question(QUERY, MANY[:num_documents], options)
    expected = finish(engine, item)
    # early pauses interrupt what is prepared, later ones the answer
    came = finish(engine, item, [*range(3), *range(40, 400, 3)])
    assert len(came) == len(expected) == 12
    for one, other in zip(came, expected, strict=True):
        assert isinstance(one, Progress) and isinstance(other, Progress) and same(one, other)
    assert isinstance(came[0], Progress) and isinstance(expected[0], Progress)
    assert came[0].facts is not None and expected[0].facts is not None
    assert came[0].facts.order == expected[0].facts.order
    assert not engine._stand_ins and not engine._reordered


@pytest.mark.slow
def test_a_ranking_that_is_paused_begins_anew() -> None:
    engine = engine_of()
    job = engine.processor.prepare_ranking(QUERY, MANY, "calibrated")
    (expected,), (came,) = finish(engine, job), finish(engine, job, range(2))
    assert isinstance(came, Ranking) and came == expected


@pytest.mark.slow
def test_what_is_prepared_finds_its_room_though_others_have_grown_meanwhile() -> None:
    long = engine_of().processor.prepare_question(QUERY, MANY, LONG)
    engine = engine_of(max_cached_tokens=2 * long.num_tokens, headroom_tokens=8)
    beside = engine.processor.prepare_completion("the lighthouse", AnswerOptions(long.num_tokens + 40, ignore_eos=True))
    engine.admit([beside])
    while len(engine._batch._running[id(beside)].input_ids) < long.num_tokens - 2:
        assert engine.lacking_room() == []
        engine.step()
    engine.admit([long])
    lacking: list[Item] = []
    while engine.preparing:
        lacking = engine.lacking_room()
        engine.step()
        engine.prepare(engine.preparing[0])
    assert lacking == [beside]
