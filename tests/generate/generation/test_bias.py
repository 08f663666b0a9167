"""Each estimate of the bias is what a dense computation of it gives, whatever shares its pass, and leaves no trace."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from services.generate.generation.bias import (
    BiasEstimate,
    BiasJob,
    DummyOptions,
    EstimateKind,
    estimate_bias,
    num_estimate_tokens,
)
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.generate.model.profile import DummyForm
from services.generate.prompts.templates import CONTENT_FREE, Prompt, filler_ids
from tests.generate.tiny_models import CONFIGS, SLIDING_WINDOW, VOCAB_SIZE, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
FILLER = filler_ids(TOKENIZER)
CONTENT_FREE_IDS = filler_ids(TOKENIZER, CONTENT_FREE)
KINDS: tuple[EstimateKind, ...] = ("exact", "tree", "single", "query")
NEWLINE = TOKENIZER("\n", add_special_tokens=False).input_ids[0]


def a_prompt(
    num_tokens: Sequence[int], *, head: int = 6, tail: int = 5, seed: int = 0, ends_with_newline: bool = True
) -> Prompt:
    """Return documents of these numbers of tokens after a head, with one token between the first two.

    Those of five tokens or more have a title, their second token, and a text, from the fourth to the last but one.
    """
    generator = torch.Generator().manual_seed(seed)

    def random_ids(length: int) -> list[int]:
        drawn: list[int] = torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()
        return drawn

    input_ids, spans, contents = random_ids(head), [], []
    for k, length in enumerate(num_tokens):
        start = len(input_ids)
        input_ids += random_ids(length)
        if ends_with_newline and length:
            input_ids[-1] = NEWLINE
        spans.append((start, len(input_ids)))
        contents.append(((start + 1, start + 2), (start + 3, start + length - 1)) if length >= 5 else ())
        input_ids += random_ids(1) if k == 0 else []
    return Prompt((*input_ids, *random_ids(tail)), tuple(spans), len(input_ids), tuple(contents))


FORMS: tuple[DummyForm, ...] = ("framed", "whole")
PROMPTS = (
    a_prompt((7, 11, 3, 20)),
    a_prompt((40, 1), head=30, seed=1, ends_with_newline=False),
    a_prompt((5, 5, 5), head=0, tail=1, seed=2),
    a_prompt((9,), seed=3),
)


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[False, True], ids=["one by one", "packed"])
def packs_branches(request: pytest.FixtureRequest) -> bool:
    """Whether the branches of a prompt attend as on a GPU, together."""
    return bool(request.param)


@pytest.fixture(scope="module")
def model(name: str, packs_branches: bool) -> LanguageModel:
    loaded = LanguageModel(tiny_model(name), TOKENIZER)
    loaded.packs_branches = packs_branches
    return loaded


@pytest.fixture(scope="module")
def llama(packs_branches: bool) -> LanguageModel:
    loaded = LanguageModel(tiny_model(), TOKENIZER)
    loaded.packs_branches = packs_branches
    return loaded


@pytest.fixture(scope="module")
def reference(name: str) -> Any:
    return tiny_model(name, attention="eager")


def filler(length: int) -> list[int]:
    return [FILLER[i % len(FILLER)] for i in range(length)]


def dummy_of(prompt: Prompt, k: int, options: DummyOptions) -> tuple[list[int], list[float]]:
    """The dummy's tokens, and how much each counts of the document's mean."""
    start, stop = prompt.spans[k]
    most = stop if options.dummy_tokens is None else options.dummy_tokens
    if options.form == "whole":
        length = min(most, stop - start)
        last = [NEWLINE] if prompt.input_ids[stop - 1] == NEWLINE else []
        return [*filler(length - len(last)), *last], [1 / max(length, 1)] * length
    dummy: list[int] = []
    counts: list[float] = []
    done = start
    for first, end in (*prompt.contents[k], (stop, stop)):
        length = min(most, end - first)
        dummy += [*prompt.input_ids[done:first], *filler(length)]
        counts += [*[1.0] * (first - done), *[(end - first) / max(length, 1)] * length]
        done = end
    return dummy, [count / (stop - start) for count in counts]


def with_dummies(prompt: Prompt, documents: Sequence[int], form: DummyForm) -> list[int]:
    input_ids = list(prompt.input_ids)
    for k in documents:
        start, stop = prompt.spans[k]
        input_ids[start:stop] = dummy_of(prompt, k, DummyOptions(form))[0]
    return input_ids


def last_row_weights(reference: Any, input_ids: Sequence[int], **arguments: Any) -> Tensor:
    """(L, H, T), by transformers' own attention."""
    with torch.inference_mode():
        attentions = reference(torch.tensor([input_ids]), output_attentions=True, **arguments).attentions
    return torch.stack([layer[0, :, -1] for layer in attentions])


