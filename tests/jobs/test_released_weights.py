"""Released weights are read in every layout that they are published in; nothing in a file is ever run."""

import argparse
import contextlib
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from services.core.refusals import Refused
from services.jobs.released_weights import learnt, merge_lora, read_state_dict
from tests.published_clips import RANK, RELEASED, State, training_checkpoint, with_lora

WIDTH, LAYERS = 8, 6


@pytest.fixture
def state() -> State:
    """The weights that are released, by the names of a CLIP's."""
    generator = torch.Generator().manual_seed(7)
    shapes = {"visual.proj": (WIDTH, WIDTH), "visual.conv1.weight": (WIDTH, 3, 2, 2), "logit_scale": ()}
    for layer in range(LAYERS):
        shapes |= {f"transformer.resblocks.{layer}.attn.in_proj_weight": (3 * WIDTH, WIDTH)}
        shapes |= {f"transformer.resblocks.{layer}.mlp.c_fc.weight": (4 * WIDTH, WIDTH)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def weights_of(content: Any, path: Path) -> State:
    """Save what is given as a file, and read it as an import does."""
    if content is not None:
        torch.save(content, path)
    return learnt(merge_lora(read_state_dict(path)))


def assert_equal(ours: State, expected: State) -> None:
    assert set(ours) == set(expected)
    for name, weight in ours.items():
        assert torch.equal(weight.half(), expected[name].half()), name


@pytest.mark.parametrize(
    "layout",
    [
        training_checkpoint,
        lambda state: training_checkpoint(state, "module."),
        lambda state: training_checkpoint(state, "module._orig_mod."),
        lambda state: state,
        lambda state: {name: weight.half() for name, weight in state.items()},
    ],
    ids=["training", "several GPUs", "compiled", "weights alone", "half precision"],
)
def test_every_layout_of_a_release_gives_its_weights(
    tmp_path: Path, state: State, layout: Callable[[State], Any]
) -> None:
    assert_equal(weights_of(layout(state), tmp_path / "tiny.pt"), state)


def test_a_safetensors_file_and_an_old_file_of_torch_are_read_too(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "tiny.safetensors")
    assert_equal(weights_of(None, tmp_path / "tiny.safetensors"), state)
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_equal(weights_of(None, tmp_path / "old.pt"), state)


@pytest.mark.parametrize("name", RELEASED)
def test_other_methods_checkpoints_become_the_weights_that_they_compute_with(
    tmp_path: Path, state: State, name: str
) -> None:
    layout, has_lora = RELEASED[name]
    released, computed = with_lora(state) if has_lora else (state, state)
    assert_equal(weights_of(layout(released), tmp_path / "tiny.pt"), computed)


def test_half_a_pair_of_matrices_or_one_of_another_shape_is_refused(tmp_path: Path, state: State) -> None:
    released, _ = with_lora(state)
    attention = "transformer.resblocks.0.attn.in_proj_weight_lora_"
    for change, reason in (
        ({f"{attention}B": None}, f"{attention}A lacks its counterpart {attention}B"),
        ({f"{attention}A": None}, f"unexpected weights: {attention}B"),
        ({f"{attention}B": torch.ones(5, RANK)}, "do not make"),
        ({"ln_final.lora_C": torch.ones(2)}, "unexpected weights: ln_final.lora_C"),
        ({"head.lora_A": torch.ones(RANK, 2), "head.lora_B": torch.ones(2, RANK)}, "lacks its counterpart head.weight"),
    ):
        changed = {name: weight for name, weight in {**released, **change}.items() if weight is not None}
        with pytest.raises(Refused, match=reason):
            weights_of(changed, tmp_path / "tiny.pt")


def test_masks_and_sizes_that_nobody_learnt_are_left_out(tmp_path: Path, state: State) -> None:
    sizes = {"input_resolution": torch.tensor(32), "context_length": 77, "vocab_size": torch.tensor(49408)}
    content = {**state, **sizes, "attn_mask": torch.zeros(77, 77)}
    assert_equal(weights_of(content, tmp_path / "tiny.pt"), state)


def test_what_is_no_state_dict_is_refused(tmp_path: Path, state: State) -> None:
    for content, reason in (
        ({"epoch": 3, "state_dict": {}}, "contains no state dict"),
        ({"epoch": 3, "name": "run"}, "epoch, name is not a weight"),
        ([1, 2], "contains no state dict"),
        ({**state, "visual.proj": torch.ones(1).expand(2**32)}, r"visual.proj \[4294967296\] repeats 4 stored bytes"),
    ):
        with pytest.raises(Refused, match=reason):
            weights_of(content, tmp_path / "tiny.pt")


class Malicious:
    """Pickled, it makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_file_whose_pickle_holds_code_is_refused_and_runs_nothing(tmp_path: Path, state: State) -> None:
    trace = tmp_path / "it-ran"
    plain, old, new = (tmp_path / name for name in ("plain.pt", "old.pt", "new.pt"))
    plain.write_bytes(pickle.dumps(Malicious(trace), protocol=2))
    content = {"state_dict": state, "args": Malicious(trace)}
    torch.save(content, old, _use_new_zipfile_serialization=False)
    torch.save(content, new)
    for path in (plain, old, new):
        with pytest.raises(Refused, match="mkdir; no code was executed"):
            read_state_dict(path)
        assert not trace.exists()
    pickle.loads(plain.read_bytes())  # noqa: S301 that it would have run is what makes this a test
    assert trace.exists()


def test_arguments_pickled_beside_the_weights_are_refused_too(tmp_path: Path, state: State) -> None:
    with pytest.raises(Refused, match=r"contains more than weights: it refers to argparse\.Namespace"):
        weights_of({"state_dict": state, "args": argparse.Namespace(lr=5e-6)}, tmp_path / "tiny.pt")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_torch_script_archive_as_openai_releases_them_is_refused_in_a_sentence(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "ViT-B-32.pt")
    with pytest.raises(Refused, match="is a TorchScript archive, which contains a program"):
        read_state_dict(tmp_path / "ViT-B-32.pt")


@pytest.mark.parametrize("name", ["some.pt", "some.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello, these are no weights", b"PK\x03\x04 cut off", b"\x80\x02cut"])
def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match=name):
        read_state_dict(tmp_path / name)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_a_file_whose_bytes_were_changed_is_refused_or_read_and_never_breaks_the_job(tmp_path: Path) -> None:
    path = tmp_path / "damaged.pt"
    chance = random.Random(0)
    for is_zip in (True, False):
        torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=is_zip)
        whole = path.read_bytes()
        for _ in range(150):
            damaged = bytearray(whole)
            for _ in range(3):
                damaged[chance.randrange(len(whole))] = chance.randrange(256)
            path.write_bytes(damaged[: chance.choice([len(whole), chance.randrange(len(whole))])])
            with contextlib.suppress(Refused):
                assert all(isinstance(weight, Tensor) for weight in read_state_dict(path).values())
