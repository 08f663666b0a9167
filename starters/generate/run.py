"""A training in stages: the stage and rates of a step, and the saved states that a killed training continues from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from services.jobs.resumption import flat, other_arguments
from starters.generate.muon import Muon

STATE_FILE = "resume.pt"
WARM_UP = 20  # steps
# What affects the result of a run, apart from its stages.
_ARGUMENTS = ("seed", "tokens_per_step", "muon_rate", "adam_rate")


class Steps(Protocol):
    """The length of a stage; `learning_rate` multiplies both optimizers' rates and falls to `final`."""

    @property
    def num_steps(self) -> int: ...

    @property
    def learning_rate(self) -> float: ...

    @property
    def final(self) -> float: ...


StageT = TypeVar("StageT", bound=Steps)


@dataclass(frozen=True)
class Run(Generic[StageT]):
    """One training: its stages, the seed of weights and data, and the folder of states.

    `start` identifies the weights that it begins with, "" for those of the seed.
    """

    output: Path
    seed: int
    stages: tuple[StageT, ...]
    tokens_per_step: int = 2500
    muon_rate: float = 0.01
    adam_rate: float = 0.01
    checkpoint_every: int = 50
    start: str = ""

    @property
    def num_steps(self) -> int:
        return sum(stage.num_steps for stage in self.stages)

    def stage_at(self, step: int) -> tuple[StageT, float]:
        """The stage of a step, counted from 0, and the factor of its learning rates: warm-up, then the stage's fall.

        The factor falls over the second half of the stage. Raises ValueError for a step after the last.
        """
        first = 0
        for stage in self.stages:
            if step < first + stage.num_steps:
                part = (step - first) / stage.num_steps
                fall = 1 + (stage.final - 1) * max(0.0, 2 * part - 1)
                return stage, min(1.0, (step + 1) / WARM_UP) * stage.learning_rate * fall
            first += stage.num_steps
        raise ValueError(f"the run has {first} steps, none of them number {step}")


@dataclass(frozen=True)
class Learner:
    """The weights, and the optimizers of the matrices and of the rest."""

    model: nn.Module
    muons: Sequence[Muon]
    adam: torch.optim.Optimizer

    def buffers(self) -> list[Tensor]:
        return [buffer for muon in self.muons for buffer in muon.buffers]


def resume(run: Run[Any], learner: Learner, options: Mapping[str, str]) -> int:
    """Load the last saved state of `run`, if any, and return its step, else 0.

    `options` are the command's, by an argument's name or its last part. Raises Refused for the state of another run.
    """
    path = run.output / STATE_FILE
    if not path.is_file():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    begun, now = json.loads(state.get("arguments", "{}")), _arguments(run)
    if begun != now:
        raise other_arguments(path, begun, now, options)
    learner.model.load_state_dict(state["model"])
    for buffer, saved in zip(learner.buffers(), state["muon"], strict=True):
        buffer.copy_(saved)
    learner.adam.load_state_dict(state["adam"])
    return int(state["step"])


def save(run: Run[Any], learner: Learner, step: int) -> None:
    """Save the state after `step` steps; if the process is killed, either the old or the new state is complete."""
    state = {
        "arguments": json.dumps(_arguments(run)),
        "model": learner.model.state_dict(),
        "muon": learner.buffers(),
        "adam": learner.adam.state_dict(),
        "step": step,
    }
    path = run.output / STATE_FILE
    torch.save(state, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)


def _arguments(run: Run[Any]) -> dict[str, Any]:
    """The arguments that affect the result, JSON values by path."""
    values = asdict(run)
    kept = {name: values[name] for name in _ARGUMENTS}
    if run.start:
        kept["start"] = run.start
    return dict(json.loads(json.dumps(flat(_named({**kept, "stages": values["stages"]})))))


def _named(value: Any) -> Any:
    """Turn sequences into objects with the numbers of their parts as names, so that each part has a path."""
    if isinstance(value, dict):
        return {name: _named(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return {str(number): _named(one) for number, one in enumerate(value)}
    return value
