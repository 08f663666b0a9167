"""Training of a student on labels and a teacher's rationales, the choice of the best validation step, and its test.

Batch t and its dropout depend only on t, and a state holds model, optimizer and step, so that a killed training that is
started again ends with the same weights (bit for bit on a CPU with one thread). Launched as several processes by
accelerate or torchrun, each with a copy of the model or, with accelerate's FSDP, with a part of it, it minimises the
same loss. Its folder holds, until it has finished,

    resume.pt       step, weights, optimizer and evaluations, with the arguments that they belong to
    best-<step>.pt  the weights that were best on the validation examples, written before the state that names them

Shapes: B examples, T tokens of an input, U of a target, N target tokens that count, D width, V vocabulary.
"""

import copy
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, broadcast_object_list
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.utils.tensorboard import SummaryWriter

from services.jobs.interruption import Stopping
from services.jobs.resumption import differences, flat, option_names
from services.jobs.training import greatest, made_ahead
from services.nn.loading import quiet_loading
from services.predict.confidence import fit_calibration
from services.predict.data.rows import Row, TeachingData
from services.predict.distillation import IGNORED, alpha_of, multi_task_loss, target_loss
from services.predict.model.student import Student
from services.predict.model.task_description import TaskDescription
from services.predict.training.initialisation import add_lora
from services.predict.training.lessons import Batch, Lesson, Lessons
from services.predict.training.marking import accuracy, marked
from services.predict.training.recipe import Evaluation, Outcome, Recipe

CHECKPOINT = "checkpoint"
STATE_FILE = "resume.pt"
# Options of `fovea train distill` and keys of its recipe, by the last part of an argument's name.
OPTIONS = {
    **{name: name for name in Recipe.known_keys()},
    **option_names("method", "steps", "learning_rate", "batch_size", "seed", "fraction", "augment", "rationales"),
    "data.folder": "--data",
    "data.labels": "--labels",
}
# Saved is what is trained, whole also where processes share it out: on the CPU, and in the main process alone.
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True, strict=False)
# Seconds between reports of the progress between two evaluations.
REPORT_SECONDS = 30


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the rate of a step, counted from 0: linear warm-up, then linear decay to 0 at the end."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    return recipe.learning_rate * (recipe.steps - step) / (recipe.steps - recipe.warmup_steps)


