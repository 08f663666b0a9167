"""The loop that every training job of this service runs: batches by step number, resume, several processes.

Batch t is a function of t alone, and a resume state holds model, optimizer and step, so a killed run that is started
again with the same arguments ends with the same weights (bit for bit on a CPU).
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
from accelerate import Accelerator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter

from services.nn.refusals import Refused

Precision = Literal["no", "bf16", "fp16"]


@dataclass(frozen=True)
class Run:
    """Length, speed and place of a stage of training; a job's stages run one after the other.

    `batch_size` counts the examples of one optimizer step over all processes, `learning_rate` is the peak of a
    cosine after a linear warm-up over `warmup_ratio` of the steps, `precision` is accelerate's (no, bf16, fp16).
    Raises Refused for a batch that the processes and their micro-batches can't share.
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

    def __post_init__(self) -> None:
        num_parts = world_size() * self.accumulate
        if self.batch_size % num_parts:
            raise Refused(f"{num_parts} micro-batches can't evenly split a batch of {self.batch_size}")

    @property
    def resume_state(self) -> Path:
        return self.output / f"resume-{self.stage}.pt"

    @property
    def num_examples(self) -> int:
        """Examples in one micro-batch of one process."""
        return self.batch_size // (world_size() * self.accumulate)


class Batch(Protocol):
    """Batch of a job, which can move to the device that trains."""

    def to(self, device: torch.device) -> Self: ...


BatchT = TypeVar("BatchT", bound=Batch)


class _Steps(Dataset[BatchT]):
    """Micro-batches by number, for a loader that may make them in any worker."""

    def __init__(self, make_batch: Callable[[int], BatchT], num_batches: int) -> None:
        self.make_batch = make_batch
        self.num_batches = num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> BatchT:
        return self.make_batch(index)


def train(run: Run, loss: nn.Module, make_batch: Callable[[int], BatchT]) -> None:
    """Minimise `loss(batch)` over `run.num_steps` steps, from the last saved one on if there is one.

    Only parameters that require a gradient are trained; `loss` ends on the CPU, in evaluation mode, with the final
    weights. Raises Refused for a resume state of other arguments, and for a precision that this machine has not.
    """
    accelerator = _accelerator(run)
    model, optimizer = accelerator.prepare(loss, _optimizer(run, loss))
    first_step = _resume(run, accelerator.unwrap_model(model), optimizer)
    batches = _batches(run, accelerator, make_batch, first_step)
    is_main: bool = accelerator.is_main_process
    writer = SummaryWriter(run.output / "tensorboard" / run.stage, purge_step=first_step) if is_main else None
    model.train()
    with _progress(disable=not is_main) as progress:
        task = progress.add_task(run.stage, total=run.num_steps, completed=first_step, loss="")
        for step in range(first_step, run.num_steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(run, step)
            value = _optimizer_step(run, accelerator, model, optimizer, batches)
            progress.advance(task)
            if writer is not None and (step % run.log_every == 0 or step + 1 == run.num_steps):
                progress.update(task, loss=f"loss {value.item():.4f}")
                writer.add_scalar("loss", value.item(), step)
                writer.add_scalar("learning_rate", learning_rate(run, step), step)
            if is_main and ((step + 1) % run.checkpoint_every == 0 or step + 1 == run.num_steps):
                _save_resume(run, accelerator.unwrap_model(model), optimizer, step + 1)
    if writer is not None:
        writer.close()
    accelerator.wait_for_everyone()
    loss.to("cpu").eval()


def learning_rate(run: Run, step: int) -> float:
    """Linear warm-up over `warmup_ratio` of the steps, then a cosine to zero."""
    num_warmup = max(1, round(run.warmup_ratio * run.num_steps))
    if step < num_warmup:
        return run.learning_rate * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(1, run.num_steps - num_warmup)
    return run.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def world_size() -> int:
    """Processes that train together, as torchrun tells them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """This process's number among them, 0 where it is alone."""
    return int(os.environ.get("RANK", "0"))


def gather(x: Tensor) -> Tensor:
    """Rows of all processes, with gradient, in the order of ranks; every process gives as many."""
    return x if world_size() == 1 else torch.cat(all_gather(x))  # type: ignore[no-untyped-call]


def gather_rows(x: Tensor) -> tuple[Tensor, int]:
    """Rows (R, W) of all processes, which may give different numbers, and where this process's own begin."""
    if world_size() == 1:
        return x, 0
    parts: list[Tensor] = [x] * world_size()
    torch.distributed.all_gather_object(parts, x.cpu())
    return torch.cat(parts).to(x.device), sum(len(part) for part in parts[: rank()])


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
    """AdamW with CLIP's constants; vectors and scalars do not decay."""
    trained = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": run.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.98), eps=1e-6)


def _optimizer_step(
    run: Run, accelerator: Accelerator, model: nn.Module, optimizer: Any, batches: Iterator[Any]
) -> Tensor:
    """Run one optimizer step over `run.accumulate` micro-batches; returns the last one's loss."""
    value = torch.zeros(())
    for _ in range(run.accumulate):
        # fused attention is slow in the backward pass of a CPU: the plain one is several times faster there
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
    loader = DataLoader(
        _Steps(make_batch, last),
        batch_size=None,
        sampler=range(first + accelerator.process_index, last, world),
        num_workers=run.num_workers,
        prefetch_factor=4 if run.num_workers else None,
    )
    for batch in loader:
        yield batch.to(accelerator.device)


def _resume(run: Run, model: nn.Module, optimizer: Any) -> int:
    """Load the last saved step, if any, and return it."""
    path = run.resume_state
    if not path.is_file():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["run"] != _fingerprint(run):
        raise Refused(f"{path} belongs to a run with other arguments: remove it or choose another output folder")
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
    unfinished.replace(run.resume_state)  # a kill leaves the old state or the new one


def _fingerprint(run: Run) -> str:
    """The arguments that change what is computed."""
    neutral = {"output", "num_workers", "log_every", "checkpoint_every"}
    return json.dumps({key: value for key, value in asdict(run).items() if key not in neutral}, sort_keys=True)


def _progress(*, disable: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[loss]}"), disable=disable)
