"""The running batch: an answer is the same alone and in company, and holds nothing once it has ended."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from services.generate.calibration import Calibration, log_alpha, relevance
from services.generate.generation.bias import BiasJob, estimate_bias
from services.generate.generation.generation import Generation, Progress
from services.generate.generation.prompt_calibration import mean_attention
from services.generate.generation.ranking import run_rankings, running_rankings
from services.generate.generation.running_batch import CITED_ROWS, RunningBatch
from services.generate.generation.sampling import Sampling
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.generate.model.profile import OFF, BiasTable, CalibrationProfile
from services.generate.prompts.ranking import prepare_options
from services.generate.prompts.templates import PLAIN, QUERY_AWARE, Document, Prompt, Template, filler_ids, tokenise
from tests.generate.scarce_memory import ScarceMemory
from tests.generate.tiny_models import VOCAB_SIZE, tiny_model, tiny_tokenizer

MAX_TOKENS = 8
PROFILE = CalibrationProfile(
    enabled=True, bias="tree", temperature=0.001, layers=(1, 2, 3), rel_layers=(0, 1, 2), tables=()
)
TABLES = tuple(
    BiasTable(bucket=32, attention=tuple(0.01 / (k + 1) for k in range(n)), num_prompts=1) for n in (2, 3, 4)
)
PROFILES: dict[str, CalibrationProfile | None] = {
    "plain": None,
    "off": CalibrationProfile(enabled=False),
    "tree": PROFILE,
    "exact": PROFILE.model_copy(update={"bias": "exact"}),
    "single": PROFILE.model_copy(update={"bias": "single", "rel_layers": (0, 1, 2, 3)}),
    "query": PROFILE.model_copy(update={"bias": "query"}),
    "cached": PROFILE.model_copy(update={"bias": "cached", "tables": TABLES}),
    "heads": PROFILE.changed({"rel_layers": (0, 2), "rel_heads": ((0, 3), (2, 1))}),
    "tail": PROFILE.model_copy(update={"row_scope": "tail"}),
    "per head": PROFILE.model_copy(update={"rel_scope": "per_head", "layers": (0, 2)}),
    "whole dummies": PROFILE.model_copy(update={"dummy": "whole"}),
    "shorter dummies": PROFILE.model_copy(update={"dummy_tokens": 6, "window": 8}),
}


# Sampled tokens are compared, and a sum in another order may turn one into its neighbour.


@functools.cache
def model(name: str = "llama") -> LanguageModel:
    return LanguageModel(tiny_model(name), tiny_tokenizer())


@functools.cache
def batch_of(name: str = "llama") -> RunningBatch:
    """A batch that keeps nothing of prompts, for answers that are wanted alone."""
    return new_batch(model(name))


def new_batch(model: LanguageModel, **settings: Any) -> RunningBatch:
    return RunningBatch(model, **{"max_cached_tokens": 20_000, "max_running": 64, "prefix_cache_bytes": 0, **settings})


def prompt_of(question: str, num_documents: int, *, template: Template = QUERY_AWARE, seed: int = 0) -> Prompt:
    names = ("lighthouse", "harbour", "island", "mainland", "keeper")
    documents = [
        Document(
            f"The {names[(k + seed) % 5]} was built in {1900 + 7 * k + seed}."
            + " Many people came." * ((k + seed) % 3),
            title=f"The {names[(k + seed) % 5]}",
        )
        for k in range(num_documents)
    ]
    return tokenise(model().tokenizer, template.render(question, documents))


def ask(seed: int = 0, profile: CalibrationProfile | None = None, **settings: Any) -> Generation:
    """A question over two to four documents."""
    prompt = prompt_of(f"who kept the lighthouse {seed}", 2 + seed % 3, seed=seed)
    return Generation(prompt, **{"max_tokens": MAX_TOKENS, "ignore_eos": True, "calibration": profile, **settings})


def run(batch: RunningBatch, *generations: Generation) -> list[list[Progress]]:
    """Return each generation's progress, all admitted together."""
    came: dict[int, list[Progress]] = {id(one): [] for one in generations}
    progress = batch.admit(generations)
    while True:
        for one in progress:
            came[id(one.generation)].append(one)
        if not batch.num_running:
            return [came[id(one)] for one in generations]
        assert not batch.grow(), "there is room for all"
        progress = batch.step()


def ids_of(progress: Sequence[Progress]) -> list[int]:
    return [token.token_id for one in progress for token in one.tokens]


