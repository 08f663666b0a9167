"""Training jobs resume where they were killed, publish what they made, and agree over several processes."""

import json
import os
import random
import signal
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.store.store import Store
from services.nn.clip_model import OPEN_CLIP_WEIGHTS, save_clip
from services.nn.plain_clip import load_plain_clip
from services.score.model.checkpoint import load_fsc_clip
from services.score.training.train import app
from tests.core.child_processes import forked_processes
from tests.file_events import before, die, putting
from tests.kept_port import kept_port
from tests.score.tiny import tiny_clip
from tests.score.training.test_batches import write_folder, write_shards, write_stored

FAST = ["--precision", "no", "--checkpoint-every", "2"]
TUNING = ["--batch-size", "4", *FAST]


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    return forked_processes()


def run_killed_job(arguments: list[str], state: Path, number: int) -> None:
    """A job as a process of its own runs it, until it saves this state for the `number`th time."""
    before(putting(state), number, die)
    run_job(arguments, {})


def run_job(arguments: list[str], environment: dict[str, str]) -> None:
    """A job as a process of its own runs it."""
    os.environ.update(environment)
    app(arguments, standalone_mode=False)


def job(*arguments: str) -> str:
    """A job in this process; what it printed."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CLIP, and beside it a folder of images with a table of captions."""
    folder = tmp_path_factory.mktemp("base")
    save_clip(tiny_clip(), folder / "clip")
    write_folder(folder)
    return folder / "clip"


def tuning(base: Path, *options: str) -> list[str]:
    """Arguments of a tuning of this CLIP on the images beside it."""
    return [*TUNING, "--base", str(base), "--images", str(base.parent / "captions.tsv"), *options]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "checkpoint" / OPEN_CLIP_WEIGHTS)


def differs(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.slow
def test_a_job_killed_three_times_ends_with_the_weights_of_an_uninterrupted_one(
    base: Path, tmp_path: Path, processes: ForkServerContext
) -> None:
    steady, killed = tmp_path / "steady", tmp_path / "killed"
    arguments = tuning(base, "--steps", "40", "--no-publish")
    job(*arguments, "--output", str(steady))
    dice = random.Random(7)
    state = killed / "resume-tuning.pt"
    for _ in range(3):
        job_of_its_own = ([*arguments, "--output", str(killed)], state, dice.randint(2, 6))
        process = processes.Process(target=run_killed_job, args=job_of_its_own)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert state.exists()
        assert not (killed / "checkpoint").exists()
    job(*arguments, "--output", str(killed))
    assert not differs(weights(steady), weights(killed))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fsc-clip", "negclip"])
def test_two_processes_that_gather_equal_one_with_the_same_batch(
    base: Path, tmp_path: Path, processes: ForkServerContext, method: str
) -> None:
    arguments = tuning(base, "--set", f"method={method}", "--steps", "3", "--set", "learning_rate=1e-3", "--no-publish")
    job(*arguments, "--output", str(tmp_path / "one"))
    two = [*arguments, "--output", str(tmp_path / "two")]
    with kept_port() as port:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            processes.Process(
                target=run_job, args=(two, {**address, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank})
            )
            for rank in ("0", "1")
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    before = load_file(base / OPEN_CLIP_WEIGHTS)
    expected, found = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, weight in expected.items():
        # what rounding changes is little beside what three steps change
        torch.testing.assert_close(found[name].float(), weight.float(), rtol=2e-3, atol=1e-4, msg=name)
    moved = max(float((expected[name].float() - before[name].float()).abs().max()) for name in expected)
    assert moved > 2e-3


@pytest.mark.slow
def test_a_resume_state_of_other_arguments_is_refused(base: Path, tmp_path: Path) -> None:
    arguments = tuning(base, "--output", str(tmp_path), "--no-publish")
    job(*arguments, "--steps", "2")
    with pytest.raises(ValueError, match=r"\(--steps was 2, and is 3\)"):
        job(*arguments, "--steps", "3")


@pytest.mark.slow
def test_a_job_publishes_a_checkpoint_whose_manifest_says_how_it_was_made(base: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    arguments = tuning(base, "--steps", "2", "--seed", "5", "--set", "local_weight=0.3")
    job(*arguments, "--store-url", url, "--name", "mine", "--output", str(tmp_path / "run"))
    store = Store.open(url)
    version = store.resolve("mine")
    manifest = store.manifest("mine", version)
    assert (manifest.kind, manifest.base, manifest.seed) == ("fsc-clip", str(base), 5)
    assert manifest.training["steps"] == 2
    assert manifest.training["negatives"] == ["negclip", "replace", "bigram_shuffle"]
    assert load_fsc_clip(store.fetch("mine", version, tmp_path / "cache")).local_weight == 0.3


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["clip-coco-rn50", "negclip-coco-rn50"])
def test_a_residual_network_is_trained_from_scratch_and_published_as_a_plain_clip(
    base: Path, tmp_path: Path, recipe: str
) -> None:
    residual = {"layers": [1, 1, 1, 1], "width": 8, "patch_size": None, "head_width": 64}
    save_clip(tiny_clip(vision=residual), tmp_path / "form")
    url = (tmp_path / "store").as_uri()
    arguments = [*TUNING, "--base", str(tmp_path / "form"), "--pretrained", "random", "--recipe", recipe]
    arguments += ["--images", str(base.parent / "captions.tsv"), "--steps", "2", "--store-url", url, "--name", "mine"]
    job(*arguments, "--output", str(tmp_path / "run"))
    changed = differs(weights(tmp_path / "run"), load_file(tmp_path / "form" / OPEN_CLIP_WEIGHTS))
    # its weights are new, and those of its batch norm are learnt
    assert {"visual.conv1.weight", "visual.bn1.running_mean", "visual.attnpool.q_proj.weight"} <= changed
    manifest = Store.open(url).manifest("mine", Store.open(url).resolve("mine"))
    assert (manifest.kind, manifest.base) == ("open-clip", f"{tmp_path / 'form'}:random")
    assert manifest.training["beta2"] == 0.999
    load_plain_clip(tmp_path / "run" / "checkpoint")
    told = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, [*arguments, "--set", "method=fsc-clip", "--output", str(tmp_path / "other")]
    )
    assert told.exit_code == 2
    assert "this recipe needs a plain ViT" in told.output and "the methods clip and negclip take any" in told.output


