"""A training of `toy_lessons` shared by two processes; what came of it as JSON. Not a test: one runs it.

    python -m tests.predict.sharing_job FOLDER

`copies` in the folder is data parallel. `parts` shares the model out as accelerate's FSDP does on GPUs; accelerate
never does so for processes on a CPU, so it is told here that these are others. Both are killed at their first state,
and begun again.
"""

import json
import multiprocessing
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

import services.predict.training.loop
from services.predict.training.loop import teach
from services.predict.training.recipe import Recipe
from tests.kept_port import kept_port
from tests.predict.tiny_students import tiny_tokenizer
from tests.predict.toy_lessons import examples, toy_data, toy_recipe, toy_t5


def shared_recipe() -> Recipe:
    """Some of its gradients are cut and others not, so that their size matters."""
    return toy_recipe(micro_batch_size=2, max_gradient_norm=4.0)


class SharingAccelerator(accelerate.Accelerator):  # type: ignore[misc]
    """One that shares models out on a CPU."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
        )
        self.state.distributed_type = DistributedType.FSDP


class Killed(Exception):
    """A simulated kill, raised inside the job."""


def kill(line: str) -> None:
    """Instead of a report."""
    raise Killed(line)


def run(folder: Path) -> None:
    """In one process of several."""
    tokenizer, recipe = tiny_tokenizer(), shared_recipe()
    data = toy_data(train=examples(24, 0, explained=0.5))
    try:
        teach(toy_t5(dropout_rate=0.0), tokenizer, data, recipe, folder, kill)
    except Killed:
        accelerate.PartialState().wait_for_everyone()
    model = toy_t5(dropout_rate=0.0)
    outcome = teach(model, tokenizer, data, recipe, folder, lambda _: None)
    is_shared = any(isinstance(weight, DTensor) for weight in model.parameters())
    if accelerate.PartialState().is_main_process:
        (folder / "outcome.json").write_text(json.dumps({**asdict(outcome), "is_shared": is_shared}))


def work(rank: int, port: int, folder: Path) -> None:
    """One of the two processes, as a launcher would have started it."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    run(folder / "copies")
    vars(services.predict.training.loop)["Accelerator"] = SharingAccelerator
    run(folder / "parts")
    torch.distributed.destroy_process_group()


def main() -> None:
    # forked, so that what is slow to import is imported once
    context = multiprocessing.get_context("fork")
    with kept_port() as port:
        workers = [context.Process(target=work, args=(rank, port, Path(sys.argv[1]))) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    sys.exit(max(abs(worker.exitcode or 0) for worker in workers))


if __name__ == "__main__":
    main()
