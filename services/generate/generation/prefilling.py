"""The prefill and rerun of prompts in pieces, with the turns of others in between.

A piece goes on from the tokens cached.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from services.generate.generation.passes import Passes
from services.generate.model.language_model import LanguageModel, Prefill, Prefilled, Row, TokenScores


def prefilling(model: LanguageModel, prompts: Sequence[Prefill], max_tokens: int | None) -> Passes[list[Prefilled]]:
    """Prefill prompts in pieces, the first of at most `max_tokens`; all at once without a bound.

    The rounding of what is computed in pieces differs in the last bits.
    """
    if max_tokens is None or sum(len(prompt.input_ids) for prompt in prompts) <= max_tokens:
        return model.prefill(prompts)
    done: list[list[tuple[Prefill, Prefilled]]] = [[] for _ in prompts]
    left = list(enumerate(prompts))
    while left:
        some, left = _first_tokens(left, max_tokens)
        for (place, piece), own in zip(some, model.prefill([piece for _, piece in some]), strict=True):
            done[place].append((piece, own))
        if left:
            max_tokens = yield
    return [_joined(pieces) for pieces in done]


def rerunning(model: LanguageModel, row: Row) -> Passes[Tensor]:
    """Run many rows of one sequence again, some at a time; returns the logits (V,) after the last."""
    length, done = row.slot.length, 0
    while done < len(row.input_ids):
        input_ids = row.input_ids[done:][: (yield)]
        done += len(input_ids)
        row.slot.length = length - len(row.input_ids) + done
        logits = model.rerun([replace(row, input_ids=input_ids)])
    return logits[0]


def _first_tokens(
    left: Sequence[tuple[int, Prefill]], max_tokens: int | None
) -> tuple[list[tuple[int, Prefill]], list[tuple[int, Prefill]]]:
    """Split prompts after `max_tokens`: the pieces before, and what is left. Only a prompt's last piece is measured."""
    some: list[tuple[int, Prefill]] = []
    for index, (place, prompt) in enumerate(left):
        if max_tokens is not None and len(prompt.input_ids) > max_tokens:
            rest = [(place, replace(prompt, input_ids=prompt.input_ids[max_tokens:])), *left[index + 1 :]]
            if max_tokens:
                some.append((place, replace(prompt, input_ids=prompt.input_ids[:max_tokens], spans=())))
            return some, rest
        some.append((place, prompt))
        max_tokens = None if max_tokens is None else max_tokens - len(prompt.input_ids)
    return some, []


def _joined(pieces: Sequence[tuple[Prefill, Prefilled]]) -> Prefilled:
    """Make one result of the pieces of a prompt: the last one's, with the scores of all."""
    _, last = pieces[-1]
    if last.scores is None or len(pieces) == 1:
        return last
    scores: list[TokenScores] = []
    for place, (piece, own) in enumerate(pieces):
        if place:  # the first token of a piece follows the last one of the piece before
            before = pieces[place - 1][1].logits.log_softmax(dim=-1)
            tops = before.topk(min(piece.num_top, len(before)))
            scores.append(TokenScores(before[list(piece.input_ids[:1])], tops.values[None], tops.indices[None]))
        assert own.scores is not None  # they are asked for of every piece
        scores.append(own.scores)
    return replace(
        last,
        scores=TokenScores(
            torch.cat([one.logprobs for one in scores]),
            torch.cat([one.top_logprobs for one in scores]),
            torch.cat([one.top_ids for one in scores]),
        ),
    )
