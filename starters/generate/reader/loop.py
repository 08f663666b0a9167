"""Training of the starter: stages of generated texts, Muon on matrices and AdamW on the rest, saved states.

The stages go from few short documents to many longer ones, because copying has to be learnt before choosing.

Shapes: B rows, T tokens, N losses.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from services.jobs.interruption import Stopping
from services.jobs.progress import standard_bars
from starters.generate.muon import Muon
from starters.generate.reader.network import Network
from starters.generate.reader.texts import FIRST_WEIGHT, UNKNOWN, Mixture, Rows, draw_rows
from starters.generate.run import Learner, Run, resume, save

# Of the loss: the rates of the probes' losses, and the weight of sentences that answer.
RELATION_RATE, ANSWERING_RATE, ANSWER_WEIGHT = 0.3, 1.0, 4.0
# Options of `python -m starters train reader`, by an argument's name or its last part.
OPTIONS = {
    "seed": "--seed",
    "tokens_per_step": "--tokens",
    "start": "--start",
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


def draw_batch(run: Run[Stage], step: int, tokenizer: Tokenizer) -> Rows:
    """Draw the texts of a step, which depend only on the run and the step."""
    stage, _ = run.stage_at(step)
    length, mixture = stage.kinds[step % len(stage.kinds)]
    count = max(1, run.tokens_per_step // length)
    return draw_rows(random.Random(f"{run.seed} {step}"), mixture, tokenizer, count, length)


def train(run: Run[Stage], network: Network, tokenizer: Tokenizer, forward: Callable[..., Any] | None = None) -> None:
    """Train `network` in place, continuing from the last saved step if `run.output` has one.

    `forward` is the network's compiled form, if it has one. Raises Refused for a saved state of another run, and
    Stopped at Ctrl-C, with the state saved after the current step.
    """
    compute = network if forward is None else forward
    muon, slow = Muon(network.matrices()), Muon(network.finders())
    groups: list[dict[str, Any]] = [{"params": [network.embeddings], "scale": 1.0}]
    groups += [{"params": params, "scale": 0.2} for params in (network.vectors(), network.probes())]
    adam = torch.optim.AdamW(groups, lr=run.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    network.train()
    learner = Learner(network, (muon, slow), adam)
    first = resume(run, learner, OPTIONS)
    if 0 < first < run.num_steps:
        standard_bars().say(f"continuing at step {first} of {run.num_steps}")
    with standard_bars().bar("training", total=run.num_steps, done=first) as bar, Stopping() as stopping:
        for step in range(first, run.num_steps):
            stage, factor = run.stage_at(step)
            adam.param_groups[0]["scale"] = stage.finding
            for group in adam.param_groups:
                group["lr"] = run.adam_rate * factor * group["scale"]
            losses, told = _losses(compute, draw_batch(run, step, tokenizer))
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            muon.step(run.muon_rate * factor)
            slow.step(run.muon_rate * factor * stage.finding)
            adam.step()
            adam.zero_grad()
            bar.advance(told=told)
            if stopping.is_asked() or (step + 1) % run.checkpoint_every == 0 or step + 1 == run.num_steps:
                save(run, learner, step + 1)
            stopping.check(step + 1, run.num_steps)
    network.eval()


def _losses(compute: Callable[..., Any], rows: Rows) -> tuple[list[Tensor], str]:
    """Weighted means of the losses of tokens, relations and answering sentences, and what a log shows of them."""
    logits, relations, answering = compute(rows.input_ids, rows.places, rows.signs)
    each = cross_entropy(logits, rows.targets, reduction="none")
    right = (logits.argmax(-1) == rows.targets)[rows.weights == FIRST_WEIGHT].float().mean()
    of_tokens = (each * rows.weights).sum() / rows.weights.sum()
    of_relations = cross_entropy(relations, rows.relations, ignore_index=UNKNOWN, reduction="sum")
    of_relations = of_relations / (rows.relations != UNKNOWN).sum().clamp(min=1)
    is_known = rows.answering != UNKNOWN
    # few sentences answer: without the weight, none of them would seem to for long
    weight = torch.tensor(ANSWER_WEIGHT)
    of_answering = binary_cross_entropy_with_logits(
        answering, rows.answering.float(), pos_weight=weight, reduction="none"
    )
    of_answering = (of_answering * is_known).sum() / is_known.sum().clamp(min=1)
    losses = [of_tokens, RELATION_RATE * of_relations, ANSWERING_RATE * of_answering]
    shown = {"loss": of_tokens, "right": right, "relation": of_relations, "answering": of_answering}
    return losses, " ".join(f"{name} {value.item():.3f}" for name, value in shown.items())