class TeachingLoss(nn.Module):
    """The losses of a part of a batch, as a module around the T5."""

    _no_split_modules: ClassVar = ["T5Block"]  # FSDP's unit of sharding, unless configured otherwise

    def __init__(self, model: Any, alpha: float | None) -> None:
        """`alpha` is None for methods that learn only labels."""
        super().__init__()
        self.model = model
        self.alpha = alpha

    def forward(self, part: tuple[Lesson, Lesson | None], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The loss to be minimised, and its components for labels and rationales: scalars, float32.

        The losses of a batch's parts add up to the batch's loss.
        """
        labels, rationales = part
        label_loss = self.loss_of(labels, self.encode(labels).last_hidden_state, batch.num_label_tokens)
        total, rationale_loss = self.total(label_loss, rationales, batch)
        return total, label_loss.detach(), rationale_loss.detach()

    def total(self, label_loss: Tensor, rationales: Lesson | None, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of both losses by the method, and the rationales' loss."""
        rationale_loss = torch.zeros_like(label_loss)
        if rationales is not None:
            encoded = self.encode(rationales).last_hidden_state
            rationale_loss = self.loss_of(rationales, encoded, batch.num_rationale_tokens)
        total = label_loss if self.alpha is None else multi_task_loss(label_loss, rationale_loss, self.alpha)
        return total, rationale_loss

    def tie_weights(self) -> None:
        """Tie the weights again: FSDP calls this after moving the model, which separates shared weights."""
        self.model.tie_weights()

    def encode(self, lesson: Lesson, **options: Any) -> Any:
        """Run the encoder on a lesson's inputs."""
        return self.model.encoder(input_ids=lesson.input_ids, attention_mask=lesson.mask, **options)

    def loss_of(self, lesson: Lesson, encoded: Tensor, num_targets: int) -> Tensor:
        """The loss of a lesson's targets; `encoded` (B, T, D) are its inputs."""
        decoded = self.model.decoder(
            input_ids=lesson.decoder_input_ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=lesson.mask,
            use_cache=False,
        )[0]
        counts = lesson.labels != IGNORED
        decoded = decoded[counts]  # (N, D): the head is the most expensive part if target lengths differ
        if self.model.config.scale_decoder_outputs:
            decoded = decoded * self.model.config.d_model**-0.5
        logits, wanted = self.model.lm_head(decoded)[None], lesson.labels[counts][None]
        return target_loss(logits, wanted, num_targets=num_targets)


class Teaching:
    """One training, in this process."""

    def __init__(self, model: Any, tokenizer: Any, data: TeachingData, recipe: Recipe, folder: Path) -> None:
        self.tokenizer = tokenizer
        self.data = data
        self.recipe = recipe
        self.folder = folder
        # without `cpu=True` on a machine without an accelerator, accelerate starts no process group
        self.accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        self.num_processes: int = self.accelerator.num_processes
        self.is_main: bool = self.accelerator.is_main_process
        if recipe.batch_size % self.num_processes:
            raise ValueError(
                f"batch_size ({recipe.batch_size}) is not a multiple of the {self.num_processes} processes"
            )
        arguments = arguments_of(recipe, data, model)
        self.lessons = self.make_lessons(model)
        self.num_parameters = sum(weight.numel() for weight in model.parameters())
        self.start = (
            {} if recipe.average is None else {name: w.detach().clone() for name, w in model.named_parameters()}
        )
        model.requires_grad_(True)
        if recipe.gradient_checkpointing:
            # renamed in newer transformers
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
        self.lora = None if recipe.lora_rank is None else add_lora(model, recipe.lora_rank, recipe.seed)
        alpha = recipe.alpha if recipe.rationale_weight is None else alpha_of(recipe.rationale_weight)
        loss = self.make_loss(model, alpha if recipe.method == "step-by-step" else None)
        # the model to evaluate: this one, or a copy that collects the weights if each process has only a part
        self.is_sharded = self.accelerator.distributed_type == DistributedType.FSDP
        if self.is_sharded and not self.accelerator.is_fsdp2:
            raise ValueError("accelerate's FSDP must have version 2: fsdp_version: 2 in its configuration")
        self.whole = loss, self.lora
        if self.is_sharded and self.is_main:
            self.whole = copy.deepcopy(self.whole)
        trained = [weight for weight in loss.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=0.0)
        self.loss, self.optimizer = self.accelerator.prepare(loss, optimizer)
        self.progress = Progress(folder, self.loss, self.optimizer.optimizer, arguments)
        self.evaluations: list[Evaluation] = []
        self.sums = torch.zeros(3, device=self.accelerator.device)
        self.earlier = 0.0  # seconds before the last interruption
        self.began = time.monotonic()

    def make_lessons(self, model: Any) -> Lessons:
        return Lessons(self.tokenizer, model.config, self.data.train, self.recipe)

    def make_loss(self, model: Any, alpha: float | None) -> TeachingLoss:
        """Make the loss to be minimised; `alpha` is None for methods that learn only labels."""
        return TeachingLoss(model, alpha)

    @property
    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self.began

    def run(self, report: Callable[[str], None], num_workers: int) -> Outcome:
        saved = self.progress.load()
        if saved is not None:
            self.evaluations = [Evaluation(**values) for values in saved["evaluations"]]
            self.earlier = saved["seconds"]
            if self.is_main:
                self.sums += torch.tensor(saved["sums"], device=self.sums.device)
        first: int = 0 if saved is None else saved["step"]
        if 0 < first < self.recipe.steps:
            report(f"continuing at step {first} of {self.recipe.steps}")
        told = time.monotonic()
        writer = SummaryWriter(self.folder / "tensorboard", purge_step=first) if self.is_main else None
        self.loss.train()
        with closing(writer) if writer is not None else nullcontext(), Stopping() as stopping:
            of_process = {"process": self.accelerator.process_index, "num_processes": self.num_processes}
            make_batch = partial(self.lessons.batch, **of_process)
            batches = made_ahead(make_batch, range(first, self.recipe.steps), num_workers)
            for step, batch in enumerate(batches, start=first):
                self._step(step, batch)
                is_asked = stopping.is_asked(greatest(self.accelerator))
                if (step + 1) % self.recipe.evaluate_every == 0 or step + 1 == self.recipe.steps:
                    self._evaluate(step + 1, writer)
                    told = time.monotonic()
                    report(self._told())
                elif is_asked:
                    self._save(step + 1, is_best=False)
                elif time.monotonic() - told > REPORT_SECONDS:
                    told = time.monotonic()
                    report(f"step {step + 1}/{self.recipe.steps}")
                stopping.check(step + 1, self.recipe.steps)
        outcome = self._finish()
        report(f"best step {outcome.best_step}: test accuracy {outcome.test_accuracy:.4f}")
        return outcome

    def _step(self, step: int, batch: Batch) -> None:
        """Run one optimizer step. The processes' gradients are averaged; each has only its part of the batch's loss."""
        of_step = np.random.SeedSequence((self.recipe.seed, step, self.accelerator.process_index))
        torch.manual_seed(int(of_step.generate_state(1)[0]))  # 32 bits, the limit of a CPU's generator
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, step)
        for number, (labels, rationales) in enumerate(batch.parts, start=1):
            device = self.accelerator.device
            part = labels.to(device), None if rationales is None else rationales.to(device)
            is_last = number == len(batch.parts)
            with nullcontext() if is_last else self.accelerator.no_sync(self.loss):
                with torch.autocast(device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
                    losses = self.loss(part, batch)
                self.accelerator.backward(losses[0] * self.num_processes)
            self.sums += torch.stack(losses).detach()
        self.accelerator.clip_grad_norm_(self.loss.parameters(), self.recipe.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _evaluate(self, step: int, writer: SummaryWriter | None) -> None:
        """Evaluate the student on validation examples, and save the state."""
        since = step - (self.evaluations[-1].step if self.evaluations else 0)
        # each process has a part of the loss; their sum is the whole
        loss, label_loss, rationale_loss = (self.accelerator.reduce(self.sums, "sum") / since).tolist()
        self.sums.zero_()
        has_rationales = any(self.recipe.rationale_texts(example) for example in self.data.train)
        if self.is_sharded:
            weights = get_model_state_dict(self.loss, options=WHOLE)
            if self.is_main:
                set_model_state_dict(self.whole[0], weights, options=WHOLE)
        share = self._accuracy(self.data.valid[: self.recipe.max_evaluated])
        before = max((one.validation_accuracy for one in self.evaluations), default=-1.0)
        self.evaluations.append(Evaluation(step, loss, label_loss, rationale_loss if has_rationales else None, share))
        if writer is not None:
            for name, value in asdict(self.evaluations[-1]).items():
                if name != "step" and value is not None:
                    writer.add_scalar(name, value, step)
            writer.add_scalar("learning_rate", learning_rate(self.recipe, step - 1), step)
        self._save(step, is_best=share > before)
        self.loss.train()

    def _save(self, step: int, *, is_best: bool) -> None:
        """Save the state after a step, which may be the best evaluated one."""
        values = {
            "evaluations": [asdict(one) for one in self.evaluations],
            "seconds": self.seconds,
            "step": step,
            "sums": self.accelerator.reduce(self.sums, "sum").tolist(),
        }
        self.progress.save(values, best_step=self._best().step if self.evaluations else 0, is_best=is_best)

    def _told(self) -> str:
        """Text with the last evaluation and the remaining time at the current pace."""
        last = self.evaluations[-1]
        rationales = "" if last.rationale_loss is None else f" rationales {last.rationale_loss:.4f}"
        left = self.seconds / last.step * (self.recipe.steps - last.step)
        return (
            f"step {last.step}/{self.recipe.steps} loss {last.loss:.4f} labels {last.label_loss:.4f}{rationales}"
            f" validation accuracy {last.validation_accuracy:.4f}, {self.seconds:.0f} s, {left:.0f} s left"
        )

    def _best(self) -> Evaluation:
        """The first evaluation with the greatest accuracy."""
        return max(self.evaluations, key=lambda one: (one.validation_accuracy, -one.step))

    def _accuracy(self, examples: list[Row]) -> float:
        """Compute the accuracy of the whole model on the main process, and send it to all."""
        shares = [0.0]
        if self.is_main:
            loss, lora = self.whole
            loss.to(self.accelerator.device)
            model = loss.model if lora is None else copy.deepcopy(lora).merge_and_unload()
            if self.recipe.precision == "bfloat16" and self.accelerator.device.type != "cpu":
                model = copy.deepcopy(model).to(torch.bfloat16)  # as it is served there
            shares = [accuracy(Student(model, self.tokenizer), self.data.task, examples, self.recipe)]
            if self.is_sharded:
                loss.to("cpu")
        share: float = broadcast_object_list(shares)[0]
        return share

    def _finish(self) -> Outcome:
        """Test the best step, and write its checkpoint folder."""
        best = self._best()
        loss, lora = self.whole
        if self.is_main or not self.is_sharded:
            weights = torch.load(self.progress.best_path(best.step), map_location="cpu", weights_only=True)
            set_model_state_dict(loss, weights, options=WHOLE)
            with torch.no_grad():
                for name, weight in loss.model.named_parameters() if self.start else ():
                    weight.copy_(torch.lerp(self.start[name].to(weight), weight, self.recipe.average or 1.0))
        valid_accuracy = best.validation_accuracy
        if self.recipe.average is not None:
            valid_accuracy = self._accuracy(self.data.valid[: self.recipe.max_evaluated])
        test_accuracy = self._accuracy(self.data.test)
        if self.is_main or not self.is_sharded:
            model = loss.model if lora is None else lora.merge_and_unload()
            model.to("cpu").eval()
            if self.is_main:
                self._write(model)
        self.accelerator.wait_for_everyone()
        return Outcome(
            tuple(self.evaluations),
            best.step,
            valid_accuracy,
            test_accuracy,
            len(self.data.train),
            self.num_parameters,
            self.seconds,
            len(self.data.test),
        )

    def _write(self, model: Any) -> None:
        """Write the checkpoint's folder."""
        unfinished = self.folder / f"{CHECKPOINT}.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        with quiet_loading():
            model.save_pretrained(unfinished)
        self.tokenizer.save_pretrained(unfinished)
        if self.recipe.method != "explained":
            self._described(model).write(unfinished)
        shutil.rmtree(self.folder / CHECKPOINT, ignore_errors=True)
        unfinished.replace(self.folder / CHECKPOINT)

    def _described(self, model: Any) -> TaskDescription:
        """Describe the checkpoint, with the confidence that other examples show, unless inputs have choices.

        A single-task student's answer is free text: rationale and label together.
        """
        task, recipe = self.data.task, self.recipe
        limits = {"max_input_tokens": recipe.max_input_tokens, "max_target_tokens": recipe.max_answer_tokens}
        if recipe.method == "single-task":
            task = replace(task, labels=None, choices=None, metric="exact_match")
        has_rationales = recipe.method == "step-by-step"
        description = TaskDescription.of(task, recipe.used_prefixes, has_rationales=has_rationales, **limits)
        if task.choices is not None or recipe.method == "single-task":
            return description
        examples = self.data.confided or self.data.valid[: recipe.max_evaluated]
        confidence = fit_calibration(*marked(Student(model, self.tokenizer), task, examples, recipe))
        return description.model_copy(update={"confidence": confidence})


def teach(
    model: Any,
    tokenizer: Any,
    data: TeachingData,
    recipe: Recipe,
    folder: Path,
    report: Callable[[str], None],
    *,
    num_workers: int = 0,
    teaching: type[Teaching] = Teaching,
) -> Outcome:
    """Train transformers' T5ForConditionalGeneration, continuing from the last state in `folder` if there is one.

    `folder` receives a state at every evaluation, the losses for TensorBoard and, at the end, `checkpoint`, the best
    step as a folder that `PredictEngine.load` reads (not for "explained" students, whose inputs are more than a task's
    fields). The model itself ends on the CPU with these weights, unless it is sharded over processes. `num_workers`
    processes make the batches ahead of the steps. Raises ValueError.
    """
    for name in ("train", "valid", "test"):
        if not getattr(data, name):
            raise ValueError(f"there are no examples to {'learn from' if name == 'train' else name + ' with'}")
    folder.mkdir(parents=True, exist_ok=True)
    return teaching(model, tokenizer, data, recipe, folder).run(report, num_workers)


class Progress:
    """The files that continue a training, for a module and its optimizer as prepared by accelerate.

    All processes read the same folder; only the main one writes.
    """

    def __init__(self, folder: Path, module: nn.Module, optimizer: Any, arguments: Mapping[str, Any]) -> None:
        """`arguments` must equal those with which a state was saved for it to be continued; JSON values."""
        self._folder = folder
        self._module = module
        self._optimizer = optimizer
        self._arguments = json.loads(json.dumps(arguments))

    def load(self) -> dict[str, Any] | None:
        """Load the last state, and return the values saved with it; None without a state. Raises ValueError."""
        path = self._folder / STATE_FILE
        if not path.is_file():
            return None
        state = torch.load(path, map_location="cpu", weights_only=True)
        agree(path, json.loads(state["arguments"]), self._arguments)
        set_model_state_dict(self._module, state["weights"], options=WHOLE)
        set_optimizer_state_dict(self._module, self._optimizer, state["optimizer"], options=WHOLE)
        values: dict[str, Any] = state["values"]
        return values

    def save(self, values: Mapping[str, Any], *, best_step: int, is_best: bool) -> None:
        """Save the state, and its weights as the best if `is_best`; every process must call this."""
        weights = get_model_state_dict(self._module, options=WHOLE)
        optimizer = get_optimizer_state_dict(self._module, self._optimizer, options=WHOLE)
        if not PartialState().is_main_process:
            return
        if is_best:
            _write(self.best_path(best_step), weights)
        state = {
            "arguments": json.dumps(self._arguments),
            "values": dict(values),
            "weights": weights,
            "optimizer": optimizer,
        }
        _write(self._folder / STATE_FILE, state)
        for path in self._folder.glob("best-*.pt"):
            if path != self.best_path(best_step):
                path.unlink()

    def best_path(self, step: int) -> Path:
        """Name the file of the weights that were saved as the best, of this step."""
        return self._folder / f"best-{step}.pt"


def forget(folder: Path) -> None:
    """Remove the files that a finished training no longer needs."""
    for path in (folder / STATE_FILE, *folder.glob("best-*.pt")):
        path.unlink(missing_ok=True)


def arguments_of(recipe: Recipe, data: TeachingData, model: nn.Module) -> dict[str, Any]:
    """Summarise what affects the result of a training: the recipe, and digests of the examples and of the model.

    The digest covers only the first numbers of each of the model's weights.
    """
    examples = hashlib.sha256(repr(data.task).encode())
    for split in (data.train, data.valid, data.test, *([data.confided] if data.confided else [])):
        examples.update(f"{len(split)}".encode())
        for example in split:
            examples.update(repr(example).encode())
    first = hashlib.sha256()
    for name, weight in model.named_parameters():
        first.update(f"{name} {tuple(weight.shape)}".encode())
        first.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return {**asdict(recipe), "examples": examples.hexdigest()[:12], "model": first.hexdigest()[:12]}


def agree(path: Path, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ValueError, with the differences, if a file was begun with other arguments; JSON objects."""
    changed = differences(flat(begun), flat(now), OPTIONS)
    if changed:
        raise ValueError(
            f"{path} belongs to a training with other arguments ({changed}): remove it or choose another folder"
        )


def _write(path: Path, content: Any) -> None:
    unfinished = path.with_suffix(".partial")
    torch.save(content, unfinished)
    unfinished.replace(path)  # a kill leaves the old file or the new one
