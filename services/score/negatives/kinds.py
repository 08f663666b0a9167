"""Kinds of hard negatives."""

from typing import Literal, get_args

# Two phrases of a caption exchanged, a word replaced, pairs of words shuffled, a spatial relation inverted, a verb or a
# thing denied.
Kind = Literal["negclip", "replace", "bigram_shuffle", "relation", "negate"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Kinds used in FSC-CLIP's published tuning.
PAPER_KINDS: tuple[Kind, ...] = ("negclip", "replace", "bigram_shuffle")
