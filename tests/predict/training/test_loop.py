"""Each method teaches what it should, the best step is that of the validation, and a kill changes nothing."""

import json
import math
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from services.jobs.interruption import Stopped
from services.nn.devices import DeviceOptions
from services.predict.data.rows import Row, TeachingData
from services.predict.distillation import IGNORED, multi_task_loss, target_loss
from services.predict.engine import PredictEngine
from services.predict.model.student import Student
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import SVAMP
from services.predict.training.lessons import Lessons
from services.predict.training.loop import CHECKPOINT, STATE_FILE, TeachingLoss, learning_rate, teach
from services.predict.training.marking import accuracy
from services.predict.training.recipe import METHODS, Method, Outcome, Recipe
from tests.predict.sharing_job import shared_recipe
from tests.predict.tiny_students import tiny_tokenizer
from tests.predict.toy_lessons import TOY, examples, toy_data, toy_recipe, toy_t5

CPU = DeviceOptions("cpu", "float32", 1)


def silent(_: str) -> None:
    """Report nothing."""


def taught(folder: Path, recipe: Recipe, data: TeachingData | None = None, model: Any = None) -> Outcome:
    return teach(model or toy_t5(), tiny_tokenizer(), data or toy_data(), recipe, folder, silent)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / CHECKPOINT / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# What is learnt


@pytest.mark.parametrize("kind", ["t5", "v1.1"])
@pytest.mark.parametrize("micro_batch_size", [None, 3, 1])
def test_a_batch_in_parts_has_the_loss_and_gradients_of_the_released_training(
    kind: Any, micro_batch_size: int | None
) -> None:
    recipe = toy_recipe(micro_batch_size=micro_batch_size, alpha=0.3)
    model, tokenizer = toy_t5(kind=kind).requires_grad_(True), tiny_tokenizer()
    some = examples(8, 0)
    batch = Lessons(tokenizer, model.config, some, recipe).batch(0)
    losses = torch.zeros(3)
    for part in batch.parts:
        values = TeachingLoss(model, recipe.alpha)(part, batch)
        values[0].backward()
        losses += torch.stack(values).detach()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()

    def released(pairs: list[tuple[str, str]]) -> torch.Tensor:
        inputs = tokenizer([text for text, _ in pairs], padding=True, return_tensors="pt")
        labels = tokenizer([target for _, target in pairs], padding=True, return_tensors="pt").input_ids
        labels[labels == tokenizer.pad_token_id] = IGNORED
        logits = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, labels=labels).logits
        return target_loss(logits, labels)

    label_loss = released([(f"predict: {one.input}", one.label) for one in some])
    rationale_loss = released([(f"explain: {one.input}", one.rationale or "") for one in some])
    total = multi_task_loss(label_loss, rationale_loss, 0.3)
    total.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(losses, torch.stack([total, label_loss, rationale_loss]))
    for gradient, weight in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_learns(method: Method, tmp_path: Path) -> None:
    # the label behind a rationale comes last, and is learnt last
    values: Any = {"steps": 100 if method == "single-task" else 40, "max_target_tokens": 40}
    recipe = toy_recipe(method=method, learning_rate=1e-2, batch_size=16, evaluate_every=10, **values)
    data = toy_data()
    if method == "explained":  # what is asked says nothing, the rationale does
        splits = {
            name: [replace(one, input="a man") for one in getattr(data, name)] for name in ("train", "valid", "test")
        }
        data = toy_data(**splits)
    outcome = taught(tmp_path, recipe, data, toy_t5(dropout_rate=0.0))
    first, last = outcome.evaluations[0], outcome.evaluations[-1]
    assert last.loss < first.loss / 2
    assert last.label_loss < first.label_loss / 2
    assert outcome.test_accuracy > 0.7
    if method == "step-by-step":
        assert last.rationale_loss is not None
        assert first.rationale_loss is not None
        assert last.rationale_loss < first.rationale_loss / 2
    else:
        assert last.rationale_loss is None


def test_step_by_step_without_rationales_weight_or_prefixes_is_standard_finetuning(tmp_path: Path) -> None:
    multi_task = taught(tmp_path / "a", toy_recipe(alpha=1.0, label_prefix="", rationale_prefix=""))
    standard = taught(tmp_path / "b", toy_recipe(method="standard"))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert [one.label_loss for one in multi_task.evaluations] == [one.label_loss for one in standard.evaluations]
    taught(tmp_path / "c", toy_recipe(alpha=1.0))
    assert not same(weights(tmp_path / "c"), weights(tmp_path / "b"))


