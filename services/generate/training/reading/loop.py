"""Training of the starter: stages of generated texts, Muon on matrices and AdamW on the rest, saved states.

The stages go from few short documents to many longer ones, because copying has to be learnt before choosing.

Shapes: B rows, T tokens, N losses.
"""

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from services.generate.training.loop import Muon
from services.generate.training.reading.network import Network
from services.generate.training.reading.texts import FIRST_WEIGHT, Mixture, Rows, draw_rows
from services.jobs.interruption import Stopping
from services.jobs.progress import standard_bars
from services.jobs.resumption import differences, flat
from services.nn.refusals import Refused

STATE_FILE = "resume.pt"
# Options of `fovea train reader`, by an argument's name or its last part.
OPTIONS = {
    "seed": "--seed",
    "tokens_per_step": "--tokens",
    "stages.0.num_steps": "--copy-steps",
    "stages.1.num_steps": "--choice-steps",
    "stages.2.num_steps": "--length-steps",
    **dict.fromkeys(("max_documents", "min_documents"), "--documents"),
    "bias": "--bias",
}


@dataclass(frozen=True)
class Stage:
    """Steps on texts of some mixtures; `learning_rate` multiplies both optimizers' rates and falls to `final`.

    Each step's rows have the length T of one of `kinds`, in turn, and are drawn from its mixture. `finding` is the rate
    of what has useful first weights, relative to the rest: at full rate it is lost before the rest can use it.
    """

    num_steps: int
    kinds: tuple[tuple[int, Mixture], ...]
    finding: float = 1.0
    learning_rate: float = 1.0
    final: float = 1.0


@dataclass(frozen=True)
class Run:
    """One training: its stages, the seed of weights and data, and the folder of states."""

    output: Path
    seed: int
    stages: tuple[Stage, ...]
    tokens_per_step: int = 8192
    muon_rate: float = 0.01
    adam_rate: float = 0.01
    checkpoint_every: int = 50

    @property
    def num_steps(self) -> int:
        return sum(stage.num_steps for stage in self.stages)

    def stage_at(self, step: int) -> tuple[Stage, float]:
        """The stage of a step, counted from 0, and the factor of its learning rates: warm-up, then the stage's fall."""
        first = 0
        for stage in self.stages:
            if step < first + stage.num_steps:
                part = (step - first) / stage.num_steps
                fall = 1 + (stage.final - 1) * max(0.0, 2 * part - 1)
                return stage, min(1.0, (step + 1) / 20) * stage.learning_rate * fall
            first += stage.num_steps
        raise ValueError(f"the run has {first} steps, none of them number {step}")


def draw_batch(run: Run, step: int, tokenizer: Tokenizer) -> Rows:
    """Draw the texts of a step, which depend only on the run and the step."""
    stage, _ = run.stage_at(step)
    length, mixture = stage.kinds[step % len(stage.kinds)]
    count = max(1, run.tokens_per_step // length)
    return draw_rows(random.Random(f"{run.seed} {step}"), mixture, tokenizer, count, length)


def train(run: Run, network: Network, tokenizer: Tokenizer, forward: Callable[..., Tensor] | None = None) -> None:
    """Train `network` in place, continuing from the last saved step if `run.output` has one.

    `forward` is the network's compiled form, if it has one. Raises Refused for a saved state of another run, and
    Stopped at Ctrl-C, with the state saved after the current step.
    """
    compute = network if forward is None else forward
    muon, slow = Muon(network.matrices()), Muon(network.finders())
    groups = [{"params": [network.embeddings], "scale": 1.0}, {"params": network.vectors(), "scale": 0.2}]
    adam = torch.optim.AdamW(groups, lr=run.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    network.train()
    first = _resume(run, network, (muon, slow), adam)
    if 0 < first < run.num_steps:
        standard_bars().say(f"continuing at step {first} of {run.num_steps}")
    with standard_bars().bar("training", total=run.num_steps, done=first) as bar, Stopping() as stopping:
        for step in range(first, run.num_steps):
            stage, factor = run.stage_at(step)
            adam.param_groups[0]["scale"] = stage.finding
            for group in adam.param_groups:
                group["lr"] = run.adam_rate * factor * group["scale"]
            loss, right = _loss(compute, draw_batch(run, step, tokenizer))
            loss.backward()  # type: ignore[no-untyped-call]
            muon.step(run.muon_rate * factor)
            slow.step(run.muon_rate * factor * stage.finding)
            adam.step()
            adam.zero_grad()
            bar.advance(told=f"loss {loss.item():.3f} right {right:.3f}")
            if stopping.is_asked() or (step + 1) % run.checkpoint_every == 0 or step + 1 == run.num_steps:
                _save(run, step + 1, network, (muon, slow), adam)
            stopping.check(step + 1, run.num_steps)
    network.eval()


def _loss(compute: Callable[..., Tensor], rows: Rows) -> tuple[Tensor, float]:
    """Weighted mean loss per token, and the share of answers whose first token is right."""
    logits = compute(rows.input_ids, rows.places)
    losses = cross_entropy(logits, rows.targets, reduction="none")
    right = (logits.argmax(-1) == rows.targets)[rows.weights == FIRST_WEIGHT].float().mean()
    return (losses * rows.weights).sum() / rows.weights.sum(), float(right)


def _resume(run: Run, network: Network, muons: tuple[Muon, Muon], adam: torch.optim.Optimizer) -> int:
    path = run.output / STATE_FILE
    if not path.is_file():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["run"] != _fingerprint(run):
        # states of earlier versions have no arguments by name
        changed = differences(json.loads(state["arguments"]), _arguments(run), OPTIONS) if "arguments" in state else ""
        told = f" ({changed})" if changed else ""
        raise Refused(f"{path} belongs to a run with other arguments{told}: remove it or choose another output folder")
    network.load_state_dict(state["model"])
    for buffer, saved in zip(_buffers(muons), state["muon"], strict=True):
        buffer.copy_(saved)
    adam.load_state_dict(state["adam"])
    return int(state["step"])


def _save(run: Run, step: int, network: Network, muons: tuple[Muon, Muon], adam: torch.optim.Optimizer) -> None:
    state = {
        "run": _fingerprint(run),
        "arguments": json.dumps(_arguments(run)),
        "model": network.state_dict(),
        "muon": _buffers(muons),
        "adam": adam.state_dict(),
        "step": step,
    }
    path = run.output / STATE_FILE
    torch.save(state, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)  # if the process is killed, either the old or the new state is complete


def _buffers(muons: tuple[Muon, Muon]) -> list[Tensor]:
    return [buffer for muon in muons for buffer in muon.buffers]


def _arguments(run: Run) -> dict[str, Any]:
    values = asdict(run)
    kept = {name: values[name] for name in ("seed", "tokens_per_step", "muon_rate", "adam_rate")}
    stages = {
        number: {**stage, "kinds": dict(enumerate(stage["kinds"]))} for number, stage in enumerate(values["stages"])
    }
    return flat({**kept, "stages": stages})


def _fingerprint(run: Run) -> str:
    """Identify the arguments that affect the result."""
    return repr((run.seed, run.stages, run.tokens_per_step, run.muon_rate, run.adam_rate))
