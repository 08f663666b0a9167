"""The training loop of several services' jobs: batches by step number, resume, several processes.

Batch t depends only on t, and a resume state holds model, optimizer and step, so a killed run that is restarted with
the same arguments ends with the same weights (bit for bit on a CPU). Ctrl-C saves one after the current step.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter

from services.core.refusals import Refused
from services.jobs.interruption import Stopping, ignore_interrupts
from services.jobs.progress import standard_bars
from services.jobs.resumption import option_names, other_arguments

Precision = Literal["no", "bf16", "fp16"]
# Stages whose number of steps is the option --steps.
LAST_STAGES = ("training", "contrastive", "tuning")


@dataclass(frozen=True)
class Run:
    """Length, speed and folder of a training stage; a job's stages run one after the other.

    `batch_size` counts the examples of one optimizer step over all processes, `learning_rate` is the peak of a
    cosine after a linear warm-up over `warmup_ratio` of the steps, `precision` is accelerate's (no, bf16, fp16).
    `arguments` are values of JSON that the result depends on besides, such as a recipe's. Raises Refused for a batch
    that cannot be divided among the processes and their micro-batches.
    """

    output: Path
    num_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    warmup_ratio: float
    seed: int
    accumulate: int = 1
    precision: Precision = "no"
    num_workers: int = 0
    checkpoint_every: int = 500
    log_every: int = 20
    stage: str = "training"
    beta2: float = 0.98
    epsilon: float = 1e-6
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        num_parts = world_size() * self.accumulate
        if self.batch_size % num_parts:
            raise Refused(f"{num_parts} micro-batches can't evenly split a batch of {self.batch_size}")

    @property
    def resume_state(self) -> Path:
        return self.output / f"resume-{self.stage}.pt"

    @property
    def num_examples(self) -> int:
        """Number of examples in one micro-batch of one process."""
        return self.batch_size // (world_size() * self.accumulate)


class Batch(Protocol):
    """A job's batch, which can be moved to the training device."""

    def to(self, device: torch.device) -> Self: ...


BatchT = TypeVar("BatchT", bound=Batch)


Made = TypeVar("Made")


class _ByNumber(Dataset[Made]):
    """Batches by number, for a loader that makes them in any worker process."""

    def __init__(self, make_batch: Callable[[int], Made], num_batches: int) -> None:
        self.make_batch = make_batch
        self.num_batches = num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> Made:
        return self.make_batch(index)


def made_ahead(make_batch: Callable[[int], Made], numbers: range, num_workers: int) -> Iterator[Made]:
    """Make the batches of these numbers in order, a few ahead in each of `num_workers` processes; 0: in this one."""
    loader: DataLoader[Made] = DataLoader(
        _ByNumber(make_batch, numbers.stop),
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers,
        prefetch_factor=4 if num_workers else None,
        worker_init_fn=ignore_interrupts,
    )
    return iter(loader)


