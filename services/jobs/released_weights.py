"""Released state dicts of CLIPs tuned for composition, as weights of a plain open_clip model.

Only this module and `services.jobs.imports.weights` read pickle, and only tensors and plain values from it:
anything executable is rejected.

    FSC-CLIP, NegCLIP, CE-CLIP,  {"state_dict": …, "optimizer": …, …} of open_clip's training, names with those of
      CLoVe                      wrappers, such as `module.` after training on several GPUs; or only the weights
    FSC-CLIP with LoRA, TSVLC,   the same; for some weights, matrices `lora_A` and `lora_B`, which are added to them
      DAC
    GNM                          {"model_state_dict": …, "optimizer_state_dict": …, …}, as PyTorch's tutorials save
    MagicLens                    a pickle of bytes, which flax made of its arrays (`services.embed.imports` reads those)
    OpenAI                       a TorchScript archive, rejected (`services.jobs.imports` reads it); its state dict has
                                 three additional plain numbers
"""

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from services.core.printable import first_line
from services.core.refusals import Refused, shown_names
from services.nn.weight_files import check_sizes, without_wrappers

State = dict[str, Tensor]

# Values that were not learnt: masks that every model creates itself, and sizes that OpenAI stored with its weights.
NOT_LEARNT = ("attn_mask", "text.attn_mask", "input_resolution", "context_length", "vocab_size")
# Where checkpoints of trainings have their weights.
STATE_DICTS = ("state_dict", "model_state_dict")
# A linear layer's or a convolution's matrices are `lora_A`; those of attention's input projection have a prefix.
LORA_A = re.compile(r"(?P<layer>.+)\.(?P<weight>in_proj_weight_)?lora_A")

# Errors that readers may raise for damaged files or outdated formats.
DAMAGED = (
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    SafetensorError,
    struct.error,
    zipfile.BadZipFile,
)


def read_tensors(path: Path) -> State:
    """Read the tensors in a file of `torch.save`, mapped and not copied, or in a safetensors file, by its names.

    Nothing in the file is executed. Raises Refused.
    """
    content = _read(path)
    if isinstance(content, Mapping):
        content = next((content[name] for name in STATE_DICTS if isinstance(content.get(name), Mapping)), content)
    if not isinstance(content, Mapping) or not content:
        raise Refused(f"{path} contains no state dict")
    others = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    others = [name for name in others if name not in NOT_LEARNT]
    if others:
        raise Refused(f"{path} contains no state dict: {shown_names(others)} is not a weight")
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    try:
        check_sizes(state)
    except Refused as error:
        raise Refused(f"{path}: {error}") from None
    return state


def read_state_dict(path: Path) -> State:
    """Read what `read_tensors` reads by the names that the weights have in the model. Raises Refused."""
    state = read_tensors(path)
    names = without_wrappers(state)
    return {names[name]: weight for name, weight in state.items()}


class _OnlyPlainValues(pickle.Unpickler):
    """Reads pickles that name no class and no function."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise Refused(f"it names {module_name}.{global_name}, and nothing of a file is run")


def read_pickled_bytes(path: Path) -> bytes:
    """Read a pickle that holds bytes and nothing else. Raises Refused."""
    try:
        with path.open("rb") as file:
            content = _OnlyPlainValues(file).load()
    except Refused as error:
        raise Refused(f"{path.name} does not hold weights alone: {error}") from None
    except (OSError, pickle.UnpicklingError, *DAMAGED) as error:
        raise Refused(f"{path.name} can't be read as a pickle: {error}; copy or download it again") from error
    if not isinstance(content, bytes):
        raise Refused(f"{path.name} holds a {type(content).__name__}, not bytes")
    return content


def merge_lora(state: Mapping[str, Tensor]) -> State:
    """Add B A / rank to each weight that has such matrices.

    Those of a convolution with a kernel of k have k times as many rows, and their product is its flattened weight.
    Raises Refused for a matrix without its other half or its weight, and for other shapes.
    """
    merged = {name: weight for name, weight in state.items() if "lora_" not in name}
    used = set()
    for name, a in state.items():
        found = LORA_A.fullmatch(name)
        if found is None:
            continue
        name_b = f"{name.removesuffix('A')}B"
        target = f"{found['layer']}.{(found['weight'] or 'weight_').removesuffix('_')}"
        weight, b = merged.get(target), state.get(name_b)
        if weight is None or b is None:
            raise Refused(f"{name} lacks its counterpart {target if weight is None else name_b}")
        if a.ndim != 2 or b.ndim != 2 or b.shape[1] != a.shape[0] or b.shape[0] * a.shape[1] != weight.numel():
            raise Refused(f"{name} {list(a.shape)} and {name_b} {list(b.shape)} do not make {target}")
        rank = a.shape[0] // (weight.shape[-1] if weight.ndim == 4 else 1)
        merged[target] = (weight.float() + (b.float() @ a.float()).view(weight.shape) / rank).to(weight.dtype)
        used |= {name, name_b}
    unused = [name for name in state if "lora_" in name and name not in used]
    if unused:
        raise Refused(f"unexpected weights: {shown_names(unused)}")
    return merged


def learnt(state: Mapping[str, Tensor]) -> State:
    """Return a model's learnt weights."""
    return {name: weight for name, weight in state.items() if name not in NOT_LEARNT}


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        is_zip = zipfile.is_zipfile(path)
        if is_torch_script(path):
            raise Refused(
                f"{path} is a TorchScript archive, which contains a program: load OpenAI's weights by their open_clip "
                "name"
            )
        with warnings.catch_warnings(action="ignore"):  # of other writers' pickles, which are read or refused below
            # torch's format before 1.6, no archive, can't be mapped
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Refused:
        raise
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it refers to {asked[1]}" if asked else "it was not written by torch.save"
        raise Refused(f"{path} contains more than weights: {what}; no code was executed") from None
    except DAMAGED as error:
        raise Refused(f"{path} is not a complete weights file: {first_line(error)}; copy it again") from error


def is_torch_script(path: Path) -> bool:
    """Whether a file is a TorchScript archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False
