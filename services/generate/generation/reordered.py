"""Answers whose documents are reordered after admission.

Shapes: K documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.core.errors import TooLarge
from services.generate.generation.generation import Generation
from services.generate.generation.options import Reorder
from services.generate.prompts.templates import Document, Prompt

# Number of tokens by which a document's length in a prompt may change with its neighbours.
JOINT_TOKENS = 2


@dataclass(frozen=True, eq=False)
class ReorderedGeneration(Generation):
    """A generation whose documents are put into the order of `method` after admission.

    `render` makes the prompt of the documents in another order; the generation's own prompt has the original order.
    `room` is the maximum number of tokens of prompt and answer in any order.
    """

    method: Reorder = "none"
    query: str = ""
    documents: tuple[Document, ...] = ()
    render: Callable[[Sequence[Document]], Prompt] | None = None
    room: int = 0

    @property
    def num_tokens(self) -> int:
        """Maximum number of tokens of prompt and answer in any order."""
        return max(super().num_tokens, self.room)

    def in_order(self, order: Sequence[int]) -> "ReorderedGeneration":
        """Make the generation that runs in this order. Raises TooLarge if it leaves no room for an answer."""
        assert self.render is not None
        prompt = self.render([self.documents[k] for k in order])
        left = self.num_tokens - len(prompt.input_ids)
        if left < 1:
            raise TooLarge(
                f"In the order {self.method!r} the prompt has {len(prompt.input_ids)} tokens; "
                f"the limit is {self.num_tokens} together with its answer.",
                code="context_length_exceeded",
            )
        return replace(self, prompt=prompt, max_tokens=min(self.max_tokens, left))


def by_order(generations: Sequence[Generation]) -> list[list[Generation]]:
    """Group several answers to one question, which share an order; answers without reordering are alone."""
    groups: dict[tuple[Any, ...], list[Generation]] = {}
    for generation in generations:
        key: tuple[Any, ...] = ()
        if isinstance(generation, ReorderedGeneration):
            key = (generation.query, generation.documents, generation.method, id(generation.calibration))
        groups.setdefault(key, []).append(generation)
    return list(groups.values())
