"""Released weights become checkpoints, in every layout that they are published in; nothing in a file is ever run."""

import argparse
import contextlib
import json
import math
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
from typer.testing import CliRunner, Result

from services.core.refusals import Refused
from services.core.store.store import Store
from services.jobs.released_weights import read_state_dict
from services.nn.clip_model import ClipModel, open_clip, save_clip
from services.score.model.checkpoint import load_fsc_clip
from services.score.model.dense_features import encode_texts
from services.score.training.convert import app
from tests.published_clips import RANK, RELEASED, State, training_checkpoint, with_lora
from tests.score.tiny import CONFIG, CONTEXT_LENGTH, EMBEDDING_WIDTH, tiny_clip


@pytest.fixture(scope="module")
def clip() -> ClipModel:
    """The model whose weights are released."""
    return tiny_clip(seed=7)


@pytest.fixture(scope="module")
def architecture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for `--model`: the same architecture with other weights."""
    directory = tmp_path_factory.mktemp("architecture")
    save_clip(tiny_clip(seed=8), directory)
    return directory


@pytest.fixture
def state(clip: ClipModel) -> State:
    return {name: weight.clone() for name, weight in clip.model.state_dict().items()}


@pytest.fixture
def convert(tmp_path: Path, architecture: Path) -> Callable[..., Result]:
    """Save what is given as a file and convert it."""

    def run(content: Any, *options: str, path: Path = tmp_path / "tiny.pt") -> Result:
        if content is not None:
            torch.save(content, path)
        arguments = [str(path), "--model", str(architecture), "--output", str(tmp_path / "out")]
        if "--store-url" not in options:
            options = (*options, "--no-publish")
        return CliRunner().invoke(app, [*arguments, *options])

    return run


def converted(tmp_path: Path) -> State:
    return dict(load_fsc_clip(tmp_path / "out").clip.model.state_dict())


def assert_equal(ours: State, expected: State) -> None:
    assert set(ours) == set(expected)
    for name, weight in ours.items():
        assert torch.equal(weight, expected[name].half().to(weight.dtype)), name


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
    tmp_path: Path, convert: Callable[..., Result], state: State, layout: Callable[[State], Any]
) -> None:
    result = convert(layout(state))
    assert result.exit_code == 0, result.output
    assert_equal(converted(tmp_path), state)


def test_a_safetensors_file_and_an_old_file_of_torch_are_read_too(
    tmp_path: Path, convert: Callable[..., Result], state: State
) -> None:
    save_file(state, tmp_path / "tiny.safetensors")
    assert convert(None, path=tmp_path / "tiny.safetensors").exit_code == 0
    assert_equal(converted(tmp_path), state)
    other = {name: 2 * weight for name, weight in state.items()}
    torch.save(other, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert convert(None, path=tmp_path / "old.pt").exit_code == 0
    assert_equal(converted(tmp_path), other)


@pytest.mark.parametrize("name", RELEASED)
def test_other_methods_checkpoints_become_the_weights_that_they_compute_with(
    tmp_path: Path, convert: Callable[..., Result], state: State, name: str
) -> None:
    layout, has_lora = RELEASED[name]
    released, computed = with_lora(state) if has_lora else (state, state)
    result = convert(layout(released))
    assert result.exit_code == 0, result.output
    assert ("rank 4, alpha 1" in result.output) == has_lora
    assert_equal(converted(tmp_path), computed)


def test_another_alpha_scales_what_is_added(tmp_path: Path, convert: Callable[..., Result], state: State) -> None:
    released, merged = with_lora(state)
    assert convert(released, "--lora-alpha", "2").exit_code == 0
    twice = {name: state[name] + 2 * (weight - state[name]) for name, weight in merged.items()}
    for name, weight in converted(tmp_path).items():
        torch.testing.assert_close(weight, twice[name], rtol=2e-3, atol=2e-3)


def test_half_a_pair_of_matrices_or_one_of_another_shape_is_refused(
    convert: Callable[..., Result], state: State
) -> None:
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
        result = convert(changed)
        assert result.exit_code == 1
        assert reason in result.stderr


def test_masks_and_sizes_that_nobody_learnt_are_left_out_and_named(
    tmp_path: Path, convert: Callable[..., Result], state: State
) -> None:
    sizes = {"input_resolution": torch.tensor(32), "context_length": 77, "vocab_size": torch.tensor(49408)}
    result = convert({**state, **sizes, "attn_mask": torch.zeros(CONTEXT_LENGTH, CONTEXT_LENGTH)})
    assert result.exit_code == 0, result.output
    assert "left out: input_resolution, vocab_size, attn_mask" in result.output
    assert_equal(converted(tmp_path), state)


def test_weights_that_the_model_does_not_have_are_refused_by_name_until_they_are_left_out_by_name(
    tmp_path: Path, convert: Callable[..., Result], state: State
) -> None:
    heads = {"module.itm_head.weight": torch.ones(2), "module.rank_head.bias": torch.ones(2)}
    content = {**{f"module.{name}": weight for name, weight in state.items()}, **heads}
    refused = convert({"state_dict": content})
    assert refused.exit_code == 1
    assert "the model has no itm_head.weight, rank_head.bias" in refused.stderr
    assert not (tmp_path / "out").exists()
    accepted = convert({"state_dict": content}, "--leave-out", "itm_head.", "--leave-out", "rank_head.")
    assert accepted.exit_code == 0, accepted.output
    assert "left out: itm_head.weight, rank_head.bias" in accepted.output
    assert_equal(converted(tmp_path), state)


def test_missing_misshapen_and_broken_weights_are_refused_by_name(convert: Callable[..., Result], state: State) -> None:
    rest = {name: weight for name, weight in state.items() if name not in ("logit_scale", "visual.proj")}
    for content, reason in (
        (rest, "the file has no logit_scale, visual.proj"),
        ({**state, "visual.proj": torch.ones(3, EMBEDDING_WIDTH)}, f"visual.proj is [3, {EMBEDDING_WIDTH}], and [32,"),
        ({**state, "logit_scale": torch.tensor(math.nan)}, "logit_scale has numbers that are not finite"),
        ({"epoch": 3, "state_dict": {}}, "contains no state dict"),
        ({"epoch": 3, "name": "run"}, "epoch, name is not a weight"),
        ([1, 2], "contains no state dict"),
        ({**state, "visual.proj": torch.ones(1).expand(2**32)}, "visual.proj [4294967296] repeats 4 stored bytes"),
    ):
        result = convert(content)
        assert result.exit_code == 1
        assert reason in result.stderr


def test_many_names_are_told_by_the_first_few_and_a_count(convert: Callable[..., Result], state: State) -> None:
    result = convert({name: weight for name, weight in state.items() if not name.startswith("visual.transformer")})
    assert "and 16 more" in result.stderr


class Malicious:
    """Pickled, it makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_file_whose_pickle_holds_code_is_refused_and_runs_nothing(
    tmp_path: Path, convert: Callable[..., Result], state: State
) -> None:
    trace = tmp_path / "it-ran"
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickle.dumps(Malicious(trace), protocol=2))
    old = tmp_path / "old.pt"
    torch.save({"state_dict": state, "args": Malicious(trace)}, old, _use_new_zipfile_serialization=False)
    for result in (
        convert({"state_dict": state, "args": Malicious(trace)}),
        convert(None, path=plain),
        convert(None, path=old),
    ):
        assert result.exit_code == 1
        assert "mkdir; no code was executed" in result.stderr
        assert not trace.exists()
    pickle.loads(plain.read_bytes())  # noqa: S301 that it would have run is what makes this a test
    assert trace.exists()


