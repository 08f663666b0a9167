"""Smaller forms of unit vectors: cut to their first numbers, or of integers and bits in place of floats.

Shapes: N rows, E embedding width.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

IntegerFormat = Literal["int8", "uint8", "binary", "ubinary"]
Embeddings = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int8 | np.uint8]]

# A number of a unit vector lies between -1 and 1, so one scale fits every model and clips nothing.
INT8_SCALE = 127
# The fact of a manifest's source with the widths that a model was trained to be cut to.
TRAINED_WIDTHS = "matryoshka_dimensions"
_WIDTHS = re.compile(r"[1-9]\d{0,5}(\+|(,[1-9]\d{0,5})*)")


def trained_widths(told: object) -> str | None:
    """Write widths, given as such a text or a list, as `64,128,256`, or `64+` for any from 64 up; None for others."""
    text = ",".join(map(str, told)) if isinstance(told, list) else str(told).replace(" ", "")
    return text if _WIDTHS.fullmatch(text) else None


def shorter_widths(trained: str | None, width: int) -> Sequence[int]:
    """List the widths below E that `trained_widths` wrote."""
    if trained is None:
        return ()
    if trained.endswith("+"):
        return range(int(trained[:-1]), width)
    return [one for one in map(int, trained.split(",")) if one < width]


def shortened(rows: Embeddings, dimensions: int | None) -> Embeddings:
    """Cut vectors (N, E) to their first numbers and scale each to norm 1."""
    if dimensions is None or dimensions == rows.shape[1]:
        return rows
    cut = rows[:, :dimensions]
    scaled: Embeddings = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return scaled


def quantised(rows: Embeddings, form: IntegerFormat) -> Integers:
    """Round unit vectors (N, E) to (N, E) integers, or to (N, ⌈E / 8⌉) bytes of signs.

    `int8` is 127 times each number, rounded; `uint8` is 128 more. `ubinary` packs a bit for each number, 1 if it is
    above 0, the first into the highest bit of a byte, the last byte filled with 0; `binary` is 128 less.
    """
    if form in ("binary", "ubinary"):
        bits = np.packbits(rows > 0, axis=1)
        return bits if form == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    levels = np.rint(INT8_SCALE * rows).clip(-INT8_SCALE, INT8_SCALE)
    return levels.astype(np.int8) if form == "int8" else (levels + 128).astype(np.uint8)
