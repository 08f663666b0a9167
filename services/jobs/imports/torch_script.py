"""The weights in a TorchScript archive, such as OpenAI's CLIPs, read without its program.

Such an archive is a zip file of Python source, a pickle of the module tree, and a file for each storage. Of the pickle
only tensors are made; every class of the program becomes an empty shell that holds its attributes, and anything else
that the pickle names is refused.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.jobs.released_weights import DAMAGED, State, UnusableWeights, is_torch_script

STORAGES = {
    "HalfStorage": torch.float16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
}
# Modules of a model are nested far less deeply.
MAX_DEPTH = 32


def read_torch_script(path: Path) -> State:
    """Read the parameters and buffers of a TorchScript archive by their names. Nothing in the file is executed.

    Raises UnusableWeights for another file, and for one that holds more than modules and tensors.
    """
    if not is_torch_script(path):
        raise UnusableWeights(f"{path} is not a TorchScript archive")
    try:
        with zipfile.ZipFile(path) as archive:
            (pickled,) = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
            root = pickled.partition("/")[0]
            with archive.open(pickled) as file:
                module = _ModuleTree(file, archive, root).load()
            return dict(_tensors(module))
    except UnusableWeights:
        raise
    except (*DAMAGED, pickle.UnpicklingError) as error:
        raise UnusableWeights(f"{path} is not a complete TorchScript archive: {error}") from error


class _Shell:
    """A module or any other object of the program, as its attributes."""

    attributes: Any = None

    def __setstate__(self, state: Any) -> None:
        self.attributes = state


class _ModuleTree(pickle.Unpickler):
    """Reads a module tree in which nothing but tensors, plain values and shells can come to life."""

    def __init__(self, file: Any, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(file)
        self._archive = archive
        self._root = root
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Shell
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if module == "torch.jit._pickle" or (module, name) == ("torch", "device"):
            return _first  # lists and types of the program's attributes
        known = {("torch._utils", "_rebuild_tensor_v2"): _rebuilt, ("collections", "OrderedDict"): OrderedDict}
        if (module, name) not in known:
            raise UnusableWeights(f"the archive contains more than weights: it refers to {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, num_elements = pid
        if key not in self._storages:
            info = self._archive.getinfo(f"{self._root}/data/{key}")
            if info.file_size != num_elements * dtype.itemsize or info.compress_type != zipfile.ZIP_STORED:
                raise UnusableWeights(f"the storage {key} has {info.file_size} bytes for {num_elements} numbers")
            body = bytearray(self._archive.read(info))
            self._storages[key] = torch.frombuffer(body, dtype=dtype) if body else torch.empty(0, dtype=dtype)
        return self._storages[key]


def _rebuilt(storage: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
    return torch.as_strided(storage, tuple(size), tuple(stride), offset)


def _first(value: Any = None, *_: Any) -> Any:
    return value


def _tensors(module: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if depth > MAX_DEPTH:
        raise UnusableWeights(f"modules are nested more than {MAX_DEPTH} deep")
    attributes = module.attributes if isinstance(module, _Shell) else None
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, _Shell):
            yield from _tensors(value, f"{prefix}{name}.", depth + 1)
