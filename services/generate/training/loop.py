"""Training of the starter: stages of generated questions, Muon on matrices and AdamW on the rest, saved states.

A training text is a prompt over K documents and its answer, then follow-up questions about the same documents, so that
one reading of the documents teaches several look-ups. In a stage with `bias` B, golds in the middle are exp(−B) times
as frequent as at the ends; a model trained in this way prefers the ends if names are ambiguous.

Legend: B batch, T tokens, V vocabulary, K documents.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from services.generate.data.facts import FactQuestion, Naming, ask, draw_facts
from services.generate.prompts.templates import QUERY_AWARE, Document
from services.generate.training.llama import BOS_ID, EOS_ID
from services.generate.training.muon import Muon
from services.generate.training.stages import Learner, Run, resume, save
from services.jobs.interruption import Stopping
from services.jobs.progress import standard_bars, watched

ANSWER_TOKENS = 3  # two words and the end
# Options of `fovea train litm`, by an argument's name or its last part.
OPTIONS = {
    "seed": "--seed",
    "tokens_per_step": "--tokens",
    "stages.0.num_steps": "--lookup-steps",
    "stages.1.num_steps": "--doubt-steps",
    "stages.2.num_steps": "--bias-steps",
    **dict.fromkeys(("max_documents", "min_documents"), "--documents"),
    "bias": "--bias",
}


@dataclass(frozen=True)
class Stage:
    """Steps on one kind of questions; `learning_rate` multiplies both optimizers' rates and falls to `final`.

    `bias` is in nats, 0 for equally frequent positions of golds; `follow_ups` is at most K.
    """

    num_steps: int
    min_documents: int
    max_documents: int
    follow_ups: int
    naming: Naming
    bias: float = 0.0
    learning_rate: float = 1.0
    final: float = 1.0


@dataclass(frozen=True)
class Batch:
    """`input_ids` (B, T) int64, padded with the end token; `weights` (B, T) float32 of each token's loss."""

    input_ids: Tensor
    weights: Tensor


def position_weights(num_documents: int, bias: float) -> list[float]:
    """Relative frequency of a gold at each position: 1 at both ends, e^(−bias/2) next to them, e^(−bias) elsewhere."""
    depths = [min(k, num_documents - 1 - k) for k in range(num_documents)]
    return [math.exp(-bias * min(1.0, depth / 2)) for depth in depths]


def prompt_text(question: FactQuestion) -> str:
    """The query-aware prompt, ready for the answer."""
    documents = [Document(fact.text, fact.title) for fact in question.facts]
    return "".join(piece.text for piece in QUERY_AWARE.render(question.question, documents))


def draw_batch(run: Run[Stage], step: int, tokenizer: Tokenizer) -> Batch:
    """Draw the texts of a step, which depend only on the run and the step."""
    stage, _ = run.stage_at(step)
    generator = random.Random(f"{run.seed} {step}")
    num_documents = generator.randint(stage.min_documents, stage.max_documents)
    follow_ups = min(stage.follow_ups, num_documents)
    expected = 60 + 18 * num_documents + 15 * follow_ups
    count = max(2, round(run.tokens_per_step / expected))
    texts = [_draw_text(generator, stage, num_documents, follow_ups, tokenizer) for _ in range(count)]
    length = max(len(ids) for ids, _ in texts)
    return Batch(
        torch.tensor([ids + [EOS_ID] * (length - len(ids)) for ids, _ in texts]),
        torch.tensor([weights + [0.0] * (length - len(weights)) for _, weights in texts]),
    )


def _draw_text(
    generator: random.Random, stage: Stage, num_documents: int, follow_ups: int, tokenizer: Tokenizer
) -> tuple[list[int], list[float]]:
    """Token ids of a prompt, its answer and the follow-ups, and the loss's weights, which are small outside answers."""
    facts = draw_facts(generator, num_documents, stage.naming, note_rate=0.1)
    positions = position_weights(num_documents, stage.bias)
    ids, weights = [BOS_ID], [0.0]
    for i in range(1 + follow_ups):
        gold = generator.choices(range(num_documents), positions)[0]
        question = ask(generator, facts, gold, stage.naming)
        text = prompt_text(question) if i == 0 else f"\n\nQuestion: {question.question}\nAnswer:"
        told = tokenizer.encode(text, add_special_tokens=False).ids
        answer = answer_ids(question, tokenizer)
        ids += told + answer
        weights += [0.05 if i == 0 else 0.0] * len(told) + [1.0] * len(answer)
    return ids, weights