def prefilled(model: LanguageModel, prompts: Sequence[Prompt]) -> list[Slot]:
    cache = model.new_cache(4000)
    slots = [cache.open(150) for _ in prompts]
    model.prefill([Prefill(slot, prompt.input_ids) for slot, prompt in zip(slots, prompts, strict=True)])
    return slots


def estimates(model: LanguageModel, prompts: Sequence[Prompt], kind: Any, **settings: Any) -> list[BiasEstimate]:
    jobs = [BiasJob(*each, FILLER) for each in zip(prefilled(model, prompts), prompts, strict=True)]
    return estimate_bias(model, jobs, kind, **settings)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_exact_is_a_prefill_of_its_own_for_each_document(model: LanguageModel, reference: Any, form: DummyForm) -> None:
    options = DummyOptions(form)
    for prompt, estimate in zip(PROMPTS, estimates(model, PROMPTS, "exact", options=options), strict=True):
        for k, (start, stop) in enumerate(prompt.spans):
            weights = last_row_weights(reference, with_dummies(prompt, [k], form))
            assert_close(estimate.attention[:, :, k], weights[:, :, start:stop].mean(dim=-1))


@pytest.mark.parametrize("form", FORMS)
def test_single_is_the_prefill_of_a_prompt_of_dummies(model: LanguageModel, reference: Any, form: DummyForm) -> None:
    options = DummyOptions(form)
    for prompt, estimate in zip(PROMPTS, estimates(model, PROMPTS, "single", options=options), strict=True):
        weights = last_row_weights(reference, with_dummies(prompt, range(len(prompt.spans)), form))
        expected = [weights[:, :, start:stop].mean(dim=-1) for start, stop in prompt.spans]
        assert_close(estimate.attention, torch.stack(expected, dim=-1))


def asking(prompt: Prompt, num_tokens: int) -> Prompt:
    """Put a question of random tokens before the last token."""
    generator = torch.Generator().manual_seed(num_tokens)
    question = torch.randint(2, VOCAB_SIZE, (num_tokens,), generator=generator).tolist()
    start = len(prompt.input_ids) - 1
    ids = (*prompt.input_ids[:start], *question, prompt.input_ids[-1])
    return replace(prompt, input_ids=ids, question=(start, start + num_tokens))


def without_question(prompt: Prompt) -> tuple[int, ...]:
    """The prompt's tokens with the content-free question, repeated or cut."""
    assert prompt.question is not None
    start, stop = prompt.question
    asked = [CONTENT_FREE_IDS[i % len(CONTENT_FREE_IDS)] for i in range(stop - start)]
    return (*prompt.input_ids[:start], *asked, *prompt.input_ids[stop:])


ASKING = tuple(asking(prompt, length) for prompt, length in zip(PROMPTS, (4, 1, 30, 7), strict=True))


def test_query_is_the_prefill_of_a_prompt_with_a_question_without_content(model: LanguageModel, reference: Any) -> None:
    for prompt, estimate in zip(ASKING, estimates(model, ASKING, "query"), strict=True):
        weights = last_row_weights(reference, without_question(prompt))
        expected = [weights[:, :, start:stop].mean(dim=-1) for start, stop in prompt.spans]
        assert_close(estimate.attention, torch.stack(expected, dim=-1))


