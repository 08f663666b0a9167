"""The memory of a student, computed from its files before it is loaded."""

import math
from pathlib import Path

from safetensors import SafetensorError

from services.nn.devices import DeviceOptions
from services.nn.packed_linear import can_pack
from services.nn.weight_files import shapes_in

# Names of the embeddings: a model saved with its tied weights has several copies, others have any one of them.
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"


def held_bytes(directory: Path, options: DeviceOptions, *, is_int8: bool = False) -> int:
    """Bytes of a checkpoint's parameters once it is loaded, whatever the dtype of its files.

    Memory holds every matrix once for multiplication, the embeddings for lookup, and the head for selecting its rows.
    If products need a packed layout (float32 on x86, and 8-bit integers), none of the three can replace another, except
    that the rows of a tied head are those of the embeddings. Loading takes up to the same amount again. Raises
    ValueError if the folder has no such weights.
    """
    device = options.choose_device()
    dtype = options.choose_dtype(device)
    tensors = dict(_tensors(directory))
    embeddings = [tensors.pop(name) for name in EMBEDDINGS if name in tensors]
    if not embeddings:
        raise ValueError(f"no file of {directory.name} holds {EMBEDDINGS[0]}")
    looked_up, multiplied = embeddings[0], sum(tensors.values())
    if is_int8 or can_pack(device, dtype):
        head = tensors.get(HEAD)
        multiplied += looked_up if head is None else 0
        looked_up += head or 0
    return looked_up * dtype.itemsize + multiplied * (1 if is_int8 else dtype.itemsize)


def _tensors(directory: Path) -> list[tuple[str, int]]:
    """Name and size of every tensor."""
    found = []
    for path in sorted(directory.glob("*.safetensors")):
        try:
            found += [(name, math.prod(shape)) for name, shape in shapes_in(path)]
        except SafetensorError as error:
            raise ValueError(f"{path.name}: {error}") from error
    return found