def test_arguments_pickled_beside_the_weights_are_refused_too(convert: Callable[..., Result], state: State) -> None:
    result = convert({"state_dict": state, "args": argparse.Namespace(lr=5e-6)})
    assert result.exit_code == 1
    assert "contains more than weights: it refers to argparse.Namespace" in result.stderr


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_torch_script_archive_as_openai_releases_them_is_refused_in_a_sentence(
    tmp_path: Path, convert: Callable[..., Result]
) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "ViT-B-32.pt")
    result = convert(None, path=tmp_path / "ViT-B-32.pt")
    assert result.exit_code == 1
    assert "is a TorchScript archive, which contains a program" in result.stderr


@pytest.mark.parametrize("name", ["some.pt", "some.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello, these are no weights", b"PK\x03\x04 cut off", b"\x80\x02cut"])
def test_a_file_that_holds_no_weights_is_refused(
    tmp_path: Path, convert: Callable[..., Result], name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    result = convert(None, path=tmp_path / name)
    assert result.exit_code == 1
    assert str(tmp_path / name) in result.stderr


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


def test_a_model_that_nobody_knows_is_refused(tmp_path: Path, state: State) -> None:
    torch.save(state, tmp_path / "tiny.pt")
    arguments = [str(tmp_path / "tiny.pt"), "--model", "ViT-Z-99", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "--model: 'ViT-Z-99' is neither" in result.stderr


def test_a_converted_model_is_published_with_where_it_comes_from(
    tmp_path: Path, convert: Callable[..., Result], state: State, architecture: Path
) -> None:
    store_url = f"file://{tmp_path / 'store'}"
    released, merged = with_lora(state)
    options = ("--store-url", store_url, "--name", "fsc-clip-tiny", "--local-weight", "0.25", "--licence", "MIT")
    result = convert({"state_dict": released}, *options)
    assert result.exit_code == 0, result.output
    store = Store.open(store_url)
    version = store.resolve("fsc-clip-tiny", "latest")
    assert f"published fsc-clip-tiny@{version}" in result.output
    manifest = store.manifest("fsc-clip-tiny", version)
    assert (manifest.kind, manifest.base, manifest.licence) == ("fsc-clip", str(architecture), "MIT")
    assert manifest.training["weights"] == "tiny.pt"
    assert manifest.training["lora_rank"] == RANK
    checkpoint = load_fsc_clip(store.fetch("fsc-clip-tiny", version, tmp_path / "cache"))
    assert checkpoint.local_weight == 0.25
    assert_equal(dict(checkpoint.clip.model.state_dict()), merged)


def test_a_name_that_the_store_would_not_take_is_refused_before_anything_is_written(
    tmp_path: Path, convert: Callable[..., Result], state: State
) -> None:
    result = convert(state, "--name", "FSC CLIP")
    assert result.exit_code == 1
    assert "model name 'FSC CLIP'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_model_named_tells_the_activation_which_no_weight_does(
    tmp_path: Path, state: State, clip: ClipModel, caplog: pytest.LogCaptureFixture
) -> None:
    open_clip().add_model_config(_named(tmp_path / "ViT-tiny-convert.json", {"quick_gelu": False}))
    open_clip().add_model_config(_named(tmp_path / "ViT-tiny-convert-quickgelu.json", {"quick_gelu": True}))
    torch.save(state, tmp_path / "tiny.pt")
    features = []
    for model in ("ViT-tiny-convert", "ViT-tiny-convert-quickgelu"):
        output = tmp_path / model
        arguments = [str(tmp_path / "tiny.pt"), "--model", model, "--output", str(output), "--no-publish"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        loaded = load_fsc_clip(output)
        assert loaded.clip.config["model_cfg"]["quick_gelu"] == model.endswith("-quickgelu")
        features.append(encode_texts(loaded.clip.model, loaded.clip.tokenizer(["a dog"])).pooled)
    expected = encode_texts(clip.model, clip.tokenizer(["a dog"])).pooled.detach()
    torch.testing.assert_close(features[0], expected, atol=5e-4, rtol=0)
    assert (features[0] - features[1]).abs().max() > 2e-3
    assert caplog.messages == []  # nothing of weights drawn at random, which are replaced


def _named(path: Path, change: dict[str, Any]) -> Path:
    path.write_text(json.dumps({**CONFIG["model_cfg"], **change}))
    return path
