"""The memory of a student, estimated from its files."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from services.nn.devices import DeviceOptions
from services.nn.packed_linear import can_pack
from services.predict.model.student import held_bytes
from tests.predict.tiny_students import VOCAB_SIZE, Kind, save_student, tiny_t5

pytestmark = pytest.mark.process

CPU = DeviceOptions(device="cpu", dtype="float32")
IS_PACKED = can_pack(torch.device("cpu"), torch.float32)
WIDTH = 32  # of the tiny student


@pytest.mark.parametrize("kind", ["t5", "v1.1"])
def test_every_parameter_counts_as_it_is_computed_with(kind: Kind, tmp_path: Path) -> None:
    folder = save_student(tmp_path, kind=kind)
    num_parameters = sum(parameter.numel() for parameter in tiny_t5(kind).parameters())
    head = VOCAB_SIZE * WIDTH if IS_PACKED else 0  # whose rows are looked up besides
    assert held_bytes(folder, CPU) == 4 * (num_parameters + head)
    assert held_bytes(folder, DeviceOptions(device="cpu", dtype="bfloat16")) == 2 * num_parameters


def test_eight_bit_integers_take_a_byte_but_embeddings_four(tmp_path: Path) -> None:
    folder = save_student(tmp_path)
    num_parameters = sum(parameter.numel() for parameter in tiny_t5().parameters())
    assert held_bytes(folder, CPU, is_int8=True) == num_parameters + 4 * VOCAB_SIZE * WIDTH


def test_the_numbers_of_the_file_do_not_matter(tmp_path: Path) -> None:
    expected = held_bytes(save_student(tmp_path / "single"), CPU)
    tiny_t5().half().save_pretrained(tmp_path / "half")
    assert held_bytes(tmp_path / "half", CPU) == expected
    tiny_t5().save_pretrained(tmp_path / "parts", max_shard_size="60KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert held_bytes(tmp_path / "parts", CPU) == expected


def test_a_folder_without_a_t5_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file of"):
        held_bytes(tmp_path, CPU)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        held_bytes(tmp_path, CPU)


LOADED = """
import gc, sys
from pathlib import Path
from services.core.memory import allocate_in_one_arena, return_freed_memory
allocate_in_one_arena()
from services.nn.devices import DeviceOptions
from services.predict.model.student import Student

def held() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return 1024 * int(line.split()[1])

def load(folder: str) -> Student:
    student = Student.load(Path(folder), DeviceOptions(device="cpu", dtype="float32", num_threads=1))
    gc.collect()
    return_freed_memory()
    return student

small = load(sys.argv[1])
before = held()
for folder in sys.argv[2:]:
    large = load(folder)
    between = held()
    del large
    return_freed_memory()
    print(between - before, held() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system tells it otherwise")
def test_it_is_what_the_process_holds_and_gives_back(tmp_path: Path) -> None:
    folders = [save_student(tmp_path / name) for name in ("small", "single", "half")]
    for folder, dtype in zip(folders[1:], (torch.float32, torch.float16), strict=True):
        tiny_t5(d_model=256, d_ff=2048, d_kv=64, vocab_size=20_000).to(dtype).save_pretrained(folder)
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *map(str, folders)], capture_output=True, text=True, check=True
    )
    expected = held_bytes(folders[1], CPU)
    assert expected > 50_000_000
    for line in done.stdout.splitlines():
        held, left = map(int, line.split())
        assert 0.9 * expected < held < 1.1 * expected
        assert left < 0.1 * expected