def test_a_question_without_content_is_all_bias(llama: LanguageModel) -> None:
    prompts = [replace(prompt, input_ids=without_question(prompt)) for prompt in ASKING]
    slots = [llama.new_cache(200).open(150) for _ in prompts]
    measured = llama.prefill(
        [Prefill(slot, prompt.input_ids, prompt.spans) for slot, prompt in zip(slots, prompts, strict=True)]
    )
    for own, estimate in zip(measured, estimates(llama, prompts, "query"), strict=True):
        assert own.attention is not None
        assert_close(estimate.attention, own.attention)


def dense_tree(reference: Any, prompt: Prompt, k: int, options: DummyOptions) -> Tensor:
    """Attn(dummy, k), (L, H), by one call with an explicit mask over the prompt, the dummy and a second tail."""
    start, stop = prompt.spans[k]
    num_tokens = len(prompt.input_ids)
    dummy, counts = dummy_of(prompt, k, options)
    tail = list(prompt.input_ids[prompt.tail_start :])
    positions = [*range(num_tokens), *range(start, start + len(dummy)), *range(prompt.tail_start, num_tokens)]
    total = len(positions)
    visible = torch.zeros(total, total, dtype=torch.bool)
    for row in range(total):
        visible[row, : row + 1] = True
        if num_tokens <= row < num_tokens + len(dummy):
            visible[row, start:num_tokens] = False
            if options.window is not None:
                sinks = min(options.num_sinks, start)
                visible[row, sinks : max(sinks, start - options.window)] = False
        elif row >= num_tokens:
            visible[row, start:stop] = False
            visible[row, prompt.tail_start : num_tokens] = False
    place = torch.tensor(positions)
    distance = place[:, None] - place
    masks = {
        kind: torch.zeros(total, total).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
        for kind, seen in (
            ("full_attention", visible),
            ("sliding_attention", visible & (distance < SLIDING_WINDOW)),
        )
    }
    mask: Any = masks
    if reference.config.model_type in ("llama", "mistral"):
        mask = masks["sliding_attention" if reference.config.model_type == "mistral" else "full_attention"]
    weights = last_row_weights(
        reference, [*prompt.input_ids, *dummy, *tail], attention_mask=mask, position_ids=place[None]
    )
    return (weights[:, :, num_tokens : num_tokens + len(dummy)] * torch.tensor(counts)).sum(dim=-1)


@pytest.mark.parametrize(
    "options",
    [
        DummyOptions("framed"),
        DummyOptions("whole"),
        DummyOptions("framed", dummy_tokens=4),
        DummyOptions("whole", dummy_tokens=4),
        DummyOptions("framed", window=5, num_sinks=2),
        DummyOptions("whole", 3, 8, 0),
    ],
    ids=["framed", "whole", "short filler", "short dummies", "window and sinks", "short dummies with a window"],
)
def test_tree_is_one_dense_call_over_prompt_and_branches(
    model: LanguageModel, reference: Any, options: DummyOptions
) -> None:
    for prompt, estimate in zip(PROMPTS, estimates(model, PROMPTS, "tree", options=options), strict=True):
        for k in range(len(prompt.spans)):
            assert_close(estimate.attention[:, :, k], dense_tree(reference, prompt, k, options))


