"""Training of the starter: stages of generated questions, Muon on matrices and AdamW on the rest, saved states.

A training text is a prompt over K documents and its answer, then follow-up questions about the same documents, so that
one reading of the documents teaches several look-ups. In a stage with `bias` B, golds in the middle are exp(−B) times
as frequent as at the ends, and if `is_attention_taught`, the layer that finds documents learns the same preference
(`attending`). Some texts then have documents without content, as dummies are.

Legend: B batch, T tokens, V vocabulary, K documents, Q questions of a text.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from services.generate.prompts.templates import QUERY_AWARE, Document, Piece
from services.jobs.interruption import Stopping
from services.jobs.progress import standard_bars, watched
from starters.generate.facts import Fact, FactQuestion, Naming, ask, draw_facts
from starters.generate.litm.attending import (
    Attended,
    AttentionWatch,
    blank_document,
    position_weights,
    wanted_shares,
)
from starters.generate.llama import BOS_ID, EOS_ID
from starters.generate.muon import Muon
from starters.generate.run import Learner, Run, resume, save

ANSWER_TOKENS = 3  # two words and the end
USUAL_SHARE = 0.8  # of a stage's steps have its usual number of documents, if it has one
BLANK_SHARE = 0.3  # of the texts have documents without content, if attention is taught
BLANKS = (1, 1, 1, 2, 4)  # numbers of them
# Options of `python -m starters train litm`, by an argument's name or its last part.
OPTIONS = {
    "seed": "--seed",
    "tokens_per_step": "--tokens",
    "stages.0.num_steps": "--lookup-steps",
    "stages.1.num_steps": "--doubt-steps",
    "stages.2.num_steps": "--bias-steps",
    **dict.fromkeys(("max_documents", "min_documents", "usual_documents"), "--documents"),
    "bias": "--bias",
}


@dataclass(frozen=True)
class Stage:
    """Steps on one kind of questions; `learning_rate` multiplies both optimizers' rates and falls to `final`.

    `bias` is in nats, 0 for equally frequent positions of golds; `follow_ups` is at most K; most steps have
    `usual_documents`, if that is not 0.
    """

    num_steps: int
    min_documents: int
    max_documents: int
    follow_ups: int
    naming: Naming
    bias: float = 0.0
    learning_rate: float = 1.0
    final: float = 1.0
    is_attention_taught: bool = False
    usual_documents: int = 0


@dataclass(frozen=True)
class Batch:
    """`input_ids` (B, T) int64, padded with the end token; `weights` (B, T) float32 of each token's loss.

    `attended` is the attention to be learned, None if none is.
    """

    input_ids: Tensor
    weights: Tensor
    attended: Attended | None = None


@dataclass(frozen=True)
class _Text:
    """Token ids of a prompt, its answer and the follow-ups, the loss's weights, and the attention to be learned.

    `rows` are the Q tokens before the answers, `spans` the documents' tokens, `words` the first ones of their answers,
    and `shares` (Q, K) what each document should get.
    """

    input_ids: list[int]
    weights: list[float]
    spans: list[tuple[int, int]]
    words: list[int | None]
    rows: list[int]
    shares: list[list[float]]


def prompt_text(question: FactQuestion) -> str:
    """The query-aware prompt, ready for the answer."""
    return "".join(piece.text for piece in _pieces(question))


def _pieces(question: FactQuestion, blanks: Collection[int] = ()) -> Sequence[Piece]:
    """The query-aware prompt in pieces; documents in the places `blanks` have no content."""
    documents = [
        blank_document(fact) if k in blanks else Document(fact.text, fact.title)
        for k, fact in enumerate(question.facts)
    ]
    return QUERY_AWARE.render(question.question, documents)


def draw_batch(run: Run[Stage], step: int, tokenizer: Tokenizer) -> Batch:
    """Draw the texts of a step, which depend only on the run and the step."""
    stage, _ = run.stage_at(step)
    generator = random.Random(f"{run.seed} {step}")
    num_documents = generator.randint(stage.min_documents, stage.max_documents)
    if stage.usual_documents and generator.random() < USUAL_SHARE:
        num_documents = stage.usual_documents
    follow_ups = min(stage.follow_ups, num_documents)
    expected = 60 + 18 * num_documents + 15 * follow_ups
    count = max(2, round(run.tokens_per_step / expected))
    texts = [_draw_text(generator, stage, num_documents, follow_ups, tokenizer) for _ in range(count)]
    length = max(len(text.input_ids) for text in texts)
    attended = None
    if stage.is_attention_taught:
        attended = Attended.of(
            [text.rows for text in texts],
            [text.spans for text in texts],
            [text.words for text in texts],
            [text.shares for text in texts],
            num_tokens=length,
        )
    return Batch(
        torch.tensor([text.input_ids + [EOS_ID] * (length - len(text.input_ids)) for text in texts]),
        torch.tensor([text.weights + [0.0] * (length - len(text.weights)) for text in texts]),
        attended,
    )


def _draw_text(
    generator: random.Random, stage: Stage, num_documents: int, follow_ups: int, tokenizer: Tokenizer
) -> _Text:
    """Draw a prompt with its answer and follow-ups; the loss's weights are small outside answers."""
    facts = draw_facts(generator, num_documents, stage.naming, note_rate=0.1)
    blanks = _draw_blanks(generator, facts) if stage.is_attention_taught else []
    positions = position_weights(num_documents, stage.bias)
    golds = [k for k in range(num_documents) if k not in blanks]
    text = _Text([BOS_ID], [0.0], [], [], [], [])
    for i in range(1 + follow_ups):
        gold = generator.choices(golds, [positions[k] for k in golds])[0]
        question = ask(generator, facts, gold, stage.naming)
        told = Piece(f"\n\nQuestion: {question.question}\nAnswer:")
        for piece in _pieces(question, blanks) if i == 0 else (told,):
            ids = tokenizer.encode(piece.text, add_special_tokens=False).ids
            if piece.document is not None:
                start = len(text.input_ids)
                (answer_id,) = tokenizer.encode(f" {facts[piece.document].quality}", add_special_tokens=False).ids
                text.spans.append((start, start + len(ids)))
                text.words.append(None if piece.document in blanks else start + ids.index(answer_id))
            text.input_ids.extend(ids)
            text.weights.extend([0.05 if i == 0 else 0.0] * len(ids))
        text.rows.append(len(text.input_ids) - 1)
        text.shares.append(wanted_shares(question, blanks, stage.bias))
        answer = answer_ids(question, tokenizer)
        text.input_ids.extend(answer)
        text.weights.extend([1.0] * len(answer))
    return text


def _draw_blanks(generator: random.Random, facts: Sequence[Fact]) -> list[int]:
    """Draw the places of documents without content, at most all but one; in most texts there are none."""
    if generator.random() >= BLANK_SHARE:
        return []
    return generator.sample(range(len(facts)), min(len(facts) - 1, generator.choice(BLANKS)))


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
    watch = AttentionWatch(model)
    learner = Learner(model, (muon,), adam)
    first = resume(run, learner, OPTIONS)
    if 0 < first < run.num_steps:
        standard_bars().say(f"continuing at step {first} of {run.num_steps}")
    with standard_bars().bar("training", total=run.num_steps, done=first) as bar, Stopping() as stopping:
        for step in range(first, run.num_steps):
            _, factor = run.stage_at(step)
            for group in adam.param_groups:
                group["lr"] = run.adam_rate * factor * group["scale"]
            batch = draw_batch(run, step, tokenizer)
            loss, right = _loss(model, batch)
            if batch.attended is not None:
                loss = loss + watch.loss(batch.attended)
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