def train(run: Run, loss: nn.Module, make_batch: Callable[[int], BatchT]) -> None:
    """Minimise `loss(batch)` over `run.num_steps` steps, starting at the last saved one if there is one.

    Only parameters that require a gradient are trained; `loss` ends on the CPU, in evaluation mode, with the final
    weights. Raises Refused for a resume state with other arguments, and for a precision that this machine does not
    support; Stopped at Ctrl-C, with the state saved.
    """
    accelerator = _accelerator(run)
    model, optimizer = accelerator.prepare(loss, _optimizer(run, loss))
    first_step = _resume(run, accelerator.unwrap_model(model), optimizer)
    if 0 < first_step < run.num_steps and accelerator.is_main_process:
        standard_bars().say(f"{run.stage}: continuing at step {first_step} of {run.num_steps}")
    batches = _batches(run, accelerator, make_batch, first_step)
    is_main: bool = accelerator.is_main_process
    log = closing(_Log(run, first_step)) if is_main else nullcontext()
    bar = standard_bars().bar(run.stage, total=run.num_steps, done=first_step, shown=is_main)
    model.train()
    with log as writer, bar as shown, Stopping() as stopping:
        for step in range(first_step, run.num_steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(run, step)
            value = _optimizer_step(run, accelerator, model, optimizer, batches)
            is_last = step + 1 == run.num_steps
            told = None
            if writer is not None and (step % run.log_every == 0 or is_last):
                told = writer.add(step, value.item())
            shown.advance(told=told)
            is_asked = stopping.is_asked(greatest(accelerator))
            if is_main and ((step + 1) % run.checkpoint_every == 0 or is_last or is_asked):
                _save_resume(run, accelerator.unwrap_model(model), optimizer, step + 1)
            stopping.check(step + 1, run.num_steps, run.stage)
    accelerator.wait_for_everyone()
    loss.to("cpu").eval()


def learning_rate(run: Run, step: int) -> float:
    """Compute a linear warm-up over `warmup_ratio` of the steps, then a cosine decay to zero."""
    num_warmup = max(1, round(run.warmup_ratio * run.num_steps))
    if step < num_warmup:
        return run.learning_rate * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(1, run.num_steps - num_warmup)
    return run.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


class _Log:
    """The losses of a stage, for TensorBoard."""

    def __init__(self, run: Run, first_step: int) -> None:
        self._run = run
        self._writer = SummaryWriter(run.output / "tensorboard" / run.stage, purge_step=first_step)

    def add(self, step: int, loss: float) -> str:
        """Log a step, and return its text for a progress bar."""
        self._writer.add_scalar("loss", loss, step)
        self._writer.add_scalar("learning_rate", learning_rate(self._run, step), step)
        return f"loss {loss:.4f}"

    def close(self) -> None:
        self._writer.close()


def greatest(accelerator: Accelerator) -> Callable[[int], int]:
    """Make a function for the greatest of all processes' numbers; all must call it after the same step."""
    if accelerator.num_processes == 1:
        return int
    return lambda number: int(accelerator.gather(torch.tensor([number], device=accelerator.device)).max())


def world_size() -> int:
    """Number of processes that train together, set by torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Number of this process among them, 0 if it is alone."""
    return int(os.environ.get("RANK", "0"))


def gather(x: Tensor, counts: Sequence[int] = ()) -> Tensor:
    """Gather the rows of all processes, with gradient, in rank order; `counts` are their numbers if these differ."""
    if world_size() == 1:
        return x
    if not counts:
        return torch.cat(all_gather(x))  # type: ignore[no-untyped-call]
    missing = x.new_zeros(max(counts) - len(x), *x.shape[1:])
    parts = all_gather(torch.cat([x, missing]))  # type: ignore[no-untyped-call]
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def gather_rows(x: Tensor) -> tuple[Tensor, list[int]]:
    """Gather the rows (R, W) of all processes, without gradient, and return how many each of them has."""
    if world_size() == 1:
        return x, [len(x)]
    parts: list[Tensor] = [x] * world_size()
    torch.distributed.all_gather_object(parts, x.cpu())
    return torch.cat(parts).to(x.device), [len(part) for part in parts]


def _accelerator(run: Run) -> Accelerator:
    try:
        return Accelerator(
            mixed_precision=run.precision,
            gradient_accumulation_steps=run.accumulate,
            cpu=not torch.accelerator.is_available(),  # else accelerate starts no process group on a CPU
        )
    except ValueError as error:
        raise Refused(f"the precision {run.precision} is not available on this machine: {error}") from error


def _optimizer(run: Run, loss: nn.Module) -> torch.optim.Optimizer:
    """Create AdamW, by default with the constants of CLIP's ViTs; vectors and scalars have no weight decay."""
    trained = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": run.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, run.beta2), eps=run.epsilon)


def _optimizer_step(
    run: Run, accelerator: Accelerator, model: nn.Module, optimizer: Any, batches: Iterator[Any]
) -> Tensor:
    """Run one optimizer step over `run.accumulate` micro-batches; returns the last one's loss."""
    value = torch.zeros(())
    for _ in range(run.accumulate):
        # fused attention has a slow backward pass on a CPU: the plain one is several times faster there
        attention = SDPBackend.MATH if accelerator.device.type == "cpu" else _any_attention()
        with accelerator.accumulate(model), sdpa_kernel(attention):
            with accelerator.autocast():
                value = model(next(batches))
            accelerator.backward(value)
            optimizer.step()
            optimizer.zero_grad()
    return value.detach()


def _any_attention() -> list[SDPBackend]:
    return [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.MATH,
    ]


def _batches(
    run: Run, accelerator: Accelerator, make_batch: Callable[[int], BatchT], first_step: int
) -> Iterator[BatchT]:
    world = accelerator.num_processes
    first, last = first_step * run.accumulate * world, run.num_steps * run.accumulate * world
    for batch in made_ahead(make_batch, range(first + accelerator.process_index, last, world), run.num_workers):
        yield batch.to(accelerator.device)


def _resume(run: Run, model: nn.Module, optimizer: Any) -> int:
    """Load the last saved step, if any, and return it."""
    path = run.resume_state
    if not path.is_file():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["run"] != _fingerprint(run):
        options = option_names("batch_size", "learning_rate", "weight_decay", "seed", "accumulate", "precision")
        options["num_steps"] = "--steps" if run.stage in LAST_STAGES else f"the number of steps of the {run.stage}"
        raise other_arguments(path, json.loads(state["run"]), json.loads(_fingerprint(run)), options)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _save_resume(run: Run, model: nn.Module, optimizer: Any, step: int) -> None:
    state = {
        "run": _fingerprint(run),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    unfinished = run.resume_state.with_suffix(".partial")
    torch.save(state, unfinished)
    unfinished.replace(run.resume_state)  # if the process is killed, either the old or the new state is complete


def _fingerprint(run: Run) -> str:
    """Hash the arguments that affect the result."""
    neutral = {"output", "num_workers", "log_every", "checkpoint_every", "arguments"}
    own = {key: value for key, value in asdict(run).items() if key not in neutral}
    return json.dumps({**run.arguments, **own}, sort_keys=True)
