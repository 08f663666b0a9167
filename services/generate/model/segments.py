"""Tokens that replace some of a cached prompt's, and what they see."""

from dataclasses import dataclass

from services.generate.model.kv_cache import KeyValues, Slot

Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Segment:
    """Tokens from `position` on that replace the prompt's own.

    Each sees the tokens of `sees`, half-open ranges of positions, and the branch's own tokens up to itself. With
    `key_values` (of L' layers or more), they are already known and not run.
    """

    input_ids: tuple[int, ...]
    position: int
    sees: tuple[Range, ...]
    key_values: KeyValues | None = None
    is_kept: bool = False

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.position + len(self.input_ids)


@dataclass(frozen=True, eq=False)
class Branch:
    """Segments in order of position; the last row of the last one is measured on `spans` (positions)."""

    slot: Slot
    segments: tuple[Segment, ...]
    spans: tuple[Range, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens to run."""
        return sum(len(segment.input_ids) for segment in self.segments if segment.key_values is None)