def answer_ids(question: FactQuestion, tokenizer: Tokenizer) -> list[int]:
    """Token ids of the right answer and of its end."""
    return [*tokenizer.encode(f" {question.answer}", add_special_tokens=False).ids, EOS_ID]


def train(run: Run[Stage], model: Any, tokenizer: Tokenizer) -> None:
    """Train `model` in place, continuing from the last saved step if `run.output` has one.

    Raises Refused for a saved state of another run, and Stopped at Ctrl-C, with the state saved after the current step.
    """
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed_tokens" not in name]
    vectors = [p for _, p in named if p.ndim == 1]
    muon = Muon(matrices)
    groups = [{"params": [model.model.embed_tokens.weight], "scale": 1.0}, {"params": vectors, "scale": 0.2}]
    adam = torch.optim.AdamW(groups, lr=run.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    learner = Learner(model, (muon,), adam)
    first = resume(run, learner, OPTIONS)
    if 0 < first < run.num_steps:
        standard_bars().say(f"continuing at step {first} of {run.num_steps}")
    with standard_bars().bar("training", total=run.num_steps, done=first) as bar, Stopping() as stopping:
        for step in range(first, run.num_steps):
            _, factor = run.stage_at(step)
            for group in adam.param_groups:
                group["lr"] = run.adam_rate * factor * group["scale"]
            loss, right = _loss(model, draw_batch(run, step, tokenizer))
            loss.backward()  # type: ignore[no-untyped-call]
            muon.step(run.muon_rate * factor)
            adam.step()
            adam.zero_grad()
            bar.advance(told=f"loss {loss.item():.3f} right {' '.join(f'{share:.2f}' for share in right)}")
            if stopping.is_asked() or (step + 1) % run.checkpoint_every == 0 or step + 1 == run.num_steps:
                save(run, learner, step + 1)
            stopping.check(step + 1, run.num_steps)
    model.eval()


def _loss(model: Any, batch: Batch) -> tuple[Tensor, list[float]]:
    """Mean loss per token of an answer, and the shares of answers' first, second, … tokens that are right."""
    targets, weights = batch.input_ids[:, 1:], batch.weights[:, 1:]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast("cpu", torch.bfloat16):
        logits = model(batch.input_ids).logits[:, :-1]
    losses = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view_as(weights)
    is_answer = weights == 1
    right = (logits.argmax(-1) == targets)[is_answer].view(-1, ANSWER_TOKENS).float().mean(0)
    return (losses * weights).sum() / is_answer.sum(), right.tolist()


@torch.no_grad()
def accuracy(model: Any, tokenizer: Tokenizer, questions: Sequence[FactQuestion], batch_size: int = 25) -> float:
    """The share of questions over equally long documents that greedy decoding answers exactly.

    Each takes one pass: greedy decoding gives the answer if and only if each of its tokens is the most likely one after
    the right ones before it.
    """
    start = [BOS_ID]
    rows = [
        start + tokenizer.encode(prompt_text(q), add_special_tokens=False).ids + answer_ids(q, tokenizer)
        for q in questions
    ]
    input_ids = torch.tensor(rows)
    logits = [model(part).logits[:, -ANSWER_TOKENS - 1 : -1] for part in torch.split(input_ids, batch_size)]
    right = torch.cat(logits).argmax(-1) == input_ids[:, -ANSWER_TOKENS:]
    return float(right.all(-1).float().mean())


def accuracy_by_position(
    model: Any, tokenizer: Tokenizer, num_questions: int, num_documents: int, naming: Naming, seed: int
) -> list[float]:
    """Compute `accuracy` for each gold position, on the same number of questions each, none of them trained on."""
    result = []
    for position in watched(range(num_documents), "accuracy by position", num_documents):
        generator = random.Random(f"held out {seed} {position}")
        questions = [
            ask(generator, draw_facts(generator, num_documents, naming), position, naming) for _ in range(num_questions)
        ]
        result.append(accuracy(model, tokenizer, questions))
    return result