def test_the_learning_rate_falls_to_nothing_behind_a_rise() -> None:
    recipe = toy_recipe(learning_rate=1.0, steps=10, warmup_steps=2)
    assert [learning_rate(recipe, step) for step in (0, 1, 2, 6, 9)] == pytest.approx([0.5, 1, 1, 0.5, 0.125])
    assert learning_rate(replace(recipe, warmup_steps=0), 0) == 1
    assert learning_rate(replace(recipe, warmup_steps=0), 9) == pytest.approx(0.1)


def test_without_rationales_labels_alone_are_learnt(tmp_path: Path) -> None:
    last = taught(tmp_path, toy_recipe(), toy_data(train=examples(24, 0, explained=0.0))).evaluations[-1]
    assert last.rationale_loss is None
    assert last.loss == pytest.approx(last.label_loss / 2)


def test_weights_move_by_the_learning_rate_and_nothing_else(tmp_path: Path) -> None:
    before = toy_t5(kind="v1.1").state_dict()
    # no answer is ever right, so that the first step is kept: a third of the way up
    data = toy_data(valid=[Row("a man", "never")])
    recipe = toy_recipe(learning_rate=0.03, steps=4, warmup_steps=3, evaluate_every=1)
    assert taught(tmp_path / "a", recipe, data, toy_t5(kind="v1.1")).best_step == 1
    moved = {name: (weight - before[name]).abs() for name, weight in weights(tmp_path / "a").items()}
    assert max(float(distance.max()) for distance in moved.values()) == pytest.approx(0.01, rel=1e-3)
    unseen = tiny_tokenizer()("garden").input_ids[0]
    assert not moved["shared.weight"][unseen].any()  # it does not decay
    taught(tmp_path / "b", replace(recipe, max_gradient_norm=1e-12), data, toy_t5(kind="v1.1"))
    moved = {name: (weight - before[name]).abs() for name, weight in weights(tmp_path / "b").items()}
    assert 0 < max(float(distance.max()) for distance in moved.values()) < 1e-5


def test_each_step_leaves_others_out(tmp_path: Path) -> None:
    recipe = toy_recipe(learning_rate=1e-30, evaluate_every=1, method="standard")
    data = toy_data(train=[Row("a man in milk", "neutral")] * 8)
    losses = {one.loss for one in taught(tmp_path / "a", recipe, data).evaluations}
    assert len(losses) == 4  # by dropout alone
    assert losses == {one.loss for one in taught(tmp_path / "b", recipe, data).evaluations}
    assert losses.isdisjoint(one.loss for one in taught(tmp_path / "c", replace(recipe, seed=1), data).evaluations)


# Which step is kept


def test_the_first_best_step_on_the_validation_examples_is_kept_whatever_the_test_says(tmp_path: Path) -> None:
    every = [Row("a man", "yes")] * 8
    model = toy_t5(dropout_rate=0.0)
    recipe = toy_recipe(method="standard", steps=12, evaluate_every=12, learning_rate=2e-2)
    no = [replace(one, label="no") for one in every]
    assert taught(tmp_path / "before", recipe, TeachingData(TOY, no, no, no), model).test_accuracy == 1
    # learns "yes" anew: what it answered before is right for the validation alone, for the first steps
    recipe = replace(recipe, evaluate_every=1, learning_rate=1e-3, steps=40)
    outcome = taught(tmp_path / "after", recipe, TeachingData(TOY, every, no, every), model)
    shares = [one.validation_accuracy for one in outcome.evaluations]
    assert shares[:2] == [1, 1]
    assert shares[-1] == 0
    assert outcome.best_step == 1
    assert (outcome.validation_accuracy, outcome.test_accuracy) == (1, 0)
    student = Student.load(tmp_path / "after" / CHECKPOINT, CPU)
    assert accuracy(student, TOY, no, recipe) == 1


def test_an_evaluation_takes_the_first_validation_examples(tmp_path: Path) -> None:
    broken = Row("", "")  # never evaluated: it has no rationale for this method
    data = toy_data(valid=[*examples(2, 1), broken])
    outcome = taught(tmp_path, toy_recipe(method="explained", max_evaluated=2), data)
    assert {one.step for one in outcome.evaluations} == {2, 4}


def test_answers_are_compared_by_the_metric_of_the_task(tmp_path: Path) -> None:
    data = toy_data(task=SVAMP, train=[Row("a box", "5")] * 8, valid=[Row("a box", "5")], test=[])
    data = replace(data, test=[Row("a box", "( 5.0 )")])
    recipe = toy_recipe(method="standard", steps=12, evaluate_every=12, learning_rate=2e-2)
    assert taught(tmp_path, recipe, data).test_accuracy == 1


# Interrupted, and begun again


class Killed(Exception):
    """A simulated kill, raised inside the loop."""


