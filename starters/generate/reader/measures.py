"""Measures of a trained reader on questions that it was not trained on, and the fit of its probabilities.

Shapes: B prompts, T tokens, V vocabulary.
"""

import random
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.generate.calibrate.fits import fit_logistic
from services.generate.generation.prompt_calibration import answerable as probability_of_answer
from services.generate.generation.prompt_calibration import refusal_log_odds
from services.generate.model.profile import OFF, Answerability
from services.generate.prompts.templates import QUERY_AWARE
from services.jobs.progress import watched
from services.predict.confidence import calibration_error
from starters.generate.llama import BOS_ID, EOS_ID
from starters.generate.reader.texts import prompt_text
from starters.generate.world.documents import REFUSAL, Asked, Scope, draw_world

Drawn = tuple[str, Asked]


def draw_prompts(generator: random.Random, scope: Scope, count: int) -> list[Drawn]:
    """Draw prompts, each with its question."""
    drawn = []
    for _ in range(count):
        world = draw_world(generator, scope)
        asked = world.ask(generator)
        drawn.append((prompt_text(QUERY_AWARE, asked.question, world.documents), asked))
    return drawn


@torch.no_grad()
def reading_measures(
    model: Any,
    tokenizer: Tokenizer,
    scope: Scope,
    num_questions: int,
    generator: random.Random,
    answerability: Answerability,
) -> dict[str, float]:
    """Compute the shares of answerable questions answered exactly, refused, and of unanswerable ones refused.

    Each takes one pass: greedy decoding gives the answer if and only if each of its tokens is the most likely one after
    the right ones before it. `calibration_error` is that of the probability that the documents answer.
    """
    profile = OFF.model_copy(update={"answerability": answerability})
    right: list[bool] = []
    refused: list[bool] = []
    answerable: list[bool] = []
    probabilities: list[float] = []
    for prompt, asked in watched(draw_prompts(generator, scope, num_questions), "questions", num_questions):
        ids = [BOS_ID, *tokenizer.encode(prompt, add_special_tokens=False).ids]
        answer = [*tokenizer.encode(f" {asked.answer}", add_special_tokens=False).ids, EOS_ID]
        logits = model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
        choices = logits.argmax(-1).tolist()
        right.append(choices == answer)
        refused.append(choices[0] == answerability.token_id)
        answerable.append(asked.gold is not None)
        probabilities.append(probability_of_answer(profile, logits[0]) or 0.0)
    return {
        "answered": _share(right, answerable),
        "falsely_refused": _share(refused, answerable),
        "refused": _share(right, [not one for one in answerable]),
        "calibration_error": round(calibration_error(probabilities, answerable), 4),
    }


def _share(held: Sequence[bool], among: Sequence[bool]) -> float:
    chosen = [one for one, is_counted in zip(held, among, strict=True) if is_counted]
    return round(sum(chosen) / len(chosen), 4) if chosen else 0.0


def refusal_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens of the refusal as an answer."""
    return list(tokenizer.encode(f" {REFUSAL}", add_special_tokens=False).ids)


@torch.no_grad()
def fitted_answerability(
    model: Any, tokenizer: Tokenizer, scope: Scope, num_questions: int, seed: int
) -> Answerability:
    """Fit temperature and offset on questions that were not trained on, by their likelihood (Platt, 1999)."""
    token_id = refusal_ids(tokenizer)[0]
    odds: list[Tensor] = []
    answerable: list[bool] = []
    drawn = draw_prompts(random.Random(f"answerability {seed}"), scope, num_questions)
    for prompt, asked in watched(drawn, "answerability", num_questions):
        ids = [BOS_ID, *tokenizer.encode(prompt, add_special_tokens=False).ids]
        odds.append(refusal_log_odds(model(torch.tensor([ids])).logits[0, -1], token_id))
        answerable.append(asked.gold is not None)
    temperature, offset = fit_logistic(-torch.stack(odds), torch.tensor(answerable))
    return Answerability(refusal=REFUSAL, token_id=token_id, temperature=temperature, offset=offset)