@pytest.mark.slow
def test_low_rank_matrices_are_merged_into_weights_that_any_clip_has(base: Path, tmp_path: Path) -> None:
    arguments = tuning(base, "--set", "lora_rank=2", "--set", "learning_rate=1e-2", "--steps", "4", "--no-publish")
    job(*arguments, "--output", str(tmp_path))
    changed = differs(weights(tmp_path), load_file(base / OPEN_CLIP_WEIGHTS))
    assert "visual.transformer.resblocks.0.mlp.c_fc.weight" in changed
    assert not changed & {"logit_scale", "token_embedding.weight", "visual.class_embedding", "ln_final.weight"}
    load_fsc_clip(tmp_path / "checkpoint")


@pytest.mark.slow
def test_shares_of_the_tuned_weights_lie_between_both_models(base: Path, tmp_path: Path) -> None:
    arguments = tuning(base, "--steps", "3", "--set", "learning_rate=1e-2", "--no-publish")
    for alpha in ("0", "0.5", "1"):
        job(*arguments, "--set", f"alpha={alpha}", "--output", str(tmp_path / alpha))
    before, half, after = (weights(tmp_path / alpha) for alpha in ("0", "0.5", "1"))
    assert not differs(before, load_file(base / OPEN_CLIP_WEIGHTS))
    name = "visual.proj"
    middle = (before[name].float() + after[name].float()) / 2
    torch.testing.assert_close(half[name].float(), middle, rtol=1e-3, atol=1e-3)
    assert not torch.equal(before[name], after[name])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fsc-clip-laion-coco", "negclip-laion-coco", "clip-laion-coco"])
def test_webdataset_shards_tune_a_model_by_a_published_recipe(base: Path, tmp_path: Path, recipe: str) -> None:
    data = ["--data", "tars", "--images", write_shards(tmp_path)]
    arguments = [*TUNING, "--recipe", recipe, "--base", str(base), *data, "--accumulate", "2", "--no-publish"]
    job(*arguments, "--output", str(tmp_path / "run"))
    described = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert described["training"]["epochs"] == 5
    assert described["training"]["sources"]["tagger"]
    assert all(bool(tensor.isfinite().all()) for tensor in weights(tmp_path / "run").values())


@pytest.mark.slow
def test_missing_negatives_count_as_in_the_released_code_where_the_command_says_so(base: Path, tmp_path: Path) -> None:
    options = ["--set", "method=negclip", "--set", "missing=zero", "--steps", "1"]
    job(*tuning(base, *options, "--output", str(tmp_path), "--no-publish"))
    assert json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())["training"]["missing"] == "zero"


@pytest.mark.slow
def test_stored_negatives_are_trained_on_and_named_in_the_manifest(base: Path, tmp_path: Path) -> None:
    table, pairs = write_folder(tmp_path), write_stored(tmp_path)
    arguments = [*TUNING, "--base", str(base), "--set", "method=negclip", "--images", str(table)]
    stored = ["--stored", str(pairs), "--negatives", "swap", "--negatives", "negate"]
    job(*arguments, *stored, "--steps", "2", "--no-publish", "--output", str(tmp_path / "run"))
    described = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())["training"]
    assert described["negatives"] == ["swap", "negate"]
    assert described["stored"] == str(pairs) and described["sources"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--negatives", "add"], "holds no pairs"),
        (["--negatives", "negclip"], "'negclip' is neither a form nor a type"),
        (["--set", "method=clip"], "the method clip uses no hard negatives"),
    ],
)
def test_stored_negatives_that_would_not_be_used_are_refused(
    base: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    pairs = write_stored(tmp_path)
    arguments = [*TUNING, "--base", str(base), "--images", str(write_folder(tmp_path)), *options]
    arguments += ["--stored", str(pairs), "--output", str(tmp_path / "run"), "--no-publish"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_stored_negatives_belong_to_a_table(base: Path, tmp_path: Path) -> None:
    arguments = tuning(base, "--data", "tars", "--stored", str(write_stored(tmp_path)), "--output", str(tmp_path / "x"))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 2
    assert "--data folder" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recipe", "coco"], "there is no recipe"),
        (["--set", "method=siglip"], "method: Input should be 'clip'"),
        (["--set", "metod=clip"], "'metod=clip' is not KEY=VALUE of alpha"),
        (["--set", "learning_rate=fast"], "learning_rate: Input should be a valid number"),
        (["--data", "video"], "video"),
        (["--images", "other.tsv"], "one table"),
        (["--data", "tars", "--images", "none.tar"], "captions.tsv"),
        (["--batch-size", "5", "--accumulate", "2"], "can't evenly split"),
        (["--negatives", "negation"], "negatives.0: Input should be"),
    ],
)
def test_what_makes_no_training_is_refused_before_it_starts(
    base: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    arguments = tuning(base, *options, "--output", str(tmp_path), "--no-publish")
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 2
    assert message.replace("\\", "") in result.output
