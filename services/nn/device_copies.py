"""Copies between the host and a device, which on CUDA are made from page-locked memory and not waited for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def host_buffer(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate host memory for copies from or to a device, page-locked if it is CUDA."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=device.type == "cuda")


def stack(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> Tensor:
    """Stack arrays in host memory, ready for `to_device`."""
    stacked = host_buffer((len(arrays), *arrays[0].shape), getattr(torch, str(arrays[0].dtype)), device)
    np.stack(arrays, out=stacked.numpy())
    return stacked


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; a copy to CUDA is not waited for."""
    if device.type != "cuda":
        return x.to(device)  # copies to MPS that are not waited for read memory that may be freed by then
    return (x.pin_memory() if x.device.type == "cpu" else x).to(device, non_blocking=True)


def integers(*lists: Sequence[int] | np.ndarray[Any, Any], device: torch.device) -> tuple[Tensor, ...]:
    """Copy lists of integers to a device together, as `to_device` does: int64 each."""
    joined = np.concatenate([np.asarray(one, dtype=np.int64) for one in lists])
    return torch.split(to_device(torch.from_numpy(joined), device), [len(one) for one in lists])


def to_host(x: Tensor) -> np.ndarray[Any, Any]:
    """Copy what was computed before to the host; from CUDA without waiting for what is computed now."""
    if x.device.type != "cuda":
        return x.cpu().numpy()
    copy = host_buffer(x.shape, x.dtype, x.device)
    stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        copy.copy_(x, non_blocking=True)
    stream.synchronize()
    return copy.numpy()