def test_tree_is_exact_for_the_last_document_and_in_the_first_layer(llama: LanguageModel) -> None:
    (tree,), (exact,) = (estimates(llama, PROMPTS[:1], kind) for kind in ("tree", "exact"))
    assert_close(tree.attention[..., -1], exact.attention[..., -1])
    assert_close(tree.attention[0], exact.attention[0])
    assert (tree.attention - exact.attention).abs().max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_layers_are_the_first_of_all(model: LanguageModel, kind: Any) -> None:
    whole = estimates(model, ASKING, kind)
    for depth in (1, 3):
        for some, all_layers in zip(estimates(model, ASKING, kind, num_layers=depth), whole, strict=True):
            assert_close(some.attention, all_layers.attention[:depth])


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_is_as_it_was_and_the_answer_goes_on(llama: LanguageModel, kind: Any) -> None:
    slots = prefilled(llama, ASKING)
    before = [slot.cache.copy_out(slot, slot.length) for slot in slots]
    estimate_bias(llama, [BiasJob(*each, FILLER) for each in zip(slots, ASKING, strict=True)], kind)
    for slot, kept in zip(slots, before, strict=True):
        after = slot.cache.copy_out(slot, slot.length)
        assert torch.equal(after.keys, kept.keys)
        assert torch.equal(after.values, kept.values)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_without_documents_and_empty_documents_are_estimated_at_nothing(
    llama: LanguageModel, kind: Any
) -> None:
    prompts = (Prompt((5, 6, 7), (), 0), asking(a_prompt((4, 0, 6)), 3), asking(a_prompt((0,)), 2))
    none, some, empty = estimates(llama, prompts, kind)
    assert none.attention.shape == (4, 4, 0)
    assert (none.num_tokens, none.num_passes) == (0, 0)
    assert some.attention[:, :, [0, 2]].min() > 0
    assert not some.attention[:, :, 1].any()
    assert not empty.attention.any()


def test_costs_are_told(llama: LanguageModel) -> None:
    prompt = ASKING[0]
    costs = {kind: estimates(llama, [prompt], kind)[0] for kind in KINDS}
    assert {kind: each.num_passes for kind, each in costs.items()} == {"exact": 4, "tree": 1, "single": 1, "query": 1}
    behind_head = len(prompt.input_ids) - 6
    assert costs["single"].num_tokens == behind_head
    assert costs["tree"].num_tokens == 41 + 4 * 9
    assert costs["exact"].num_tokens == sum(len(prompt.input_ids) - start for start, _ in prompt.spans)
    assert costs["query"].num_tokens == 4 + 1  # the question, and the token after it
    for kind, each in costs.items():
        assert num_estimate_tokens(prompt, kind, DummyOptions()) == each.num_tokens


def test_estimates_go_on_from_a_slot_that_decodes_already(llama: LanguageModel) -> None:
    prompt = PROMPTS[0]
    (slot,) = prefilled(llama, [prompt])
    llama.decode([Row(slot, (3,))])
    (found,) = estimate_bias(llama, [BiasJob(slot, prompt, FILLER)], "tree")
    assert_close(found.attention, estimates(llama, [prompt], "tree")[0].attention)


def test_what_cannot_be_estimated_is_refused(llama: LanguageModel) -> None:
    cache = llama.new_cache(100)
    slot = cache.open(50)
    llama.prefill([Prefill(slot, PROMPTS[0].input_ids[:10])])
    with pytest.raises(ValueError, match="10 of the prompt's 53 tokens are cached"):
        estimate_bias(llama, [BiasJob(slot, PROMPTS[0], FILLER)], "tree")
    ends = Prompt(PROMPTS[0].input_ids[:10], ((6, 10),), 10)
    with pytest.raises(ValueError, match="ends with a document"):
        estimate_bias(llama, [BiasJob(slot, ends, FILLER)], "tree")
    unknown = Prompt(PROMPTS[0].input_ids[:10], ((1, 4),), 4)
    with pytest.raises(ValueError, match="filler"):
        estimate_bias(llama, [BiasJob(slot, unknown, ())], "exact")
    with pytest.raises(ValueError, match="does not say where its question is"):
        estimate_bias(llama, [BiasJob(slot, unknown, FILLER)], "query")
    with pytest.raises(ValueError, match="does not say where titles and texts are"):
        estimate_bias(llama, [BiasJob(slot, unknown, FILLER)], "exact")
