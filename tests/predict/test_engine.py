"""A checkpoint behind the routes: what is refused, what is answered, and that neighbours change nothing."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.core.errors import InvalidField, TooLarge
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions
from services.predict.confidence import Calibration
from services.predict.engine import PredictEngine, before_circles
from services.predict.model.student import Student
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import CQA, ESNLI, NO_PREFIXES, RELEASED_PREFIXES, SVAMP, Task
from tests.predict.tiny_students import EOS, PAD, constrained_logprobs, save_student, tiny_t5, tiny_tokenizer

CPU = DeviceOptions(device="cpu")
PAIR = {"premise": "A man is walking a dog.", "hypothesis": "A person is outside."}
QUESTION: dict[str, Any] = {
    "question": "Where would you keep the milk?",
    "choices": ["fridge", "garden", "in the school", "park"],
}
PROBLEM = {"body": "Each box has 5 apples.", "question": "How many apples are there in 4 boxes?"}


def describe(task: Task, *, has_rationales: bool = True, **limits: int) -> TaskDescription:
    return TaskDescription.of(task, RELEASED_PREFIXES, has_rationales=has_rationales, **limits)


def engine_of(task: Task, model: Any = None, **settings: Any) -> PredictEngine:
    return PredictEngine(Student(model or tiny_t5(), tiny_tokenizer()), describe(task, **settings))


def label_scores(model: Any, text: str, labels: list[str]) -> torch.Tensor:
    """Return the score of each label by transformers."""
    tokenizer = tiny_tokenizer()
    return constrained_logprobs(model, tokenizer(text).input_ids, [tokenizer(label).input_ids for label in labels])


def test_a_label_is_the_likeliest_and_probabilities_are_those_of_transformers() -> None:
    model = tiny_t5(spread=1.0)
    engine = engine_of(ESNLI, model)
    (answer,) = engine.run_batch([engine.prepare(PAIR)])
    labels = list(ESNLI.labels or ())
    text = f"predict: {PAIR['premise']}</s>{PAIR['hypothesis']}"
    expected = label_scores(model, text, labels).double().softmax(0)
    assert answer.probabilities is not None
    assert list(answer.probabilities) == labels
    assert list(answer.probabilities.values()) == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-7)
    assert answer.label == labels[int(expected.argmax())]
    assert answer.probability == answer.probabilities[answer.label] == max(answer.probabilities.values())
    assert answer.value is None and answer.rationale is None
    assert answer.prompt_tokens == len(tiny_tokenizer()(text).input_ids)
    assert answer.completion_tokens == len(tiny_tokenizer()(answer.label).input_ids)


def test_choices_are_an_inputs_own_and_come_back_as_they_were_given() -> None:
    model = tiny_t5(spread=1.0)
    engine = engine_of(CQA, model)
    other = {"question": "Why?", "choices": ["a</s>", "because"]}
    first, second = engine.run_batch([engine.prepare(QUESTION), engine.prepare(other)])
    text = (
        "predict: Where would you keep the milk?\nAnswer Choices:\n(a) fridge\n(b) garden\n(c) in the school\n(d) park"
    )
    expected = label_scores(model, text, QUESTION["choices"]).double().softmax(0)
    assert first.probabilities is not None and second.probabilities is not None
    assert list(first.probabilities) == QUESTION["choices"]
    assert list(first.probabilities.values()) == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-7)
    assert list(second.probabilities) == ["a</s>", "because"]
    assert sum(second.probabilities.values()) == pytest.approx(1)


@pytest.mark.slow
def test_a_free_answer_is_decoded_and_has_the_value_of_its_equation_if_it_has_one() -> None:
    other = PROBLEM | {"question": "What?"}
    model = taught(tiny_t5(spread=1.0), {asked(PROBLEM): "( 5.0 * 4.0 )", asked(other): "( 5.0 *"})
    engine = engine_of(SVAMP, model)
    equation, half = engine.run_batch([engine.prepare(PROBLEM), engine.prepare(other)])
    assert (equation.label, equation.value) == ("( 5.0 * 4.0 )", 20.0)
    assert (half.label, half.value) == ("( 5.0 *", None)
    assert equation.probabilities is None
    assert 0.5 < equation.probability <= 1


@pytest.mark.parametrize(("task", "fields"), [(ESNLI, PAIR), (CQA, QUESTION), (SVAMP, PROBLEM)], ids=["e", "c", "s"])
def test_a_rationale_is_what_the_student_answers_to_the_other_prefix(task: Task, fields: dict[str, Any]) -> None:
    model = tiny_t5("v1.1")
    engine = engine_of(task, model, max_target_tokens=12)
    plain, explained = engine.run_batch([engine.prepare(fields), engine.prepare(fields, rationale=True)])
    tokenizer = tiny_tokenizer()
    ids = tokenizer("explain: " + task.input_text(fields)).input_ids
    generated = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0]
    every = (list(generated.tolist()), list(before_circles(generated.tolist())))
    said, kept = (str(tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in every)
    assert explained.rationale == (said if kept == said else f"{kept} …")  # random weights soon repeat themselves
    assert plain.rationale is None
    assert (explained.label, explained.probabilities) == (plain.label, plain.probabilities)
    assert explained.prompt_tokens == plain.prompt_tokens + len(ids)
    assert explained.completion_tokens > plain.completion_tokens


def test_neighbours_change_no_answer() -> None:
    engine = engine_of(ESNLI, tiny_t5("v1.1"), max_target_tokens=12)
    fields = [{"premise": "word " * length, "hypothesis": "other"} for length in (1, 40, 7, 90, 7)]
    items = [engine.prepare(one, rationale=place % 2 == 0) for place, one in enumerate(fields)]
    for item, together in zip(items, engine.run_batch(items), strict=True):
        (alone,) = engine.run_batch([item])
        assert (alone.label, alone.rationale) == (together.label, together.rationale)
        assert alone.probabilities == pytest.approx(together.probabilities, rel=1e-3, abs=1e-6)


def test_a_student_without_rationales_refuses_to_give_one() -> None:
    engine = engine_of(ESNLI, has_rationales=False)
    assert not engine.has_rationales
    with pytest.raises(InvalidField, match="has no rationales") as refusal:
        engine.prepare(PAIR, rationale=True)
    assert refusal.value.param == "rationale"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"question": "Why?"}, "inputs.3.choices"),
        ({"choices": ["a", "b"]}, "inputs.3.question"),
        (QUESTION | {"premise": "x"}, "inputs.3.premise"),
        (QUESTION | {"question": ["x"]}, "inputs.3.question"),
        (QUESTION | {"choices": "ab"}, "inputs.3.choices"),
        (QUESTION | {"choices": ["a"]}, "inputs.3.choices"),
        (QUESTION | {"choices": ["a", 3]}, "inputs.3.choices"),
        ({"question": 3, "choices": ["a", "b"]}, "inputs.3.question"),
    ],
)
def test_a_field_at_fault_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as refusal:
        engine_of(CQA).prepare(fields, param="inputs.3")
    assert refusal.value.param == param
    assert refusal.value.message.startswith("inputs.3: ")


def test_an_input_over_the_limit_is_refused_with_tokens_and_limit() -> None:
    engine = engine_of(ESNLI, max_input_tokens=60)
    fields = {"premise": " ".join(["man"] * 80), "hypothesis": "dog"}
    num_tokens = len(tiny_tokenizer()("predict: " + ESNLI.input_text(fields)).input_ids)
    with pytest.raises(TooLarge, match=rf"inputs\.0: The input has {num_tokens} tokens; the limit is 60"):
        engine.prepare(fields)
    with pytest.raises(TooLarge, match=r"at least \d+ tokens; the limit is 60"):
        engine.prepare({"premise": "x" * 10**6, "hypothesis": "dog"})
    with pytest.raises(TooLarge, match=r"inputs\.0\.choices: A choice has \d+ tokens; the limit is 5"):
        engine_of(CQA, max_target_tokens=5).prepare(QUESTION | {"choices": ["a", "b c d e f g h i j"]})


def test_an_input_of_exactly_the_limit_is_taken() -> None:
    num_tokens = len(tiny_tokenizer()("predict: " + ESNLI.input_text(PAIR)).input_ids)
    engine_of(ESNLI, max_input_tokens=num_tokens).prepare(PAIR)
    with pytest.raises(TooLarge):
        engine_of(ESNLI, max_input_tokens=num_tokens - 1).prepare(PAIR)


@pytest.mark.parametrize("spelled", ["</s>", "<pad>", "<extra_id_0>", "<</s>/s>"])
def test_text_never_becomes_a_control_token(spelled: str) -> None:
    item = engine_of(ESNLI).prepare({"premise": f"A man{spelled} walks", "hypothesis": spelled})
    controls = [id_ for id_ in item.label_ids if id_ in (PAD, EOS, 3)]
    assert controls == [EOS, EOS], "the task's own separator and the end"
    assert item.label_ids[-1] == EOS
    choice = engine_of(CQA).prepare(QUESTION | {"choices": [f"a{spelled}", "b"]})
    assert choice.answers is not None
    assert all(ids.count(EOS) == 1 and PAD not in ids for ids in choice.answers.token_ids)


def test_the_cost_counts_every_token_that_is_run() -> None:
    engine = engine_of(ESNLI, max_target_tokens=10)
    plain, explained = engine.prepare(PAIR), engine.prepare(PAIR, rationale=True)
    assert plain.answers is not None
    assert engine.cost(plain) == len(plain.label_ids) + plain.answers.num_nodes
    assert engine.cost(explained) == engine.cost(plain) + len(explained.rationale_ids or ()) + 10
    free = engine_of(SVAMP, max_target_tokens=10)
    item = free.prepare(PROBLEM)
    assert free.cost(item) == len(item.label_ids) + 10


@pytest.mark.parametrize("task", [ESNLI, CQA, SVAMP], ids=lambda task: task.name)
@pytest.mark.parametrize("is_int8", [False, True])
def test_a_checkpoint_folder_loads_warms_up_and_passes_its_check(task: Task, is_int8: bool, tmp_path: Path) -> None:
    folder = save_student(tmp_path, describe(task, max_target_tokens=8).model_dump(mode="json"), "v1.1", spread=1.0)
    engine = PredictEngine.load(folder, CPU, is_int8=is_int8)
    engine.warm_up()
    engine.self_check()
    assert engine.description.task == task.name


def test_a_checkpoint_that_takes_few_tokens_passes_its_check() -> None:
    engine = engine_of(ESNLI, max_input_tokens=40, max_target_tokens=8)
    engine.warm_up()
    engine.self_check()


def test_a_model_that_computes_nonsense_fails_its_check() -> None:
    model = tiny_t5()
    model.decoder.block[1].layer[0].SelfAttention.q.weight.fill_(math.nan)
    engine = engine_of(ESNLI, model)
    with pytest.raises(BrokenModel):
        engine.self_check()
    with pytest.raises(BrokenModel, match="not a number"):
        engine.run_batch([engine.prepare(PAIR)])


def test_a_decoder_that_sees_other_rows_than_its_own_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(ESNLI, tiny_t5("v1.1"))
    bias_of: Callable[[int], torch.Tensor] = engine._student._t5.last_row_bias
    monkeypatch.setattr(engine._student._t5, "last_row_bias", lambda num_rows: bias_of(num_rows).flip(3))
    with pytest.raises(BrokenModel, match="off when it is computed alone"):
        engine.self_check()


def test_labels_that_the_tokenizer_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    task = Task("pair", ("text",), "\n", labels=("a", "a "))
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = stripping()
    description = TaskDescription.of(task, NO_PREFIXES, has_rationales=False)
    with pytest.raises(ValueError, match="labels: the model reads 'a' and 'a ' as the same tokens"):
        PredictEngine(Student(tiny_t5(), tokenizer), description)


def test_prefixes_that_the_tokenizer_cannot_tell_apart_are_refused() -> None:
    description = describe(ESNLI).model_copy(update={"rationale_prefix": "predict: "})
    with pytest.raises(ValueError, match="label_prefix and rationale_prefix: the model reads 'predict: ' twice"):
        PredictEngine(Student(tiny_t5(), tiny_tokenizer()), description)


def test_a_tokenizer_that_does_not_end_its_texts_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = ending_nothing()
    with pytest.raises(ValueError, match="end-of-sequence"):
        PredictEngine(Student(tiny_t5(), tokenizer), describe(ESNLI))


def test_a_tokenizers_own_limit_cuts_nothing(tmp_path: Path) -> None:
    folder = save_student(tmp_path, describe(ESNLI).model_dump(mode="json"))
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(tokenizer))
    assert len(PredictEngine.load(folder, CPU).prepare(PAIR).label_ids) > 8


def stripping() -> Any:
    from tokenizers import normalizers

    return normalizers.Strip()


def ending_nothing() -> Any:
    from tokenizers import processors

    return processors.TemplateProcessing(single="$A", special_tokens=[])


def asked(fields: dict[str, str]) -> str:
    return "predict: " + SVAMP.input_text(fields)


def taught(model: Any, answers: dict[str, str]) -> Any:
    """The model once it answers these texts so."""
    tokenizer = tiny_tokenizer()
    pairs = [[torch.tensor([tokenizer(text).input_ids]) for text in pair] for pair in answers.items()]
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        loss = sum(model(input_ids=ids, labels=target).loss for ids, target in pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


def test_a_student_with_number_slots_reads_signs_and_answers_with_the_input_s_numbers() -> None:
    task = replace(SVAMP, numbers="slots")
    few = {"body": "Each box has five apples.", "question": "How many apples are there in 1,400 boxes?"}
    many = {"body": "Each box has 61 apples.", "question": "How many apples are there in 73 boxes?"}
    engine = engine_of(task)
    items = [engine.prepare(fields, rationale=True) for fields in (few, many)]
    assert items[0].label_ids == items[1].label_ids
    assert items[0].numbers is not None and items[0].numbers.text.count("①") == 1
    written = engine_of(SVAMP).prepare(few)
    assert written.label_ids != items[0].label_ids
    for answer in engine.run_batch(items):
        assert not set("①②") & set(f"{answer.label}{answer.rationale}")


def test_equations_tell_which_numbers_they_lack_and_other_tasks_do_not() -> None:
    engine = engine_of(SVAMP)
    (answer,) = engine.run_batch([engine.prepare(PROBLEM)])
    lacking = [number for number in (4, 5) if str(number) not in answer.label]
    assert list(answer.unused_numbers or ()) == lacking
    (other,) = engine_of(ESNLI).run_batch([engine_of(ESNLI).prepare(PAIR)])
    assert other.unused_numbers is None


def test_a_calibrated_checkpoint_gives_a_confidence_beside_the_probability() -> None:
    model = tiny_t5(spread=1.0)
    plain = engine_of(ESNLI, model)
    confidence = Calibration(temperature=2.0, offset=-1.0)
    description = describe(ESNLI).model_copy(update={"confidence": confidence})
    calibrated = PredictEngine(Student(model, tiny_tokenizer()), description)
    (answer,) = plain.run_batch([plain.prepare(PAIR)])
    (same,) = calibrated.run_batch([calibrated.prepare(PAIR)])
    assert answer.confidence is None
    assert same.probability == answer.probability
    logit = math.log(same.probability / (1 - same.probability))
    assert same.confidence == pytest.approx(1 / (1 + math.exp(1 - logit / 2)))
