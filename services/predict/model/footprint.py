"""The memory that a student takes, computed from its files before it is loaded."""

import math
from pathlib import Path

from safetensors import SafetensorError, safe_open

from services.nn.devices import DeviceOptions
from services.nn.packed_linear import can_pack

EMBEDDINGS = "shared.weight"
HEAD = "lm_head.weight"
# Weights that transformers writes a second time where a model was saved with its tied weights.
TIED = frozenset({"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"})


def held_bytes(directory: Path, options: DeviceOptions, *, is_int8: bool = False) -> int:
    """Bytes that the parameters of a checkpoint take once it is loaded, whatever numbers its files hold.

    Every matrix is there once, as it is multiplied, the embeddings as they are looked up, and the head's rows to be
    picked out of it. Where products have a layout of their own (float32 on x86, and 8-bit integers) none of the three
    can replace another, except the rows of a head that is tied to the embeddings. While a checkpoint is being loaded it
    takes up to as much again. Raises ValueError where the folder holds no such weights.
    """
    device = options.choose_device()
    dtype = options.choose_dtype(device)
    tensors = {name: numel for name, numel in _tensors(directory) if name not in TIED}
    if EMBEDDINGS not in tensors:
        raise ValueError(f"no file of {directory.name} holds {EMBEDDINGS}")
    looked_up, multiplied = tensors.pop(EMBEDDINGS), sum(tensors.values())
    if is_int8 or can_pack(device, dtype):
        head = tensors.get(HEAD)
        multiplied += looked_up if head is None else 0
        looked_up += head or 0
    return looked_up * dtype.itemsize + multiplied * (1 if is_int8 else dtype.itemsize)


def _tensors(directory: Path) -> list[tuple[str, int]]:
    """Name and number of elements of every tensor."""
    found = []
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                found += [(name, math.prod(file.get_slice(name).get_shape())) for name in file.keys()]  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path.name}: {error}") from error
    return found