@pytest.mark.parametrize("lora_rank", [None, 2])
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_interrupted_training_with_workers_ends_as_an_unbroken_one_without(
    lora_rank: int | None, tmp_path: Path
) -> None:
    if lora_rank is not None:
        pytest.importorskip("peft")
    recipe = toy_recipe(steps=6, lora_rank=lora_rank)
    unbroken = taught(tmp_path / "unbroken", recipe)
    lines = []

    def kill(line: str) -> None:
        lines.append(line)
        if line.startswith("step"):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            teach(toy_t5(), tiny_tokenizer(), toy_data(), recipe, tmp_path / "broken", kill, num_workers=2)
    broken = taught(tmp_path / "broken", recipe)
    assert [line.split(" loss")[0] for line in lines] == ["step 2/6", "continuing at step 2 of 6", "step 4/6"]
    assert replace(broken, seconds=0) == replace(unbroken, seconds=0)
    assert same(weights(tmp_path / "unbroken"), weights(tmp_path / "broken"))


def test_an_averaged_student_lies_between_its_weights_before_and_after_the_training(tmp_path: Path) -> None:
    start = {name: weight.clone() for name, weight in toy_t5().state_dict().items()}
    taught(tmp_path / "whole", toy_recipe())
    outcome = taught(tmp_path / "averaged", toy_recipe(average=0.25))
    trained, averaged = weights(tmp_path / "whole"), weights(tmp_path / "averaged")
    for name, weight in averaged.items():
        torch.testing.assert_close(weight, torch.lerp(start[name], trained[name], 0.25))
    assert not same(trained, averaged)
    assert outcome.best_step in [one.step for one in outcome.evaluations]


@pytest.mark.parametrize("values", [{"average": 0.0}, {"average": 1.5}, {"average": 0.5, "lora_rank": 2}])
def test_an_average_needs_a_share_and_all_weights(values: Any) -> None:
    with pytest.raises(ValueError, match="average"):
        toy_recipe(**values)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_saves_the_step_that_runs_between_two_evaluations(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # what runs in a shell's background ignores Ctrl-C
    recipe = toy_recipe(steps=6)
    unbroken = taught(tmp_path / "unbroken", recipe)
    try:
        with pytest.raises(Stopped, match=r"step 3 of 6 .* is saved\. Run the same command to continue"):
            teach(
                toy_t5(),
                tiny_tokenizer(),
                toy_data(),
                recipe,
                tmp_path / "broken",
                lambda line: signal.raise_signal(number),
            )
    finally:
        signal.signal(number, before)
    broken = taught(tmp_path / "broken", recipe)
    assert replace(broken, seconds=0) == replace(unbroken, seconds=0)
    assert same(weights(tmp_path / "unbroken"), weights(tmp_path / "broken"))


def test_a_signal_before_the_first_evaluation_saves_its_step_and_the_training_goes_on(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    recipe = toy_recipe(steps=6)
    unbroken = taught(tmp_path / "unbroken", recipe)
    model = toy_t5()
    interrupt = iter([lambda: signal.raise_signal(signal.SIGINT)])
    hook = model.encoder.register_forward_hook(lambda *_: next(interrupt, lambda: None)())
    try:
        with pytest.raises(Stopped, match=r"step 1 of 6 .* is saved"):
            teach(model, tiny_tokenizer(), toy_data(), recipe, tmp_path / "broken", print)
    finally:
        hook.remove()
        signal.signal(signal.SIGINT, before)
    broken = taught(tmp_path / "broken", recipe)
    assert replace(broken, seconds=0) == replace(unbroken, seconds=0)
    assert same(weights(tmp_path / "unbroken"), weights(tmp_path / "broken"))


def test_a_state_of_other_arguments_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    taught(tmp_path, toy_recipe())
    with pytest.raises(ValueError, match=r"--learning-rate was 0\.005, and is 0\.001"):
        taught(tmp_path, toy_recipe(learning_rate=1e-3))
    with pytest.raises(ValueError, match=r"examples was "):
        taught(tmp_path, toy_recipe(), toy_data(test=examples(8, 3)))
    with pytest.raises(ValueError, match=r"model was "):
        taught(tmp_path, toy_recipe(), model=toy_t5(seed=1))
    assert (tmp_path / STATE_FILE).is_file()


# What comes out


def test_the_checkpoint_is_one_that_the_service_reads(tmp_path: Path) -> None:
    taught(tmp_path, toy_recipe(label_prefix="[label] ", rationale_prefix="[rationale] ", max_input_tokens=30))
    engine = PredictEngine.load(tmp_path / CHECKPOINT, CPU)
    assert engine.description.label_prefix == "[label] "
    assert engine.description.rationale_prefix == "[rationale] "
    assert (engine.description.max_input_tokens, engine.description.max_target_tokens) == (30, 6)
    (prediction,) = engine.run_batch([engine.prepare({"text": "a man in milk"}, rationale=True)])
    assert prediction.label in ("entailment", "neutral")
    assert prediction.rationale is not None
    assert prediction.confidence is not None and 0 < prediction.confidence < 1


def test_only_step_by_step_students_give_rationales(tmp_path: Path) -> None:
    taught(tmp_path / "a", toy_recipe(method="standard"))
    description = TaskDescription.read(tmp_path / "a" / CHECKPOINT)
    assert (description.label_prefix, description.rationale_prefix) == ("", None)
    assert description.labels == TOY.labels
    taught(tmp_path / "b", toy_recipe(method="single-task"))
    description = TaskDescription.read(tmp_path / "b" / CHECKPOINT)
    assert (description.labels, description.max_target_tokens, description.confidence) == (None, 24, None)
    taught(tmp_path / "c", toy_recipe(method="explained"))
    assert not (tmp_path / "c" / CHECKPOINT / "task.json").exists()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_low_rank_matrices_are_merged_into_queries_and_values_alone(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = toy_t5()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    outcome = taught(tmp_path, toy_recipe(lora_rank=2, learning_rate=3e-2, steps=8), model=model)
    after = weights(tmp_path)
    assert after.keys() <= before.keys()
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in after if name.endswith((".q.weight", ".v.weight"))}
    student = Student.load(tmp_path / CHECKPOINT, CPU)
    assert accuracy(student, TOY, toy_data().test, toy_recipe()) == outcome.test_accuracy


def test_low_rank_matrices_need_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match="lora_rank needs the package peft"):
        taught(tmp_path, toy_recipe(lora_rank=2))


def test_half_precision_learns_nearly_the_same(tmp_path: Path) -> None:
    full = taught(tmp_path / "a", toy_recipe()).evaluations[0]
    half = taught(tmp_path / "b", toy_recipe(precision="bfloat16")).evaluations[0]
    assert half.loss == pytest.approx(full.loss, rel=0.02)
    assert half.loss != full.loss
    assert all(weight.dtype == torch.float32 for weight in weights(tmp_path / "b").values())


def test_activations_computed_twice_change_nothing(tmp_path: Path) -> None:
    once = taught(tmp_path / "a", toy_recipe())
    twice = taught(tmp_path / "b", toy_recipe(gradient_checkpointing=True))
    assert twice.evaluations[-1].loss == pytest.approx(once.evaluations[-1].loss, rel=1e-5)


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "other"}, "method\n  Input should be 'standard', 'single-task'"),
        ({"alpha": 1.1}, "alpha\n  Input should be less than or equal to 1"),
        ({"alpha": math.nan}, "alpha\n  Input should be"),
        ({"learning_rate": 0.0}, "learning_rate\n  Input should be greater than 0"),
        ({"max_gradient_norm": math.inf}, "max_gradient_norm\n  Input should be a finite number"),
        ({"micro_batch_size": 0}, "micro_batch_size\n  Input should be greater than or equal to 1"),
        ({"steps": 0}, "steps\n  Input should be greater than or equal to 1"),
        ({"max_target_tokens": 1}, "max_target_tokens\n  Input should be greater than or equal to 2"),
        ({"seed": -1}, "seed\n  Input should be greater than or equal to 0"),
        ({"warmup_steps": 4}, "warmup_steps must be below steps"),
        ({"precision": "float16"}, "precision\n  Input should be 'float32' or 'bfloat16'"),
    ],
)
def test_a_recipe_without_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toy_recipe(**changes)


