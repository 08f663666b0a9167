"""Weights in files: detection of those that can't result from training, and of those that are not the model's."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# What torch.compile and FSDP put into names of weights, wherever the part that they wrap is.
WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# Beginnings of a whole model's names, which tell that "model." in front of all of them is a training's own attribute.
WHOLE = ("model.", "lm_head.", "language_model.model.", "shared.", "visual.conv1.", "visual.trunk.", "vision_model.")
# Matrices with a row for each token.
EMBEDDINGS = re.compile(r"(.*\.)?(embed_tokens|shared|lm_head|token_embedding|word_embeddings)\.weight")


def without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Map the names of a model's weights to those without what wrappers around it in training put into them.

    Raises Refused where two names become one.
    """
    plain = {name: WRAPPERS.sub("", name) for name in names}
    while plain and all(name.startswith("module.") for name in plain.values()):
        plain = {name: short.removeprefix("module.") for name, short in plain.items()}
    inner = [name.removeprefix("model.") for name in plain.values() if name.startswith("model.")]
    if len(inner) == len(plain) and any(name.startswith(WHOLE) for name in inner):
        plain = dict(zip(plain, inner, strict=True))
    first: dict[str, str] = {}
    for name, short in plain.items():
        if (other := first.setdefault(short, name)) != name:
            raise Refused(f"{other} and {name} are both {short} without the names of wrappers: save one of them")
    return plain


def sizes_told(name: str, stored: Sequence[int], wanted: Sequence[int], config: str) -> str:
    """Say that a weight has other sizes than a configuration gives it, and what cures that."""
    told = f"{name} is {[*stored]}, and {[*wanted]} by {config}"
    if len(stored) > 1 and [*stored] == [*reversed(wanted)]:
        return f"{told}: it is transposed"
    if EMBEDDINGS.fullmatch(name) and [*stored[1:]] == [*wanted[1:]]:
        cure = f"set vocab_size to {stored[0]} if its tokenizer is of this size, or save the model with all its tokens"
        return f"{told}: the vocabularies differ; {cure}"
    return f"{told}: take both from the same model"


@contextmanager
def readable_weights(path: Path) -> Iterator[None]:
    """Raises Refused, naming `path`, if safetensors that are read in this block are damaged."""
    try:
        yield
    except SafetensorError as error:
        raise Refused(f"{path}: the weights are damaged ({error}); copy or download the file again") from error


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
        if not math.isfinite(lowest + highest):
            raise BrokenModel(infinite_told(name, tensor) or f"{name} has numbers that are not finite")
        if lowest < -MAX_WEIGHT or highest > MAX_WEIGHT:
            told = f"{name} ranges from {lowest:.3g} to {highest:.3g}"
            raise BrokenModel(f"{told}, and those of a trained model to {MAX_WEIGHT:g} at most")
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
    for names, problem, cure in (
        (sorted(own.keys() - state.keys()), "the file has no", "save it again, whole"),
        (sorted(state.keys() - own.keys()), "the model has no", "take weights and configuration from the same model"),
    ):
        if names:
            raise Refused(f"{problem} {shown_names(names)}; {cure}")
    for name, weight in state.items():
        if weight.shape != own[name].shape:
            raise Refused(sizes_told(name, weight.shape, own[name].shape, "the configuration"))
        if own[name].is_floating_point() and not weight.is_floating_point():
            raise Refused(integers_told(name, str(weight.dtype).removeprefix("torch.")))
        if told := infinite_told(name, weight):
            raise Refused(told)
    model.load_state_dict(state)


def integers_told(name: str, dtype: str) -> str:
    """Say that a weight was quantised, which no engine reads."""
    return f"{name} is of {dtype}, so it is quantised; import the model that it was made from"


def infinite_told(name: str, tensor: Tensor) -> str | None:
    """Say how many numbers of a tensor are not finite, and where the first is; None if all are."""
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch knows too little of 8-bit numbers
    if not wide.is_floating_point() or not bool((odd := ~wide.isfinite()).any()):
        return None
    told = f"{name} has numbers that are not finite (NaN or Inf): {int(odd.sum())} of {odd.numel()}"
    return f"{told}, the first at {odd.nonzero()[0].tolist()}; export it from a checkpoint before the training broke"


def _tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(directory.rglob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 not a dictionary
                tensor = weights.get_tensor(name)
                if not tensor.is_floating_point() or not tensor.numel() or "mask" in name:
                    continue
                # torch has no minimum and maximum of 8-bit numbers
                yield f"{file.name}: {name}", tensor.float() if tensor.dtype.itemsize == 1 else tensor


def shapes_in(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor of a safetensors file, from its header alone."""
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 not a dictionary
            yield name, tuple(weights.get_slice(name).get_shape())
