"""Packed, cached, slotted and batched computation equals that of transformers' own model for a single sequence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.generate.calibration import Calibration, Documents
from services.generate.model.branches import Branch, Segment
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from tests.generate.calibrated_weights import calibrated_weights
from tests.generate.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny, tiny_model, tiny_tokenizer

CPU = DeviceOptions(device="cpu", dtype="float32")
LENGTHS = (5, 40, 23, 1, 300)
SPANS = ((4, 12), (12, 15), (15, 31))


def tokens(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist())


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> LanguageModel:
    return LanguageModel(tiny_model(name), tiny_tokenizer())


@pytest.fixture(scope="module")
def reference(name: str) -> Any:
    return tiny_model(name, attention="eager")


@pytest.fixture(scope="module")
def hooked(name: str) -> Any:
    return tiny_model(name)


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return LanguageModel(tiny_model(), tiny_tokenizer())


def logits_of(reference: Any, input_ids: tuple[int, ...]) -> Tensor:
    """Return the logits of the last token, from the whole sequence in one uncached call."""
    with torch.inference_mode():
        logits: Tensor = reference(torch.tensor([input_ids])).logits[0, -1]
    return logits


def assert_close(found: Tensor, expected: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-4)


def test_unequal_prompts_in_one_pass_answer_as_each_does_alone(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    prompts = [tokens(length) for length in LENGTHS]
    found = model.prefill([Prefill(cache.open(400), prompt) for prompt in prompts])
    for prompt, prefilled in zip(prompts, found, strict=True):
        assert_close(prefilled.logits, logits_of(reference, prompt))
        assert prefilled.attention is None
        assert prefilled.scores is None


def test_a_prompt_that_comes_in_parts_answers_as_the_whole(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    prompt = tokens(700)
    slots = [cache.open(800), cache.open(800)]
    model.prefill([Prefill(slots[0], prompt[:30]), Prefill(slots[1], prompt[:31])])
    found = model.prefill([Prefill(slots[0], prompt[30:]), Prefill(slots[1], prompt[31:40])])
    assert_close(found[0].logits, logits_of(reference, prompt))
    assert_close(found[1].logits, logits_of(reference, prompt[:40]))


def test_the_last_row_is_measured_where_its_documents_stand(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(1000)
    prompts = [tokens(40), tokens(35, seed=1)]
    spans = [SPANS, ((1, 3),)]
    found = model.prefill([Prefill(cache.open(100), *each) for each in zip(prompts, spans, strict=True)])
    for prompt, own, prefilled in zip(prompts, spans, found, strict=True):
        with torch.inference_mode():
            attentions = reference(torch.tensor([prompt]), output_attentions=True).attentions
        last = torch.stack([layer[0, :, -1] for layer in attentions])
        expected = torch.stack([last[:, :, start:stop].mean(dim=-1) for start, stop in own], dim=-1)
        assert prefilled.attention is not None
        assert_close(prefilled.attention, expected, atol=1e-6)


def test_every_token_is_scored_given_those_before_it(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(2000)
    prompts = [tokens(40), tokens(300)]
    found = model.prefill([Prefill(cache.open(400), prompt, scores_all=True, num_top=3) for prompt in prompts])
    for prompt, prefilled in zip(prompts, found, strict=True):
        with torch.inference_mode():
            logprobs = reference(torch.tensor([prompt])).logits[0].log_softmax(dim=-1)
        assert prefilled.scores is not None
        expected = logprobs[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert_close(prefilled.scores.logprobs, expected)
        top, ids = logprobs[:-1].topk(3, dim=-1)
        assert_close(prefilled.scores.top_logprobs, top)
        assert prefilled.scores.top_ids.tolist() == ids.tolist()
        assert_close(prefilled.logits.log_softmax(dim=-1), logprobs[-1])


@pytest.mark.slow
def test_decoding_beside_others_continues_each_sequence_as_alone(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    sequences = [tokens(length) for length in LENGTHS]
    slots = [cache.open(320) for _ in sequences]
    model.prefill([Prefill(slot, sequence) for slot, sequence in zip(slots, sequences, strict=True)])
    for step in range(8):
        if step == 4:  # one leaves, another joins, and the order of rows is not that of slots
            cache.close(slots.pop(1))
            sequences.pop(1)
            slots.insert(0, cache.open(320))
            sequences.insert(0, tokens(11, seed=3))
            model.prefill([Prefill(slots[0], sequences[0])])
        following = [tokens(1, seed=100 * step + place) for place in range(len(slots))]
        sequences = [sequence + new for sequence, new in zip(sequences, following, strict=True)]
        found = model.decode([Row(slot, new) for slot, new in zip(slots, following, strict=True)])
        for sequence, logits in zip(sequences, found, strict=True):
            assert_close(logits, logits_of(reference, sequence))


def test_some_of_the_open_slots_may_decode_without_the_others(model: LanguageModel, reference: Any) -> None:
    cache = model.new_cache(4000)
    sequences = [tokens(length) for length in LENGTHS]
    slots = [cache.open(320) for _ in sequences]
    model.prefill([Prefill(slot, sequence) for slot, sequence in zip(slots, sequences, strict=True)])
    for chosen in ([4, 0, 2], [3], [1, 2]):
        found = model.decode([Row(slots[place], (7,)) for place in chosen])
        for place, logits in zip(chosen, found, strict=True):
            sequences[place] = (*sequences[place], 7)
            assert_close(logits, logits_of(reference, sequences[place]))


class DenseCalibratedPass:
    """Eq. 3.5 on materialised attention, for the rows from `first_row` on of one whole sequence."""

    def __init__(self, calibration: Calibration | None, first_row: int) -> None:
        self._calibration = calibration
        self._first_row = first_row

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        key, value = (numbers.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for numbers in (key, value))
        length = query.shape[2]
        distance = torch.arange(length)[:, None] - torch.arange(length)
        hidden = (distance < 0) | (distance >= (sliding_window or length))
        weights = (query @ key.transpose(2, 3) * scaling).masked_fill(hidden, -torch.inf).softmax(dim=-1)
        if self._calibration is not None and layer in self._calibration.layers:
            alpha = self._calibration.log_alpha.exp()
            alpha = alpha[None, None, None] if alpha.dim() == 1 else alpha[layer][None, :, None]
            rows = weights[:, :, self._first_row :]
            documents = Documents.of([self._calibration.spans])
            alpha = alpha.expand(*rows.shape[:-1], -1)
            weights[:, :, self._first_row :] = calibrated_weights(rows, documents, alpha)
        return (weights @ value).transpose(1, 2)


def calibrated_logits_of(
    hooked: Any, input_ids: tuple[int, ...], calibration: Calibration | None, first_row: int
) -> Tensor:
    with torch.inference_mode():
        forward_pass = DenseCalibratedPass(calibration, first_row)
        logits: Tensor = hooked(torch.tensor([input_ids]), forward_pass=forward_pass, use_cache=False).logits[0, -1]
    return logits


def a_calibration(spans: tuple[tuple[int, int], ...], seed: int, *, per_head: bool = False) -> Calibration:
    generator = torch.Generator().manual_seed(seed)
    shape = (4, 4, len(spans)) if per_head else (len(spans),)
    log_alpha = (2 * torch.randn(shape, generator=generator)).log_softmax(dim=-1)
    return Calibration(spans, log_alpha, frozenset({1, 3} if seed % 2 else {2, 3}))


CALIBRATED: tuple[tuple[tuple[int, ...], Calibration | None], ...] = (
    (tokens(40, seed=5), a_calibration(SPANS, 1)),
    (tokens(25, seed=6), None),
    (tokens(33, seed=7), a_calibration(((0, 20), (22, 30)), 2)),
    (tokens(41, seed=8), a_calibration((*SPANS, (31, 39)), 3, per_head=True)),
)


@pytest.mark.slow
def test_a_calibrated_answer_is_the_equation_on_materialised_attention(model: LanguageModel, hooked: Any) -> None:
    cache = model.new_cache(1000)
    slots = [cache.open(60) for _ in CALIBRATED]
    sequences = [prompt for prompt, _ in CALIBRATED]
    calibrations = [calibration for _, calibration in CALIBRATED]
    firsts = [len(prompt) - 1 for prompt in sequences]
    model.prefill([Prefill(slot, prompt) for slot, prompt in zip(slots, sequences, strict=True)])
    found = model.rerun(
        [Row(slot, prompt[-1:], own) for slot, prompt, own in zip(slots, sequences, calibrations, strict=True)]
    )
    for step in range(9):
        for each in zip(sequences, calibrations, firsts, found, strict=True):
            assert_close(each[3], calibrated_logits_of(hooked, *each[:3]))
        following = [tokens(1, seed=100 * step + place) for place in range(len(slots))]
        sequences = [sequence + new for sequence, new in zip(sequences, following, strict=True)]
        found = model.decode([Row(*each) for each in zip(slots, following, calibrations, strict=True)])


def test_all_rows_of_the_tail_may_be_calibrated(model: LanguageModel, hooked: Any) -> None:
    cache = model.new_cache(1000)
    for num_rows in (2, 9):
        slots = [cache.open(60) for _ in CALIBRATED]
        model.prefill([Prefill(slot, prompt) for slot, (prompt, _) in zip(slots, CALIBRATED, strict=True)])
        found = model.rerun(
            [
                Row(slot, prompt[-num_rows:], calibration)
                for slot, (prompt, calibration) in zip(slots, CALIBRATED, strict=True)
            ]
        )
        for (prompt, calibration), logits in zip(CALIBRATED, found, strict=True):
            assert_close(logits, calibrated_logits_of(hooked, prompt, calibration, len(prompt) - num_rows))
        for slot in slots:
            cache.close(slot)


def test_a_rerun_without_calibration_changes_nothing(llama: LanguageModel) -> None:
    slot = llama.new_cache(100).open(60)
    (prefilled,) = llama.prefill([Prefill(slot, tokens(40))])
    before = slot.cache.copy_out(slot, 40)
    assert_close(llama.rerun([Row(slot, tokens(40)[-7:])])[0], prefilled.logits)
    assert_close(slot.cache.copy_out(slot, 40).keys, before.keys)


def greedy(model: LanguageModel, batch: list[tuple[tuple[int, ...], Calibration | None]]) -> list[list[int]]:
    """Twelve tokens each."""
    cache = model.new_cache(100 * len(batch))
    slots = [cache.open(100) for _ in batch]
    model.prefill([Prefill(slot, prompt) for slot, (prompt, _) in zip(slots, batch, strict=True)])
    rows = [Row(slot, prompt[-1:], calibration) for slot, (prompt, calibration) in zip(slots, batch, strict=True)]
    logits = model.rerun(rows)
    answers: list[list[int]] = [[] for _ in batch]
    for _ in range(12):
        for answer, token in zip(answers, logits.argmax(dim=-1).tolist(), strict=True):
            answer.append(token)
        logits = model.decode(
            [Row(row.slot, (answer[-1],), row.calibration) for row, answer in zip(rows, answers, strict=True)]
        )
    return answers


@pytest.mark.slow
def test_an_answer_is_the_same_alone_and_among_sixteen(model: LanguageModel) -> None:
    batch: list[tuple[tuple[int, ...], Calibration | None]] = [
        (tokens(32 + 3 * place, seed=place), a_calibration(SPANS, place) if place % 3 else None) for place in range(16)
    ]
    together = greedy(model, batch)
    assert together == [answer for each in batch for answer in greedy(model, [each])]


def test_what_a_closed_sequence_left_behind_reaches_nobody(llama: LanguageModel) -> None:
    """Numbers that are not finite spread through a sum even where their weight is 0."""
    cache = llama.new_cache(1000)
    broken, short, long = (cache.open(60) for _ in range(3))
    llama.prefill([Prefill(broken, tokens(50)), Prefill(short, tokens(5)), Prefill(long, tokens(40))])
    for layer in range(4):
        cache.keys[layer][broken.index, :, :50] = torch.nan
        cache.values[layer][broken.index, :, :50] = torch.inf
    expected = llama.decode([Row(short, (3,)), Row(long, (4,))])
    assert expected.isfinite().all()
    cache.close(broken)
    beside = cache.open(60)
    llama.prefill([Prefill(beside, tokens(5))])
    found = llama.decode([Row(beside, (3,)), Row(long, (5,))])
    assert_close(found[0], expected[0])
    assert found.isfinite().all()


def test_a_pass_is_cut_into_several_where_it_would_hold_too_much(
    llama: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [tokens(length) for length in LENGTHS]

    def logits() -> Tensor:
        cache = llama.new_cache(2000)
        found = llama.prefill([Prefill(cache.open(300), prompt) for prompt in prompts])
        return torch.stack([prefilled.logits for prefilled in found])

    together = logits()
    monkeypatch.setattr("services.generate.model.language_model.MAX_PASS_TOKENS", 45)
    assert_close(logits(), together)


def test_tokens_that_do_not_fit_are_refused_before_anything_runs(llama: LanguageModel) -> None:
    cache = llama.new_cache(100)
    slot = cache.open(10)
    with pytest.raises(ValueError, match="11 tokens: the slot has room for 10 more"):
        llama.prefill([Prefill(slot, tokens(11))])
    with pytest.raises(ValueError, match="0 tokens"):
        llama.prefill([Prefill(slot, ())])
    llama.prefill([Prefill(slot, tokens(10))])
    with pytest.raises(ValueError, match="room for 0 more"):
        llama.decode([Row(slot, (3,))])
    with pytest.raises(ValueError, match="10 tokens are cached, 11"):
        llama.rerun([Row(slot, tokens(11))])
    other = llama.new_cache(100).open(10)
    with pytest.raises(ValueError, match="one cache"):
        llama.decode([Row(cache.open(10), (3,)), Row(other, (3,))])
    assert slot.length == 10


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_checkpoint_answers_as_transformers_does(tmp_path: Path, name: str, tied: bool) -> None:
    directory = save_tiny(tmp_path, name, tie_word_embeddings=tied)
    model = LanguageModel.load(directory, CPU)
    reference = tiny_model(name, attention="eager", tie_word_embeddings=tied)
    slot = model.new_cache(100).open(50)
    (found,) = model.prefill([Prefill(slot, tokens(40))])
    assert_close(found.logits, logits_of(reference, tokens(40)))
    assert model.tokenizer.decode(model.tokenizer("the harbour").input_ids) == "the harbour"
    assert (model.config.num_layers, model.config.num_heads, model.config.num_kv_heads) == (4, 4, 2)
    assert (model.config.max_model_len, model.config.eos_token_ids) == (4096, frozenset({1}))


def test_branches_that_may_see_what_they_replace_see_its_replacement(llama: LanguageModel) -> None:
    slot = llama.new_cache(200).open(60)
    llama.prefill([Prefill(slot, tokens(50))])
    first, last = Segment(tokens(5, 1), 10, ((0, 10),)), Segment(tokens(10, 2), 40, ((0, 12), (13, 30)))
    branches = [Branch(slot, (first, last), ((15, 20),)), Branch(slot, (last,), ((8, 20), (41, 44)))]
    found = []
    for llama.packs_branches in (True, False):
        found.append(llama.branch(branches))
    for packed, one_by_one in zip(*found, strict=True):
        assert_close(packed, one_by_one)


@pytest.mark.parametrize(
    "settings", [{"attention_bias": True, "mlp_bias": True}, {"hidden_act": "gelu"}, {"rms_norm_eps": 0.1}], ids=str
)
def test_settings_that_few_checkpoints_have_answer_as_transformers_does(settings: dict[str, Any]) -> None:
    model = LanguageModel(tiny_model(**settings), tiny_tokenizer())
    [prefilled] = model.prefill([Prefill(model.new_cache(100).open(50), tokens(50))])
    assert_close(prefilled.logits, logits_of(tiny_model(attention="eager", **settings), tokens(50)))


def test_half_precision_answers_nearly_as_single(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path, "llama", initializer_range=0.05)
    single, half = (LanguageModel.load(directory, DeviceOptions("cpu", dtype)) for dtype in ("float32", "bfloat16"))
    found = []
    for model in (single, half):
        slot = model.new_cache(100).open(50)
        model.prefill([Prefill(slot, CALIBRATED[0][0])])
        row = Row(slot, CALIBRATED[0][0][-1:], CALIBRATED[0][1])
        found.append(torch.cat([model.rerun([row]), model.decode([row])]))
    assert found[1].dtype == torch.float32
    assert_close(found[1], found[0], atol=0.02)


PARTIAL_ROPE = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is none of llama, mistral, qwen2, qwen3"),
        ({"rope_parameters": LONGROPE}, "'longrope'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"num_hidden_layers": 5}, "lacks weights of its model, 'model.layers.4"),
        ({"is_causal": False}, "is_causal"),
        ({"rope_parameters": PARTIAL_ROPE}, "partial_rotary_factor"),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    directory = save_tiny(tmp_path)
    edit_config(directory, **changes)
    with pytest.raises(ValueError, match=message):
        LanguageModel.load(directory, CPU)


def test_weights_in_a_pickle_are_not_read(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path)
    weights = directory / "model.safetensors"
    torch.save({}, directory / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(OSError, match="safetensors"):
        LanguageModel.load(directory, CPU)


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("scaling", "longest", "others"),
    [
        ({"type": "linear", "factor": 4.0}, 1024, {}),
        ({"type": "linear", "factor": 4.0}, 800, {"max_sequence_length": 800}),
        ({"type": "dynamic", "factor": 4.0}, 256, {}),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024, {}),
        ({"rope_type": "llama3", "factor": 8.0, **LLAMA3}, 256, {}),
    ],
)
def test_scaled_positions_are_those_of_transformers_as_far_as_they_reach(
    tmp_path: Path, scaling: dict[str, Any], longest: int, others: dict[str, Any]
) -> None:
    directory = save_tiny(tmp_path, max_position_embeddings=256)
    path = directory / "config.json"
    # as repositories publish it; transformers 5 writes `rope_parameters`
    config = {name: value for name, value in json.loads(path.read_text()).items() if name != "rope_parameters"}
    path.write_text(json.dumps({**config, "rope_theta": 1e4, "rope_scaling": scaling, **others}))
    model = LanguageModel.load(directory, CPU)
    assert model.config.max_model_len == longest

    ids = tuple((5 * number) % 500 + 3 for number in range(longest))
    found = model.prefill([Prefill(model.new_cache(longest).open(longest), ids)])[0].logits
    theirs = transformers().AutoModelForCausalLM.from_pretrained(directory)(torch.tensor([ids])).logits[0, -1]
    assert_close(found, theirs, atol=1e-4)


def test_the_tokenizers_end_of_a_turn_ends_answers_too(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path)
    edit_config(directory, eos_token_id=7)
    (directory / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert LanguageModel.load(directory, CPU).config.eos_token_ids == {1, 7, 8}
