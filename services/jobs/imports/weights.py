"""Weights of a source: the files that hold them, and their conversion from `torch.save` to safetensors.

Pickles are read by torch with `weights_only`, which builds tensors and plain values and runs nothing else.
"""

import json
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.core.refusals import Refused
from services.jobs.imports.source import Source, read_object
from services.jobs.progress import standard_bars, watched
from services.jobs.released_weights import DAMAGED, State, is_torch_script, read_tensors
from services.nn.model_configs import StoredWeights
from services.nn.weight_files import check_sizes, integers_told, readable_weights, shapes_in, without_wrappers

INDEX = "model.safetensors.index.json"
# In the order of preference: one file, or the shards of an index.
FORMATS = (
    ("model.safetensors", INDEX),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Weights:
    """The files that hold a model's weights, in order, and the index of shards, None for a single file."""

    files: tuple[str, ...]
    index: str | None

    @property
    def are_pickles(self) -> bool:
        return self.files[0].endswith(PICKLES)

    @property
    def taken_index(self) -> tuple[str, ...]:
        """The index, where the shards stay as they are."""
        return () if self.index is None or self.are_pickles else (self.index,)

    def made(self) -> tuple[str, ...]:
        """Name the safetensors files of a folder that holds these weights."""
        if len(self.files) == 1:
            return ("model.safetensors",)
        count = len(self.files)
        return tuple(f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))


def find_weights(source: Source) -> Weights:
    """Find the weights of a source in transformers' layout. Raises Refused, naming missing shards."""
    for single, index in FORMATS:
        if index in source.files:
            return Weights(shards_of(source, index), index)
        if single in source.files:
            return Weights((single,), None)
    raise Refused(
        f"{source.uri} has no weights that can be imported: neither {' nor '.join(single for single, _ in FORMATS)}, "
        "nor an index of shards"
    )


def stored_weights(source: Source) -> StoredWeights:
    """Return the most that a source's weights can hold, from the sizes of their files.

    Raises as `find_weights`, and Refused for files that have been cut.
    """
    files = find_weights(source).files
    for file in files:
        check_whole(source, file)
    return StoredWeights.in_bytes(sum(source.files[file] for file in files))


def check_whole(source: Source, path: str) -> None:
    """Raises Refused for a file of weights that was cut, before it makes a configuration look wrong."""
    local = source.local(path)
    if local is None:
        return
    if path.endswith(".safetensors"):
        list(stored_names(local))
        return
    with local.open("rb") as file:
        beginning = file.read(2)
    if not beginning or (beginning == b"PK" and not zipfile.is_zipfile(local)):
        raise Refused(f"{path} ends too early, at {source.files[path]} bytes: copy or download it again")


def stored_names(file: Path) -> Iterator[str]:
    """Yield the names in a safetensors file, from its header. Raises Refused for a damaged one, and for integers."""
    with readable_weights(Path(file.name)), safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 not a dictionary
            _check_dtype(file.name, name, weights.get_slice(name).get_dtype())
            yield name


def is_wrapped(source: Source, weights: Weights) -> bool:
    """Whether safetensors name weights as a wrapper around the model does. Raises Refused."""
    if weights.are_pickles:
        return False
    names = list(_names_in_index(source, weights) or stored_names(source.fetch(weights.files[0])))
    return list(without_wrappers(names).values()) != names


def _names_in_index(source: Source, weights: Weights) -> Mapping[str, str]:
    return {} if weights.index is None else read_object(source, weights.index)["weight_map"]


def _check_dtype(file: str, name: str, dtype: str) -> None:
    if re.fullmatch(r"U?I\d+|u?int\d+", dtype) and name.endswith((".weight", ".bias")):
        raise Refused(f"{file}: {integers_told(name, dtype)}")


def shards_of(source: Source, index: str) -> tuple[str, ...]:
    """Name the files of an index, in order. Raises Refused for one without them, and for a file that is not there."""
    mapped = read_object(source, index).get("weight_map")
    if not isinstance(mapped, dict) or not mapped or not all(isinstance(file, str) for file in mapped.values()):
        raise Refused(f"{index} has no weight_map")
    shards = tuple(sorted(set(mapped.values())))
    if missing := [shard for shard in shards if shard not in source.files]:
        raise Refused(f"{index} names {missing[0]}, which is not there: its download is incomplete")
    return shards