def text_of(progress: Sequence[Progress]) -> str:
    return "".join(one.text for one in progress)


def alone(generation: Generation, name: str = "llama") -> list[Progress]:
    return run(batch_of(name), generation)[0]


# An answer is the model's


@pytest.mark.parametrize("profile", PROFILES)
def test_options_over_documents_have_the_probabilities_of_an_answers_first_token(profile: str) -> None:
    own = PROFILES[profile] or OFF
    documents = (Document("The harbour was built by Ada."), Document("Ada lived there.", title="The lighthouse"))
    messages = [{"role": "user", "content": "Who kept the lighthouse?\nA. Ada\nB. Nobody"}]
    job = prepare_options(model().tokenizer, 4096, messages, ("A", "B"), documents, own.span_rule)
    sampling = Sampling(num_logprobs=VOCAB_SIZE)
    [first] = alone(Generation(job.prompts[0], 1, sampling, calibration=own, ignore_eos=True))
    logprobs = {one.token_id: one.logprob for one in first.tokens[0].top}
    expected = torch.tensor([logprobs[token_id] for token_id in job.answer_ids or ()]).softmax(dim=0).tolist()
    assert run_rankings(model(), [job, job], own)[1].relevance_scores == pytest.approx(expected, abs=1e-5)
    in_pieces = running_rankings(model(), [job], own)
    next(in_pieces)
    with pytest.raises(StopIteration) as ended:
        while True:
            in_pieces.send(7)
    assert ended.value.value[0].relevance_scores == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_an_echoed_prompts_tokens_have_the_models_log_probabilities_whatever_is_cached(num_tokens: int) -> None:
    batch = new_batch(model(), prefix_cache_bytes=2**24)
    prompt = Prompt(ask(2).prompt.input_ids, (), 0)
    scored = Generation(prompt, num_tokens, Sampling(num_logprobs=2), echo="the prompt", ignore_eos=True)
    plain = Generation(prompt, MAX_TOKENS, ignore_eos=True)
    with torch.inference_mode():
        logprobs = (
            tiny_model("llama", attention="eager")(torch.tensor([prompt.input_ids])).logits[0, :-1].log_softmax(dim=-1)
        )
    expected = logprobs.gather(1, torch.tensor(prompt.input_ids[1:])[:, None])[:, 0]
    for company in ((), (plain,), (plain, replace(scored)), ()):
        came = run(batch, *company, scored)[-1]
        facts = came[0].facts
        assert facts is not None
        assert [token.token_id for token in facts.scored] == list(prompt.input_ids)
        assert facts.scored[0].logprob is None
        torch.testing.assert_close(torch.tensor([one.logprob for one in facts.scored[1:]]), expected)
        tops = [[top.token_id for top in one.top] for one in facts.scored[1:]]
        assert tops == logprobs.topk(2).indices.tolist()
        assert (came[-1].num_tokens, came[-1].finish_reason, facts.echo) == (num_tokens, "length", "the prompt")
    assert text_of(run(batch, plain)[0]) == text_of(alone(plain))


@pytest.mark.parametrize("name", ["llama", "qwen2_sliding"])
@pytest.mark.parametrize("profile", ["off", "last layer", "heads"])
def test_an_answer_that_cites_has_the_attention_of_a_prompt_that_ends_at_each_of_its_tokens(
    name: str, profile: str
) -> None:
    # what is calibrated after the layers that are measured does not change their attention
    own = PROFILES.get(profile) or PROFILE.model_copy(update={"layers": (3,)})
    if profile == "heads":
        own = own.model_copy(update={"layers": (3,)})
    generation = ask(2, own, max_tokens=CITED_ROWS + 3, cites=True)
    came = alone(generation, name)
    attention = [row for one in came for row in one.attention]
    assert [len(one.attention) for one in came if one.attention] == [CITED_ROWS, 3]
    answer = ids_of(came)
    for place in (0, 1, CITED_ROWS, len(answer) - 1):
        input_ids = (*generation.prompt.input_ids, *answer[:place])
        slot = model(name).new_cache(len(input_ids)).open(len(input_ids))
        (prefilled,) = model(name).prefill([Prefill(slot, input_ids, generation.prompt.spans)])
        assert attention[place] == pytest.approx(mean_attention(own, prefilled.attention), rel=1e-3, abs=1e-6)
    assert [one.text for one in came] == [one.text for one in alone(replace(generation, cites=False), name)]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2_sliding", "qwen3"])
