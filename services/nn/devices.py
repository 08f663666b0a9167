"""The device, dtype and threads that a checkpoint runs with."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from services.core.errors import is_out_of_memory as is_out_of_memory
from services.core.memory import memory_within_limits
from services.nn.weight_files import readable_weights, shapes_in

DeviceName = Literal["auto", "cuda", "mps", "cpu"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]

GIBIBYTE = 2**30
# In a transformer of at most this width the operations are so short that threads lose more by waiting for each other
# than they gain, especially if other processes share the cores.
NARROW_WIDTH = 256


def memory_of(device: torch.device) -> int:
    """Return the bytes of a device that are free or held by this process, on a CPU only what is free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return memory_within_limits()[1]


@dataclass(frozen=True)
class DeviceOptions:
    """An operator's choice of device, dtype and threads.

    `auto` takes the first device of CUDA, MPS and CPU that exists, and bfloat16 on CUDA, float32 elsewhere.
    `num_threads` 0 is one for a narrow model and `all_threads` for any other. Of a CUDA device torch takes at most
    `memory_share` in this process, so that others have room on it.
    """

    device: DeviceName = "auto"
    dtype: DtypeName = "auto"
    num_threads: int = 0
    memory_share: float = 1.0
    all_threads: int = field(default_factory=torch.get_num_threads)

    def choose_device(self) -> torch.device:
        """Return the device, whose memory is limited from now on. Raises ValueError for one that this machine lacks."""
        available = {
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
            "cpu": True,
        }
        chosen: str = self.device
        if chosen == "auto":
            chosen = next(device for device, is_available in available.items() if is_available)
        if not available[chosen]:
            raise ValueError(f"device is {chosen!r}: torch finds no such device on this machine")
        if chosen == "cuda" and self.memory_share < 1:
            torch.cuda.set_per_process_memory_fraction(self.memory_share)
        return torch.device(chosen)

    def choose_dtype(self, device: torch.device) -> torch.dtype:
        """Return the dtype of weights and of the forward pass."""
        if self.dtype == "auto":
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def choose_num_threads(self, width: int) -> int:
        """Return the number of threads for a model of this width (numbers per token)."""
        return self.num_threads or (1 if width <= NARROW_WIDTH else self.all_threads)


def check_room(directory: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Raises ValueError, naming both sizes, if weights in this dtype do not fit into the memory of a device.

    Only the headers of the files are read.
    """
    memory, needed = memory_of(device), weight_bytes(directory, dtype)
    if needed > memory:
        named = str(dtype).removeprefix("torch.")
        sizes = f"{needed / GIBIBYTE:.1f} GiB in {named}, and {device} has {memory / GIBIBYTE:.1f} GiB free"
        raise ValueError(f"its weights take {sizes}")


def weight_bytes(directory: Path, dtype: torch.dtype) -> int:
    """Return the bytes of all weights in `directory` in this dtype, whatever that of the files, from their headers.

    Raises ValueError for a file that is no safetensors file.
    """
    with readable_weights(directory):
        files = directory.rglob("*.safetensors")
        return sum(math.prod(shape) for file in files for _, shape in shapes_in(file)) * dtype.itemsize


def parameter_bytes(directory: Path, options: DeviceOptions) -> int:
    """Return the bytes that the weights in `directory` take on the device and in the dtype of these options.

    Raises what `weight_bytes` and `DeviceOptions.choose_device` raise.
    """
    return weight_bytes(directory, options.choose_dtype(options.choose_device()))