def convert(source: Source, weights: Weights, folder: Path) -> None:
    """Write weights as safetensors into a folder without the names of wrappers, in the memory of one shard.

    A shard of a pickle that an earlier call has finished is kept if it is newer than its source. Raises Refused.
    """
    plain, was_told = without_wrappers(_names_in_index(source, weights)), False
    for shard, name in watched(zip(weights.files, weights.made(), strict=True), "converting", len(weights.files)):
        made, file = folder / name, source.fetch(shard)
        if made.exists() and made.stat().st_mtime_ns > file.stat().st_mtime_ns:
            continue
        tensors = read_pickle(file) if weights.are_pickles else load_file(file)
        names = plain or without_wrappers(tensors)
        wrapped = [one for one in tensors if names.get(one, one) != one]
        if wrapped and not was_told:
            standard_bars().say(f"Names of a wrapper are left out: {wrapped[0]} becomes {names[wrapped[0]]}.")
        was_told = was_told or bool(wrapped)
        unfinished = folder / f"{name}.partial"
        named = {names.get(one, one): tensor for one, tensor in separate(tensors).items()}
        save_file(named, unfinished, metadata={"format": "pt"})
        unfinished.replace(made)
    if len(weights.files) > 1:
        _write_index(folder, weights.made())


def read_pickle(path: Path) -> State:
    """Read what `read_tensors` reads. Raises Refused, also for integers."""
    tensors = read_tensors(path)
    for name, tensor in tensors.items():
        _check_dtype(path.name, name, str(tensor.dtype).removeprefix("torch."))
    return tensors


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with others, such as tied embeddings: safetensors can't express that."""
    seen: set[int] = set()
    separated = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage()
        is_alone = memory.nbytes() == tensor.nbytes and memory.data_ptr() not in seen
        separated[name] = tensor.contiguous() if is_alone else tensor.contiguous().clone()
        seen.add(memory.data_ptr())
    return separated


def _write_index(folder: Path, names: tuple[str, ...]) -> None:
    mapped = {tensor: name for name in names for tensor, _ in shapes_in(folder / name)}
    total = sum((folder / name).stat().st_size for name in names)
    content = {"metadata": {"total_size": total}, "weight_map": mapped}
    (folder / INDEX).unlink(missing_ok=True)  # it may be a link to the source's
    (folder / INDEX).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


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

    Raises Refused for another file, and for one that holds more than modules and tensors.
    """
    if not is_torch_script(path):
        raise Refused(f"{path} is not a TorchScript archive")
    try:
        with zipfile.ZipFile(path) as archive:
            (pickled,) = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
            root = pickled.partition("/")[0]
            with archive.open(pickled) as file:
                module = _ModuleTree(file, archive, root).load()
            tensors = dict(_tensors(module))
            check_sizes(tensors)
            return tensors
    except Refused:
        raise
    except (*DAMAGED, pickle.UnpicklingError) as error:
        raise Refused(f"{path} is not a complete TorchScript archive: {error}") from error


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
            raise Refused(f"the archive contains more than weights: it refers to {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, num_elements = pid
        if key not in self._storages:
            info = self._archive.getinfo(f"{self._root}/data/{key}")
            if info.file_size != num_elements * dtype.itemsize or info.compress_type != zipfile.ZIP_STORED:
                raise Refused(f"the storage {key} has {info.file_size} bytes for {num_elements} numbers")
            body = bytearray(self._archive.read(info))
            self._storages[key] = torch.frombuffer(body, dtype=dtype) if body else torch.empty(0, dtype=dtype)
        return self._storages[key]


def _rebuilt(storage: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
    return torch.as_strided(storage, tuple(size), tuple(stride), offset)


def _first(value: Any = None, *_: Any) -> Any:
    return value


def _tensors(module: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if depth > MAX_DEPTH:
        raise Refused(f"modules are nested more than {MAX_DEPTH} deep")
    attributes = module.attributes if isinstance(module, _Shell) else None
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, _Shell):
            yield from _tensors(value, f"{prefix}{name}.", depth + 1)
