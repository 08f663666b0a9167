"""`fovea evaluate wise-ft …` evaluates the weights between two real CLIPs on any parts of the suite, continues where it
stopped, and chooses the share that gains most without losing what is to be kept."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner
from typer.testing import Result as Invoked

from services.nn.clip_model import OPEN_CLIP_WEIGHTS
from services.score.evaluation.aggregates import AVERAGE, COMP, ELEVATER
from services.score.evaluation.judges import RESULT_FILES, Result
from services.score.evaluation.suite.wise_ft import (
    COMP_PARTS,
    FIGURE,
    RESULTS,
    TENTHS,
    ZERO_SHOT_PARTS,
    Point,
    app,
    choose,
    plot,
    values_of,
)
from services.score.evaluation.tables import make_tables, numbers_of
from services.score.model.checkpoint import load_fsc_clip
from tests.embed.tiny import write_tiny_checkpoint
from tests.published_clips import write_hugging_face, write_laion
from tests.score.evaluation.test_tables import suite_of
from tests.score.evaluation.tiny_suite import write_suite


def points() -> list[Point]:
    """Scores whose gain peaks at 0.8; of those to be kept, one falls from 0.7 on and another one rises."""
    return [
        Point(
            alpha,
            {"crepe": 60 - 10 * abs(alpha - 0.8), "whatsup": 50.0},
            {"elevater": 57 - (3 * alpha if alpha > 0.65 else 0), "T2I R@1": 40 + 10 * alpha},
        )
        for alpha in TENTHS
    ]


def test_the_share_that_gains_most_and_loses_nothing_beyond_the_margin_is_chosen() -> None:
    # the mean of what is to be kept rises: it is each number that must not fall
    assert choose(points(), margin=1).alpha == 0.6
    assert choose(points(), margin=3).alpha == 0.8
    assert choose(points(), margin=0).alpha == 0.6


def test_the_default_parts_are_those_of_comp_and_zs() -> None:
    results = suite_of("fsc", 46, 57)
    gains, keeps = values_of(COMP_PARTS, results), values_of(ZERO_SHOT_PARTS, results)
    assert tuple(sorted(gains)) == tuple(sorted(COMP))
    assert list(gains.values()) == pytest.approx([46] * len(COMP))
    assert keeps == {"elevater": pytest.approx(57)}


WAYS = (("i2t", 20), ("t2i", 0))


def test_parts_of_a_benchmark_count_as_one_and_retrieval_both_ways() -> None:
    results = [
        Result("a", "aro", {"VG_Relation": 60, "VG_Attribution": 70, "COCO_Order": 10, "Flickr30k_Order": 20}, {}),
        Result("a", "elevater", {"mnist": 40, "cifar10": 90, "dtd": 1}, {}),
        Result("a", "retrieval", {f"flickr30k::{way}/R@{k}": k + more for way, more in WAYS for k in (1, 5, 10)}, {}),
    ]
    assert values_of(["aro (Visual Genome)", "mnist", "cifar10"], results) == {"aro": 65, "elevater": 65}
    assert values_of(["aro (Visual Genome)", "aro (orders)"], results) == {"aro": 40}
    assert values_of(["flickr30k"], results) == {"I2T R@1": 21, "T2I R@1": 1}


def test_the_plot_has_a_curve_for_each_model() -> None:
    svg = plot({"fsc-clip": points(), "negclip": points()[:3]}, ("ZS", "Comp"))
    assert all(text in svg for text in ("fsc-clip", "negclip", ">ZS<", ">Comp<"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "data")


def write_pair(folder: Path) -> tuple[Path, Path]:
    """Two CLIPs as they are published, the second tuned from the first."""
    base, tuned = write_laion(folder / "base"), write_laion(folder / "tuned")
    state = load_file(tuned / OPEN_CLIP_WEIGHTS)
    generator = torch.Generator().manual_seed(1)
    for name, weight in state.items():
        if weight.ndim > 1:
            state[name] = weight + weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(state, tuned / OPEN_CLIP_WEIGHTS)
    return base, tuned


@pytest.mark.slow
def test_the_command_evaluates_every_share_of_real_clips_and_continues(data: Path, tmp_path: Path) -> None:
    base, tuned = write_pair(tmp_path)
    output = tmp_path / "out"

    def run(*extra: str) -> Invoked:
        command = [str(base), f"tuned={tuned}", "--data", str(data), "--output", str(output), "--device", "cpu"]
        return CliRunner(env={"COLUMNS": "300"}).invoke(app, [*command, *extra])

    parts = ["--gain", "whatsup,winoground", "--keep", "mnist,flickr30k", "--margin", "5"]
    first = run(*parts)
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout.splitlines()[-1])
    assert [point["alpha"] for point in told["points"]] == list(TENTHS)
    assert len({json.dumps([point["gains"], point["keeps"]]) for point in told["points"]}) > 3
    # both ends are the models themselves
    results = RESULT_FILES.load([output / RESULTS])
    numbers = numbers_of(results)
    assert numbers["tuned, α = 0"]["winoground"][AVERAGE] == told["points"][0]["gains"]["winoground"]
    assert any(table.title.startswith("Figure 3") for table in make_tables([*results, *whole_comp()]))
    chosen = choose([Point(**point) for point in told["points"]], 5)
    assert told["chosen"] == chosen.alpha
    before, after = (load_file(folder / OPEN_CLIP_WEIGHTS)["visual.proj"] for folder in (base, tuned))
    checkpoint = load_fsc_clip(output / "tuned")
    torch.testing.assert_close(
        checkpoint.clip.model.visual.proj, torch.lerp(before, after, chosen.alpha), rtol=1e-2, atol=1e-3
    )
    assert (output / FIGURE).read_text().startswith("<svg")
    # what is saved is not evaluated again; what was not saved is
    kept = [one for one in results if (one.judge, one.benchmark) != ("tuned, α = 0.7", "elevater")]
    RESULT_FILES.write(kept, output / RESULTS)
    second = run(*parts)
    assert [line.split(":")[0] for line in second.stdout.splitlines() if line.startswith("α = ")] == ["α = 0.7, mnist"]
    assert json.loads(second.stdout.splitlines()[-1]) == told
    missing = run("--gain", "crepe", "--keep", "mnist", "--data", str(tmp_path / "base"))
    assert missing.exit_code == 1
    assert "there are no data of crepe" in missing.stderr
    other = write_hugging_face(tmp_path / "other")
    for reference, reason in ((other, "neither a directory"), (tuned / OPEN_CLIP_WEIGHTS, "neither a directory")):
        refused = CliRunner().invoke(app, [str(base), str(reference), "--data", str(data), "--output", str(output)])
        assert refused.exit_code == 1
        assert reason in refused.stderr


def test_two_models_without_weights_in_between_are_refused(data: Path, tmp_path: Path) -> None:
    base = write_laion(tmp_path / "base")
    focallens = write_tiny_checkpoint(tmp_path / "focallens")
    environment = {"FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path)}
    for tuned, reason in (
        (str(base), "have the same weights: nothing lies between them"),
        (str(focallens), f"is no CLIP: it has open_clip_config.json, as other models do, and no {OPEN_CLIP_WEIGHTS}"),
        ("clip-shapez", "there is no model 'clip-shapez' in "),
        ("clip-shapez", "did you mean clip-shapes?"),
        ("ViT-B-32", "a model of open_clip is ViT-B-32:TAG, with the tag of its weights"),
    ):
        command = [str(base), f"tuned={tuned}", "--data", str(data), "--output", str(tmp_path / "out")]
        refused = CliRunner(env=environment).invoke(app, command)
        assert refused.exit_code == 1
        assert reason in refused.stderr


def whole_comp() -> list[Result]:
    """The rest of Comp for two shares, without which Figure 3 has no such column."""
    return [Result(f"tuned, α = {alpha}", "elevater", dict.fromkeys(ELEVATER, 50.0), {}) for alpha in ("0", "1")]
