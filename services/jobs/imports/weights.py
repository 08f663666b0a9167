"""Weights of a source: the files that hold them, and their conversion from `torch.save` to safetensors.

Pickles are read by torch with `weights_only`, which builds tensors and plain values and runs nothing else.
"""

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from services.core.refusals import Refused
from services.jobs.imports.source import Source, read_object
from services.jobs.progress import watched
from services.nn.weight_files import shapes_in

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
    """Write pickled weights as safetensors into a folder, shard by shard, in the memory of one shard.

    A shard that an earlier call has finished is kept. Raises Refused.
    """
    for shard, name in watched(zip(weights.files, weights.made(), strict=True), "converting", len(weights.files)):
        if not (folder / name).exists():
            unfinished = folder / f"{name}.partial"
            save_file(separate(read_pickle(source.fetch(shard))), unfinished, metadata={"format": "pt"})
            unfinished.replace(folder / name)
    if len(weights.files) > 1:
        _write_index(folder, weights.made())


def read_pickle(path: Path) -> Mapping[str, Tensor]:
    """Read the tensors of a file of `torch.save`, by name, mapped and not copied. Raises Refused."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of other writers' pickles, which are read or refused below
            # torch's format before 1.6, no archive, can't be mapped
            content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it asks to run {asked[1]}" if asked else "it was not written by torch.save"
        raise Refused(f"{path.name} holds more than weights: {what}; nothing of it was run") from None
    except (RuntimeError, ValueError, LookupError, EOFError, OSError) as error:
        raise Refused(f"{path.name} is not a complete file of torch.save: {str(error).splitlines()[0]}") from None
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise Refused(f"{path.name} is not a file of weights by name")
    return content


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
    (folder / INDEX).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