@pytest.mark.slow
def test_a_plain_answer_is_the_one_that_transformers_gives(name: str) -> None:
    reference: Any = tiny_model(name, attention="eager")
    for seed in range(3):
        generation = ask(seed)
        inputs = torch.tensor([generation.prompt.input_ids])
        expected = reference.generate(
            inputs, max_new_tokens=MAX_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert ids_of(alone(generation, name)) == expected[0, inputs.shape[1] :].tolist()


@pytest.mark.parametrize("row_scope", ["last", "tail"])
@pytest.mark.parametrize("bias", ["exact", "tree", "single", "query"])
def test_a_calibrated_answer_follows_the_recipe(bias: Any, row_scope: Any) -> None:
    profile = PROFILE.model_copy(update={"bias": bias, "row_scope": row_scope})
    generation = ask(1, profile)
    prompt, lm = generation.prompt, model()
    slot = lm.new_cache(2000).open(2000)
    (prefilled,) = lm.prefill([Prefill(slot, prompt.input_ids, prompt.spans)])
    (estimate,) = estimate_bias(lm, [BiasJob(slot, prompt, filler_ids(lm.tokenizer))], bias)
    assert prefilled.attention is not None
    rel = relevance(prefilled.attention, estimate.attention, layers=profile.rel_layers)
    num_tokens = torch.tensor([end - start for start, end in prompt.spans])
    alpha = log_alpha(rel, profile.temperature, num_tokens)
    calibration = Calibration(prompt.spans, alpha, frozenset(profile.layers))
    first = prompt.tail_start if row_scope == "tail" else len(prompt.input_ids) - 1
    logits = lm.rerun([Row(slot, prompt.input_ids[first:], calibration)])
    expected = []
    for _ in range(MAX_TOKENS):
        expected.append(int(logits.argmax()))
        logits = lm.decode([Row(slot, (expected[-1],), calibration)])
    progress = alone(generation)
    assert ids_of(progress) == expected
    facts = progress[0].facts
    assert facts is not None and facts.relevance is not None
    torch.testing.assert_close(torch.tensor(facts.relevance), rel, atol=1e-6, rtol=1e-4)
    assert facts.calibration_passes == estimate.num_passes


@pytest.mark.slow
def test_calibration_changes_answers() -> None:
    answers = {
        name: tuple(tuple(ids_of(alone(ask(seed, profile)))) for seed in range(8)) for name, profile in PROFILES.items()
    }
    assert answers["plain"] == answers["off"]
    assert len({answers[name] for name in ("plain", "tree", "tail", "per head")}) == 4


def test_attention_is_told_as_the_model_pays_it_before_calibration() -> None:
    generation = ask(2)
    eager: Any = tiny_model(attention="eager")
    weights = eager(torch.tensor([generation.prompt.input_ids]), output_attentions=True).attentions
    last = torch.stack([layer[0, :, -1] for layer in weights])
    expected = [last[..., start:end].mean(dim=-1) for start, end in generation.prompt.spans]
    for profile, layers in ((None, [0, 1, 2, 3]), (PROFILE, list(PROFILE.rel_layers))):
        facts = alone(replace(generation, calibration=profile))[0].facts
        assert facts is not None and facts.order == tuple(range(4))
        assert facts.attention == pytest.approx([float(own[layers].mean()) for own in expected], rel=1e-4)
        assert (facts.relevance is None) == (profile is None)
    with_heads = alone(replace(generation, calibration=PROFILES["heads"]))[0].facts
    assert with_heads is not None
    of_heads = [float((own[0, 3] + own[2, 1]) / 2) for own in expected]
    assert with_heads.attention == pytest.approx(of_heads, rel=1e-4)


def test_all_heads_of_the_layers_answer_as_the_layers_do() -> None:
    heads = PROFILE.changed({"rel_heads": [(layer, head) for layer in PROFILE.rel_layers for head in range(4)]})
    for seed in range(3):
        with_heads, with_layers = alone(ask(seed, heads)), alone(ask(seed, PROFILE))
        assert ids_of(with_heads) == ids_of(with_layers)
        facts = with_heads[0].facts
        assert facts is not None and facts.applied == heads
        assert replace(facts, applied=PROFILE) == with_layers[0].facts


@pytest.mark.parametrize("num_documents", [0, 1])
def test_with_fewer_than_two_documents_there_is_nothing_to_calibrate(num_documents: int) -> None:
    plain = Generation(prompt_of("who kept the lighthouse", num_documents), 6)
    calibrated = replace(plain, calibration=PROFILE)
    assert ids_of(alone(calibrated)) == ids_of(alone(plain))
    facts = alone(calibrated)[0].facts
    assert facts is not None and facts.relevance is None and facts.calibration_passes == 0
    assert len(facts.attention) == num_documents


def test_a_cached_bias_costs_no_passes_and_gives_way_to_tree_where_there_is_no_table() -> None:
    with_table, without = (
        alone(ask(0, PROFILES["cached"])),
        alone(ask(0, PROFILE.model_copy(update={"bias": "cached"}))),
    )
    assert with_table[0].facts is not None and with_table[0].facts.calibration_passes == 0
    assert without[0].facts is not None and without[0].facts.calibration_passes == 1
    assert ids_of(without) == ids_of(alone(ask(0, PROFILE)))


# An answer does not depend on its neighbours


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.slow
def test_an_answer_is_the_same_alone_and_among_sixteen(name: str) -> None:
    generations = [
        ask(seed, PROFILES[name], sampling=Sampling(0.8 * (seed % 2), top_p=0.9, seed=seed, num_logprobs=1))
        for seed in range(16)
    ]
    together = run(new_batch(model()), *generations)
    for generation, progress in zip(generations, together, strict=True):
        expected = alone(generation)
        assert text_of(progress) == text_of(expected)
        assert ids_of(progress) == ids_of(expected)
        logprobs = [[token.logprob for one in some for token in one.tokens] for some in (progress, expected)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


@pytest.mark.slow
def test_an_answer_is_the_same_whoever_joins_and_leaves_meanwhile() -> None:
    profiles = list(PROFILES.values())
    generations = [
        ask(seed, profiles[seed % len(profiles)], max_tokens=3 + seed % 9, sampling=Sampling(seed % 2, seed=seed))
        for seed in range(24)
    ]
    batch = new_batch(model(), prefix_cache_bytes=10**6)
    came: dict[int, list[Progress]] = {id(one): [] for one in generations}
    waiting, cancelled = list(generations), []
    for turn in range(100):
        progress = batch.admit(waiting[: turn % 3])
        del waiting[: turn % 3]
        if turn in (4, 8) and progress and progress[0].finish_reason is None:
            cancelled.append(progress[0].generation)
            batch.cancel(progress[0].generation)
        for one in [*progress, *batch.step()]:
            came[id(one.generation)].append(one)
        if not waiting and not batch.num_running:
            break
    assert not waiting and len(cancelled) == 2
    for generation in generations:
        if generation not in cancelled:
            assert ids_of(came[id(generation)]) == ids_of(alone(generation))


@pytest.mark.slow
def test_prompts_over_the_token_cap_are_prefilled_one_after_the_other() -> None:
    generations = [ask(seed, PROFILE) for seed in range(5)]
    together = run(new_batch(model(), max_prefill_tokens=10), *generations)
    assert [ids_of(progress) for progress in together] == [ids_of(alone(one)) for one in generations]


# How an answer ends


def test_an_answer_ends_after_max_tokens() -> None:
    for number in (1, 2, 7):
        progress = alone(ask(0, max_tokens=number))
        assert [one.num_tokens for one in progress] == list(range(1, number + 1))
        assert [one.finish_reason for one in progress] == [None] * (number - 1) + ["length"]
        assert len(ids_of(progress)) == number


@pytest.mark.slow
def test_the_text_is_what_the_tokenizer_makes_of_the_tokens() -> None:
    for seed in range(6):
        progress = alone(ask(seed, max_tokens=30))
        assert text_of(progress) == model().tokenizer.decode(ids_of(progress), skip_special_tokens=True)


def test_the_end_of_text_token_ends_an_answer_and_is_no_part_of_it() -> None:
    bias = ((1, 100.0),)
    progress = alone(ask(0, ignore_eos=False, sampling=Sampling(logit_bias=bias)))
    assert [(one.text, one.tokens, one.num_tokens, one.finish_reason) for one in progress] == [("", (), 1, "stop")]
    ignoring = alone(ask(0, ignore_eos=True, max_tokens=3, sampling=Sampling(logit_bias=bias)))
    assert ids_of(ignoring) == [1, 1, 1] and ignoring[-1].finish_reason == "length"


@pytest.mark.slow
def test_a_stop_string_ends_an_answer_and_is_no_part_of_it() -> None:
    whole = text_of(alone(ask(0, max_tokens=40)))
    stop = whole[len(whole) // 2 :][:3]
    progress = alone(ask(0, max_tokens=40, stop=("never", stop)))
    assert text_of(progress) == whole[: whole.index(stop)]
    assert progress[-1].finish_reason == "stop"
    assert progress[-1].num_tokens < 40


def test_log_probabilities_come_with_the_tokens_bytes() -> None:
    progress = alone(ask(0, sampling=Sampling(num_logprobs=2)))
    tokens = [token for one in progress for token in one.tokens]
    assert len(tokens) == MAX_TOKENS
    for token in tokens:
        assert token.top[0].token_id == token.token_id and token.top[0].logprob == token.logprob
        assert token.utf8 == b"" or token.text in model().tokenizer.decode([token.token_id])


# Room


def test_has_room_says_what_fits_and_a_cancelled_answer_makes_room_at_once() -> None:
    first, second = ask(0), ask(1)
    needed = 2 * max(first.num_tokens, second.num_tokens)
    batch = new_batch(model(), max_cached_tokens=needed)
    assert batch.has_room(first, second) and not batch.has_room(first, second, ask(2))
    batch.admit([first, second])
    assert batch.num_running == 2 and not batch.has_room(ask(0, max_tokens=1))
    batch.cancel(first)
    assert batch.num_running == 1 and batch.has_room(first)
    batch.cancel(first)
    assert batch.num_running == 1
    rest = batch.step()
    assert [one.generation for one in rest] == [second]


def test_the_share_of_the_room_is_of_places_or_of_memory_whichever_is_scarcer() -> None:
    batch = new_batch(model(), max_cached_tokens=100 * ask(0).num_tokens, max_running=4)
    batch.admit([ask(0), ask(1)])
    assert batch.room_share() == 0.5
    assert batch.room_share(ask(2), ask(0), ask(1)) == 1.25
    long = ask(0)
    narrow = new_batch(model(), max_cached_tokens=2 * long.num_tokens, max_running=100)
    assert narrow.room_share(long, long) == 1
    assert narrow.room_share(long, long, long) == 1.5


def test_no_more_run_than_may() -> None:
    batch = new_batch(model(), max_running=2)
    assert not batch.has_room(ask(0), ask(1), ask(2))
    batch.admit([ask(0), ask(1)])
    assert not batch.has_room(ask(2))


def test_an_admission_that_fails_leaves_nothing_once_it_is_cancelled() -> None:
    batch = new_batch(model(), max_cached_tokens=3 * ask(2).num_tokens)
    running = ask(0)
    progress = batch.admit([running])
    refused = [ask(1), ask(2), ask(4)]
    with pytest.raises(ValueError, match="does not fit"):
        batch.admit(refused)
    for generation in refused:
        batch.cancel(generation)
    assert batch.num_running == 1 and batch.has_room(ask(1), ask(2))
    while batch.num_running:
        progress += batch.step()
    assert ids_of(progress) == ids_of(alone(running))


@pytest.mark.parametrize("settings", [{"max_tokens": 0}, {"prompt": Prompt((), (), 0)}])
def test_an_answer_of_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        replace(ask(0), **settings)


# What prompts share


@pytest.mark.parametrize("prefix_cache_bytes", [0, 10**6])
@pytest.mark.parametrize("name", ["plain", "tree", "tail"])
@pytest.mark.slow
def test_answers_of_one_prompt_share_its_prefill_and_its_estimate(name: str, prefix_cache_bytes: int) -> None:
    first = ask(1, PROFILES[name], sampling=Sampling(1.0, seed=20))
    choices = first.choices(4)
    together = run(new_batch(model(), prefix_cache_bytes=prefix_cache_bytes), *choices)
    facts = [progress[0].facts for progress in together]
    whole = len(first.prompt.input_ids)
    rerun = whole - first.prompt.tail_start if name == "tail" else 1
    assert [one.cached_tokens for one in facts if one] == [0] + [whole - rerun] * 3
    assert [one.calibration_passes for one in facts if one] == [0 if name == "plain" else 1, 0, 0, 0]
    assert [ids_of(progress) for progress in together] == [ids_of(alone(one)) for one in choices]
    assert len({tuple(ids_of(progress)) for progress in together}) == 4


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.slow
def test_another_question_over_the_same_documents_computes_only_what_is_new(name: str) -> None:
    """Also where the prompt before it was calibrated, whose last rows are then not the model's own."""
    profile = PROFILES[name]
    batch = new_batch(model(), prefix_cache_bytes=10**6)
    prompts = [prompt_of(q, 3, template=PLAIN) for q in ("who kept the lighthouse", "when was it", "where")]
    for place, prompt in enumerate([*prompts, prompts[0]]):
        generation = Generation(prompt, MAX_TOKENS, calibration=profile, ignore_eos=True)
        (progress,) = run(batch, generation)
        assert ids_of(progress) == ids_of(alone(generation))
        facts = progress[0].facts
        assert facts is not None
        if place == 0:
            assert facts.cached_tokens == 0
        elif place < 3:
            assert prompt.tail_start <= facts.cached_tokens < len(prompt.input_ids)
        else:
            assert facts.cached_tokens == len(prompt.input_ids) - max(1, generation.num_rerun)
            assert facts.calibration_passes == 0


@pytest.mark.parametrize("is_together", [False, True])
def test_what_one_tenant_asks_is_told_to_no_other(is_together: bool) -> None:
    """Neither of an answer that has ended nor of one that runs."""
    batch = new_batch(model(), prefix_cache_bytes=10**6)
    asked = [replace(ask(1, PROFILES["tree"]), tenant=tenant) for tenant in ("north", "south", "north")]
    rounds = [asked] if is_together else [[one] for one in asked]
    facts = [progress[0].facts for some in rounds for progress in run(batch, *some)]
    assert [one.cached_tokens > 0 for one in facts if one] == [False, False, True]
    assert [one.calibration_passes for one in facts if one] == [1, 1, 0]


def test_a_conversation_goes_on_from_its_answer() -> None:
    batch = new_batch(model(), prefix_cache_bytes=10**6)
    first = ask(0)
    answer = ids_of(run(batch, first)[0])
    longer = Prompt((*first.prompt.input_ids, *answer, *first.prompt.input_ids[:9]), (), 0)
    (progress,) = run(batch, Generation(longer, 5))
    assert progress[0].facts is not None
    assert progress[0].facts.cached_tokens == len(first.prompt.input_ids) + len(answer) - 1
    assert ids_of(progress) == ids_of(alone(Generation(longer, 5)))


def test_prompts_that_were_forgotten_are_computed_again() -> None:
    batch = new_batch(model(), prefix_cache_bytes=10**6)
    run(batch, ask(1, PROFILE))
    batch.forget_prompts()
    ((first, *_),) = run(batch, ask(1, PROFILE))
    assert first.facts is not None
    assert first.facts.cached_tokens == 0 and first.facts.calibration_passes == 1


def cached_tokens_of(progress: Sequence[Progress]) -> int:
    facts = progress[0].facts
    assert facts is not None
    return facts.cached_tokens


def test_no_answer_fails_where_there_is_no_memory_to_keep_a_prompt_that_ended() -> None:
    batch = new_batch(model(), prefix_cache_bytes=10**6)
    kept, ending, going_on = ask(2), ask(0, max_tokens=2), ask(1)
    run(batch, kept)
    progress = batch.admit([ending, going_on])
    with ScarceMemory("stack"):
        progress += batch.step()
    while batch.num_running:
        progress += batch.step()
    for generation in (ending, going_on):
        own = [one for one in progress if one.generation is generation]
        assert ids_of(own) == ids_of(alone(generation)) and own[-1].finish_reason == "length"
    # memory was short: nothing is kept of the first prompt any more, nor of the one that ended then
    for forgotten in (kept, ending):
        assert cached_tokens_of(run(batch, replace(forgotten))[0]) < len(forgotten.prompt.input_ids) // 2


@pytest.mark.slow
def test_an_admission_without_memory_gives_back_what_is_kept_of_prompts() -> None:
    batch = new_batch(model(), prefix_cache_bytes=10**6)
    first, second = ask(1), ask(1, max_tokens=500)
    run(batch, first)
    with ScarceMemory("new_zeros"), pytest.raises(torch.OutOfMemoryError):
        batch.admit([second])
    batch.cancel(second)
    progress = run(batch, second)[0]
    assert cached_tokens_of(progress) == 0
    assert ids_of(progress)[:MAX_TOKENS] == ids_of(alone(first))


def test_a_prompt_that_is_continued_keeps_its_space() -> None:
    context: Callable[[bool], str] = lambda continues: text_of(alone(ask(0, continues_prompt=continues)))  # noqa: E731
    assert context(True).lstrip() == context(False).lstrip()
