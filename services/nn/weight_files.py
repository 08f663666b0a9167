"""Weights in files: detection of those that can't result from training, and of those that are not the model's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.core.refusals import Refused, shown_names
from services.nn.broken_model import BrokenModel

# Weights of trained models are far smaller; products of larger ones overflow.
MAX_WEIGHT = 1e6
# Share of the numbers in matrices: some matrices are never trained, and keep their initial values.
MAX_CONSTANT_SHARE = 0.5
# How often a file may name the same numbers: T5's tied embeddings have four names. Small tensors may repeat more.
MAX_SHARED = 8
SMALL_BYTES = 2**20


@contextmanager
def readable_weights(path: Path) -> Iterator[None]:
    """Raises Refused, naming `path`, if safetensors that are read in this block are damaged."""
    try:
        yield
    except SafetensorError as error:
        raise Refused(f"{path}: the weights are damaged ({error})") from error


def check_sizes(tensors: Mapping[str, Tensor]) -> None:
    """Raises Refused for unpickled tensors that would take far more memory than is stored, once they are copied.

    These are tensors that are not dense, and those that repeat the numbers of one storage more than MAX_SHARED times,
    by a stride of 0 or under many names.
    """
    named = dict[int, int]()
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise Refused(f"{name} is not a dense tensor on the CPU")
        storage = tensor.untyped_storage()
        total = named[storage.data_ptr()] = named.get(storage.data_ptr(), 0) + tensor.nbytes
        if total > max(MAX_SHARED * storage.nbytes(), SMALL_BYTES):
            raise Refused(f"{name} {list(tensor.shape)} repeats {storage.nbytes()} stored bytes until they are {total}")


def check_weights(directory: Path) -> None:
    """Read every tensor of the safetensors files in `directory`, one at a time.

    Raises BrokenModel, naming the tensor, for a number that is not finite or above MAX_WEIGHT, and if more than
    MAX_CONSTANT_SHARE of the numbers in matrices are in constant ones. Tensors that are not floating point, such as
    quantised ones, are skipped.
    """
    num_constant = num_all = 0
    for name, tensor in _tensors(directory):
        lowest, highest = (float(end) for end in torch.aminmax(tensor))
        # written so that NaN fails
        if not (lowest >= -MAX_WEIGHT and highest <= MAX_WEIGHT):
            raise BrokenModel(f"the weights {name} range from {lowest:.3g} to {highest:.3g}")
        if tensor.ndim > 1:
            num_all += tensor.numel()
            num_constant += tensor.numel() if lowest == highest else 0
    if num_constant > MAX_CONSTANT_SHARE * num_all:
        raise BrokenModel(f"{num_constant} of {num_all} weights are in constant matrices")


def load_exactly(model: Any, state: Mapping[str, Tensor]) -> None:
    """Load exactly these weights into a model.

    Raises Refused, by name, for weights that are missing, that the model does not have, of another shape, or with
    numbers that are not finite.
    """
    own: dict[str, Tensor] = model.state_dict()
    for names, problem in (
        (sorted(own.keys() - state.keys()), "the file has no"),
        (sorted(state.keys() - own.keys()), "the model has no"),
    ):
        if names:
            raise Refused(f"{problem} {shown_names(names)}")
    for name, weight in state.items():
        if weight.shape != own[name].shape:
            raise Refused(f"{name} is {list(weight.shape)}, in the model {list(own[name].shape)}")
        if not weight.isfinite().all():
            raise Refused(f"{name} has numbers that are not finite")
    model.load_state_dict(state)


def _tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(directory.rglob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 not a dictionary
                tensor = weights.get_tensor(name)
                if not tensor.is_floating_point() or not tensor.numel() or "mask" in name:
                    continue
                # torch has no minimum and maximum of 8-bit numbers
                yield name, tensor.float() if tensor.dtype.itemsize == 1 else tensor


def shapes_in(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor of a safetensors file, from its header alone."""
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 not a dictionary
            yield name, tuple(weights.get_slice(name).get_shape())