@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_data_without_examples_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no examples"):
        taught(tmp_path, toy_recipe(), toy_data(**{name: []}))


def test_a_tokenizer_that_ends_no_text_is_refused(tmp_path: Path) -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(ValueError, match="does not append the end-of-sequence token to a text"):
        teach(toy_t5(), tokenizer, toy_data(), toy_recipe(), tmp_path, silent)


def test_explained_inputs_need_their_rationales(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rationale to explain the input"):
        taught(tmp_path, toy_recipe(method="explained"), toy_data(train=examples(24, 0, explained=0.5)))


# Several processes


def test_processes_that_share_the_work_learn_what_one_does_interrupted_or_not(tmp_path: Path) -> None:
    data, recipe = toy_data(train=examples(24, 0, explained=0.5)), shared_recipe()
    alone = taught(tmp_path / "alone", recipe, data, toy_t5(dropout_rate=0.0))
    job = subprocess.run(
        [sys.executable, "-m", "tests.predict.sharing_job", str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=570,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    for way in ("copies", "parts"):
        shared = json.loads((tmp_path / way / "outcome.json").read_text())
        assert shared["is_shared"] is (way == "parts")
        for one, two in zip(alone.evaluations, shared["evaluations"], strict=True):
            assert two == pytest.approx(asdict(one), rel=1e-4)
        for name, weight in weights(tmp_path / "alone").items():
            torch.testing.assert_close(weights(tmp_path / way)[name], weight, atol=1e-4, rtol=1e-3)
