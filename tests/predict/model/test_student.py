"""A student's forward pass against transformers', over both kinds of T5."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from services.nn.devices import DeviceOptions
from services.predict.model import student as student_module
from services.predict.model import t5 as t5_module
from services.predict.model.scoring import Candidates
from services.predict.model.student import Student
from tests.predict.tiny_students import (
    EOS,
    KINDS,
    PAD,
    Kind,
    constrained_logprobs,
    save_student,
    tiny_t5,
    tiny_tokenizer,
)

VOCABULARY_LACKS = 10**6
CPU = DeviceOptions(device="cpu")


def draw_inputs(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [[*torch.randint(3, 400, (length - 1,), generator=draw).tolist(), EOS] for length in lengths]


def draw_candidates(seed: int = 0) -> Candidates:
    """Return candidates of one to four tokens, two of which share their first and three of which share two."""
    draw = torch.Generator().manual_seed(seed)
    alone = [torch.randint(3, 400, (length,), generator=draw).tolist() for length in (1, 2, 4)]
    shared = [[9, 8, 7], [9, 8], [9, 8, 6, 5], [9, 4]]
    return Candidates([[*ids, EOS] for ids in (*alone, *shared)], PAD)


def reference_scores(model: Any, input_ids: Sequence[int], candidates: Candidates) -> torch.Tensor:
    return constrained_logprobs(model, input_ids, candidates.token_ids)


def reference_answer(model: Any, input_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    answer = model.generate(torch.tensor([input_ids]), max_new_tokens=max_tokens, do_sample=False)[0, 1:].tolist()
    return tuple(answer[: answer.index(EOS)] if EOS in answer else answer)


@pytest.mark.parametrize("kind", KINDS)
def test_every_candidate_has_the_log_probability_of_decoding_held_to_the_candidates(kind: Kind) -> None:
    model = tiny_t5(kind)
    student = Student(model, None)
    inputs = draw_inputs(5, 30, 12, 5, 60)
    candidates = [draw_candidates(seed) for seed in range(len(inputs))]
    for ids, some, scores in zip(inputs, candidates, student.score(student.encode(inputs), candidates), strict=True):
        torch.testing.assert_close(scores, reference_scores(model, ids, some), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_one_trie_for_all_inputs_scores_as_one_each(kind: Kind) -> None:
    student = Student(tiny_t5(kind), None)
    encoded = student.encode(draw_inputs(4, 17, 17, 40))
    shared = draw_candidates()
    together = student.score(encoded, [shared] * 4)
    each = student.score(encoded, [draw_candidates() for _ in range(4)])
    for some, others in zip(together, each, strict=True):
        torch.testing.assert_close(some, others, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_tries_of_unequal_size_do_not_see_each_other(kind: Kind) -> None:
    model = tiny_t5(kind)
    student = Student(model, None)
    inputs = draw_inputs(9, 9, 25)
    small, large = Candidates([[3, EOS], [4, EOS]], PAD), draw_candidates()
    scores = student.score(student.encode(inputs), [small, large, small])
    for ids, some, own in zip(inputs, (small, large, small), scores, strict=True):
        torch.testing.assert_close(own, reference_scores(model, ids, some), rtol=1e-5, atol=1e-5)


def test_more_decoder_rows_than_one_pass_takes_are_run_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    student = Student(tiny_t5(), None)
    encoded = student.encode(draw_inputs(4, 17, 8))
    candidates = [draw_candidates(seed) for seed in range(3)]
    together = student.score(encoded, candidates)
    monkeypatch.setattr(student_module, "MAX_DECODER_ROWS", 20)
    monkeypatch.setattr(t5_module, "MAX_PAIRS", 3)
    for some, others in zip(student.score(encoded, candidates), together, strict=True):
        torch.testing.assert_close(some, others, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_candidate_is_what_constrained_greedy_search_finds_among_single_tokens(kind: Kind) -> None:
    model = tiny_t5(kind)
    student = Student(model, None)
    inputs = draw_inputs(*range(3, 23), seed=1)
    labels = [5, 77, 150, 301, 399]
    # behind a label nothing else can come: its end is made certain, so that only the first tokens differ
    allowed = {PAD: labels, **{label: [EOS] for label in labels}}
    first = Candidates([[label] for label in labels], PAD)
    for ids, scores in zip(inputs, student.score(student.encode(inputs), [first] * len(inputs)), strict=True):
        answer = model.generate(
            torch.tensor([ids]),
            do_sample=False,
            max_new_tokens=2,
            prefix_allowed_tokens_fn=lambda _, tokens: allowed[int(tokens[-1])],
        )
        assert labels[int(scores.argmax())] == int(answer[0, 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_greedy_answers_are_those_of_transformers_token_for_token(kind: Kind) -> None:
    model = tiny_t5(kind)
    student = Student(model, None)
    drawn = draw_inputs(*range(3, 63))
    answers = [reference_answer(model, ids, 24) for ids in drawn]
    ending = [place for place, answer in enumerate(answers) if len(answer) < 24]
    others = [place for place, answer in enumerate(answers) if len(answer) == 24]
    chosen = sorted([*ending, *others[:3]])  # most end early, so that the batch shrinks
    assert len({len(answers[place]) for place in ending}) > 3
    inputs, expected = [drawn[place] for place in chosen], [answers[place] for place in chosen]
    assert [answer.token_ids for answer in student.decode(student.encode(inputs), 24)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_and_its_log_probability_do_not_depend_on_what_shares_the_batch(kind: Kind) -> None:
    student = Student(tiny_t5(kind), None)
    inputs = draw_inputs(3, 50, 7, 22, 7)
    together = student.decode(student.encode(inputs), 16)
    for ids, answer in zip(inputs, together, strict=True):
        (alone,) = student.decode(student.encode([ids]), 16)
        assert alone.token_ids == answer.token_ids and alone.is_finished == answer.is_finished
        assert alone.logprob == pytest.approx(answer.logprob, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_probability_of_an_answer_is_that_of_transformers_decoded_or_read(kind: Kind) -> None:
    model = tiny_t5(kind)
    student = Student(model, None)
    inputs = draw_inputs(*range(3, 13))
    encoded = student.encode(inputs)
    answers = student.decode(encoded, 12)
    whole = [[*answer.token_ids, *([EOS] if answer.is_finished else [])] for answer in answers]
    for ids, text, answer, read in zip(inputs, whole, answers, student.logprobs(encoded, whole), strict=True):
        logits = model(input_ids=torch.tensor([ids]), labels=torch.tensor([text])).logits[0]
        expected = float(logits.log_softmax(-1)[range(len(text)), text].sum())
        assert answer.logprob == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert read == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_answers_longer_than_the_relative_positions_reach_are_still_those_of_transformers() -> None:
    model = tiny_t5("v1.1", eos_token_id=VOCABULARY_LACKS)
    student = Student(model, None)
    inputs = draw_inputs(70, 6)
    expected = [
        tuple(model.generate(torch.tensor([ids]), max_new_tokens=60, do_sample=False)[0, 1:].tolist()) for ids in inputs
    ]
    assert [answer.token_ids for answer in student.decode(student.encode(inputs), 60)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_padding_to_common_lengths_changes_nothing(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw_inputs(3, 50, 7, 22, 7, 8)
    candidates = [draw_candidates(seed) for seed in range(6)]
    packed = Student(tiny_t5(kind), None)
    padded = Student(tiny_t5(kind), None)
    padded._length_step = student_module.GPU_LENGTH_STEP
    some, others = packed.encode(inputs), padded.encode(inputs)
    for mine, its in zip(packed.score(some, candidates), padded.score(others, candidates), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)
    found, same = packed.decode(some, 12), padded.decode(others, 12)
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in same]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_packed_score_as_those_of_transformers(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(t5_module, "can_pack", lambda device, dtype: False)
    model = tiny_t5(kind)
    student = Student(model, None)
    inputs, candidates = draw_inputs(9, 30), draw_candidates()
    for ids, scores in zip(inputs, student.score(student.encode(inputs), [candidates] * 2), strict=True):
        torch.testing.assert_close(scores, reference_scores(model, ids, candidates), rtol=1e-5, atol=1e-5)


def test_in_bfloat16_scores_stay_near_those_of_float32() -> None:
    inputs, candidates = draw_inputs(9, 30), [draw_candidates()] * 2
    exact, rough = (Student(tiny_t5(spread=1.0).to(dtype), None) for dtype in (torch.float32, torch.bfloat16))
    for some, others in zip(
        exact.score(exact.encode(inputs), candidates), rough.score(rough.encode(inputs), candidates), strict=True
    ):
        torch.testing.assert_close(some, others, rtol=0.05, atol=0.5)


def test_with_8_bit_integers_scores_stay_near_and_do_not_depend_on_the_batch() -> None:
    model = tiny_t5(spread=1.0)
    inputs, candidates = draw_inputs(9, 30, 9), draw_candidates()
    exact, rough = Student(model, None), Student(model, None, is_int8=True)
    scores = rough.score(rough.encode(inputs), [candidates] * 3)
    for ids, some, own in zip(inputs, exact.score(exact.encode(inputs), [candidates] * 3), scores, strict=True):
        torch.testing.assert_close(some, own, rtol=0.05, atol=0.5)
        torch.testing.assert_close(rough.score(rough.encode([ids]), [candidates])[0], own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_read_from_a_folder_answers_as_the_model_that_was_saved(tmp_path: Path, kind: Kind) -> None:
    student = Student.load(save_student(tmp_path, kind=kind), CPU)
    inputs, candidates = draw_inputs(9, 30), draw_candidates()
    assert student.config.eos_token_id == EOS
    assert student.tokenizer("a dog")["input_ids"] == tiny_tokenizer()("a dog")["input_ids"]
    for ids, scores in zip(inputs, student.score(student.encode(inputs), [candidates] * 2), strict=True):
        torch.testing.assert_close(scores, reference_scores(tiny_t5(kind), ids, candidates), rtol=1e-5, atol=1e-5)


def test_students_that_take_turns_have_their_own_numbers_of_threads(tmp_path: Path) -> None:
    folder = save_student(tmp_path)
    before = torch.get_num_threads()
    try:
        narrow, asked = Student.load(folder, CPU), Student.load(folder, DeviceOptions(device="cpu", num_threads=2))
        used = []
        for student in (narrow, asked, narrow):
            student.encode(draw_inputs(4))
            used.append(torch.get_num_threads())
        assert used == [1, 2, 1]
    finally:
        torch.set_num_threads(before)


def test_what_is_no_usable_t5_is_refused_by_name(tmp_path: Path) -> None:
    folder = save_student(tmp_path)
    with pytest.raises(ValueError, match="overflows in float16"):
        Student.load(folder, DeviceOptions(device="cpu", dtype="float16"))
    with pytest.raises(ValueError, match="8-bit integers need a CPU and float32"):
        Student.load(folder, DeviceOptions(device="cpu", dtype="bfloat16"), is_int8=True)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"model_type": "t5"', '"model_type": "bart"'))
    with pytest.raises(ValueError, match="'bart' is not t5"):
        Student.load(folder, CPU)


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_student(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["decoder.block.1.layer.1.EncDecAttention.q.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights.*EncDecAttention\.q"):
        Student.load(folder, CPU)


def test_inputs_without_tokens_and_tries_without_inputs_are_refused() -> None:
    student = Student(tiny_t5(), None)
    with pytest.raises(ValueError, match="each must have tokens"):
        student.encode([[3, EOS], []])
    with pytest.raises(ValueError, match="2 for 1 inputs"):
        student.score(student.encode(draw_inputs(4)), [draw_candidates()] * 2)
