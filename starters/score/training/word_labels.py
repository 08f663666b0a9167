"""Supervision of a caption's words: the word that completes two facts of one thing names both.

The end of a caption only has to collect what its words have put together. Without this, a text tower knows which words
a caption has for thousands of steps before it knows which belong together.

Shapes: A captions, W text tokens, D width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.nn.clip_tokenizer import Tokenizer
from starters.score.data.claim_wordings import WITH, WORDS
from starters.score.data.claims import ATTRIBUTES, RELATIONS, VALUES
from starters.score.training.fact_space import BOUND, NUM_VALUES

RELATION_WORDS = ("left", "right", "above", "over", "top", "higher", "below", "under", "underneath", "lower", "beneath",
                  "bottom", "bigger", "larger", "smaller", "tinier")  # fmt: skip
NEVER = 1_000  # a position after every token's


class WordLabels:
    """Positions at which the words of captions complete facts that the claims' codes tell."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        def ids(words: Sequence[str]) -> Tensor:
            rows = tokenizer(list(words))
            return torch.tensor(sorted({int(row[int(row.argmax()) - 1]) for row in rows}))  # the last before the end

        self.values = [[ids(_synonyms(word)) for word in VALUES[name]] for name in ATTRIBUTES]
        self.relations = ids(RELATION_WORDS)

    def positions(self, input_ids: Tensor, codes: Tensor, attribute: int) -> Tensor:
        """Find the first word for each claim's value of an attribute, (A,) int64; NEVER where it is not said."""
        found = torch.full((len(codes),), NEVER, device=codes.device)
        for value, words in enumerate(self.values[attribute]):
            some = (codes == value).nonzero()[:, 0]
            found[some] = _first(torch.isin(input_ids[some], words.to(input_ids.device)))
        return found

    def of_relation(self, input_ids: Tensor) -> Tensor:
        """Find the first word of a relation, (A,) int64; NEVER if there is none."""
        return _first(torch.isin(input_ids, self.relations.to(input_ids.device)))


def _synonyms(word: str) -> list[str]:
    phrases = WORDS.get(word, (word,))
    return [*phrases, WITH.get(word, word)]


def _first(is_found: Tensor) -> Tensor:
    return torch.where(is_found.any(dim=1), is_found.int().argmax(dim=1), NEVER)


class WordNaming(nn.Module):
    """Heads on the states of words (A, W, D): two values of one thing, and a value with its side."""

    def __init__(self, width: int, labels: WordLabels) -> None:
        super().__init__()
        self.labels = labels
        self.bound = nn.ModuleList([nn.Linear(width, NUM_VALUES[a] * NUM_VALUES[b]) for a, b in BOUND])
        self.sides = nn.ModuleList([nn.Linear(width, size * len(RELATIONS)) for size in NUM_VALUES])

    def forward(self, states: Tensor, input_ids: Tensor, said: Tensor) -> Tensor:
        """The sum of the heads' cross-entropies. Values that both things of a claim have are left out, because their
        words don't tell which thing they are about."""
        said = said.clone()
        is_shared = said[:, :4] == said[:, 4:8]
        said[:, :8].masked_fill_(is_shared.repeat(1, 2), -1)
        places = [self.labels.positions(input_ids, said[:, i], i % 4) for i in range(8)]
        loss = torch.zeros((), device=states.device)
        for head, (a, b) in zip(self.bound, BOUND, strict=True):
            targets, at = [], []
            for noun in (0, 4):
                is_said = (said[:, noun + a] >= 0) & (said[:, noun + b] >= 0)
                target = said[:, noun + a] * NUM_VALUES[b] + said[:, noun + b]
                targets.append(torch.where(is_said, target, -100))
                at.append(torch.maximum(places[noun + a], places[noun + b]))
            loss = loss + _named(head, states, at, targets)
        of_relation, side = self.labels.of_relation(input_ids), said[:, 8] - 1
        for a, head in enumerate(self.sides):
            targets, at = [], []
            for noun, lies in ((0, side), (4, side ^ 1)):
                is_said = (said[:, noun + a] >= 0) & (side >= 0)
                targets.append(torch.where(is_said, said[:, noun + a] * len(RELATIONS) + lies, -100))
                at.append(torch.maximum(places[noun + a], of_relation))
            loss = loss + _named(head, states, at, targets)
        return loss


def _named(head: nn.Module, states: Tensor, at: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Cross-entropy at the positions of both nouns, over those that are there; 0 if there are none."""
    place, target = torch.cat(list(at)), torch.cat(list(targets))
    number = torch.arange(len(states), device=states.device).repeat(len(at))
    is_there = (target >= 0) & (place < states.shape[1])
    if not is_there.any():
        return states.new_zeros(())
    return F.cross_entropy(head(states[number[is_there], place[is_there]]).float(), target[is_there])
