"""A model's device is chosen once, from the machine's devices and the operator's settings."""

import numpy as np
import pytest
import torch

from services.nn.device_copies import integers, to_device
from services.nn.devices import NARROW_WIDTH, DeviceOptions, is_out_of_memory

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def test_a_device_is_taken_by_its_name() -> None:
    assert DeviceOptions(device="cpu").choose_device() == CPU


def test_a_missing_device_is_named() -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has the device that the test needs to be missing")
    with pytest.raises(ValueError, match="'mps'"):
        DeviceOptions(device="mps").choose_device()


def test_the_dtype_follows_the_device_unless_it_is_said() -> None:
    assert DeviceOptions().choose_dtype(CPU) == torch.float32
    assert DeviceOptions().choose_dtype(CUDA) == torch.bfloat16
    assert DeviceOptions(dtype="float16").choose_dtype(CUDA) == torch.float16


def test_a_narrow_model_runs_on_one_thread_unless_more_are_asked_for() -> None:
    assert DeviceOptions(all_threads=8).choose_num_threads(NARROW_WIDTH) == 1
    assert DeviceOptions(all_threads=8).choose_num_threads(NARROW_WIDTH + 1) == 8
    assert DeviceOptions(num_threads=3, all_threads=8).choose_num_threads(NARROW_WIDTH) == 3


def test_out_of_memory_is_told_from_other_errors() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_lists_of_integers_come_to_a_device_as_they_are() -> None:
    found = integers([3, 1], [], np.arange(3, dtype=np.int32), device=CPU)
    assert [some.tolist() for some in found] == [[3, 1], [], [0, 1, 2]]
    assert {some.dtype for some in found} == {torch.int64}
    assert [some.tolist() for some in integers([], [], device=CPU)] == [[], []]


def test_of_a_gpu_that_others_use_torch_takes_its_share_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    for options in (DeviceOptions("cuda", memory_share=0.2), DeviceOptions("cuda"), DeviceOptions(memory_share=0.3)):
        assert options.choose_device().type == "cuda"
    DeviceOptions("cpu", memory_share=0.1).choose_device()
    assert shares == [0.2, 0.3]


def test_only_copies_to_cuda_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy to an Apple GPU that is not waited for may read memory that was freed."""
    asked: list[dict[str, object]] = []

    def to(x: torch.Tensor, device: torch.device, **options: object) -> torch.Tensor:
        asked.append(options)
        return x

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)
    for device in ("mps", "cpu", "cuda"):
        to_device(torch.zeros(1), torch.device(device))
    assert asked == [{}, {}, {"non_blocking": True}]
