"""Which distinct (image, condition) pairs a batch asks for, so that each is computed once, whoever asked for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNCONDITIONAL = -1

Pair = tuple[int, int]


@dataclass(frozen=True)
class ReadoutPlan:
    """`pairs` of an image's place and a condition's (or UNCONDITIONAL), none twice; `rows` of each item among them."""

    pairs: Sequence[Pair]
    rows: Sequence[Sequence[int]]

    @classmethod
    def of(cls, items: Sequence[tuple[int, Sequence[str | None]]], place_of: Mapping[str, int]) -> "ReadoutPlan":
        """`items` are an image's place and its conditions' digests each, None for the unconditional embedding;
        `place_of` tells the place of a condition by its digest."""
        wanted = [
            [(image, UNCONDITIONAL if digest is None else place_of[digest]) for digest in digests]
            for image, digests in items
        ]
        row_of = {pair: row for row, pair in enumerate(dict.fromkeys(pair for pairs in wanted for pair in pairs))}
        return cls(list(row_of), [[row_of[pair] for pair in pairs] for pairs in wanted])

    def slices(self, num_pairs: int) -> Sequence[Sequence[Pair]]:
        """The pairs in order, at most `num_pairs` at a time."""
        return [self.pairs[start : start + num_pairs] for start in range(0, len(self.pairs), num_pairs)]
