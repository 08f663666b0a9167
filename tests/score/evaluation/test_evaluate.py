"""`fovea evaluate compositionality …` has judges score benchmarks and prints the papers' tables, then JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.score.evaluation.evaluate import app
from tests.published_data import published
from tests.score.evaluation.endpoint.chat_server import ChatServer
from tests.score.evaluation.stand_ins import write_image, write_sugarcrepe, write_valse
from tests.score.evaluation.tiny_suite import write_aro, write_crepe
from tests.score.tiny import write_tiny_checkpoint
from tests.tiny_text_models import write_tiny_grammar, write_tiny_vera


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "fsc")


@pytest.fixture(scope="module")
def sugarcrepe(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The command for a small one."""
    data = write_sugarcrepe(tmp_path_factory.mktemp("data"))
    return ["sugarcrepe", "--data", data, "--images", data / "val2017"]


def run(*arguments: str | Path) -> Result:
    # a wide terminal breaks no message into lines
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: str | Path) -> list[dict[str, Any]]:
    """The last line of a run that succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return found


def write_lines(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.slow
def test_the_first_choices_of_sugarcrepe_under_cocos_names_are_scored_by_a_checkpoint(
    checkpoint: Path, tmp_path: Path
) -> None:
    data = published("sugar-crepe/refined")
    for path in sorted(data.glob("*.json")):
        for place, record in enumerate(list(json.loads(path.read_text()).values())[:5]):
            write_image(tmp_path / record["filename"], (40 * place, 90, 200 - 30 * place))
    command: list[str | Path] = [
        "sugarcrepe",
        "--data",
        data,
        "--images",
        tmp_path,
        "--limit",
        "5",
        "--model",
        f"tiny={checkpoint}",
    ]
    result = run(*command, "--output", tmp_path / "results.json")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("35 records: replace_obj 5, replace_att 5, replace_rel 5, swap_obj 5, ")
    assert "Table 4.6" in result.stdout
    (found,) = json.loads(result.stdout.splitlines()[-1])
    assert (found["judge"], found["benchmark"]) == ("tiny", "sugarcrepe")
    assert set(found["sizes"].values()) == {5}
    assert found["settings"].keys() >= {"limit", "local_weight"}
    assert found["aggregates"].keys() == {"macro", "REPLACE", "SWAP", "ADD", "average"}
    # five records of each, so fifths
    assert all(score % 20 == pytest.approx(0) for score in found["scores"].values())
    assert json.loads((tmp_path / "results.json").read_text())[0]["scores"] == found["scores"]
    missing = run(*command, "--limit", "6")
    assert missing.exit_code == 2
    assert "It belongs to COCO's validation images of 2017" in missing.stderr


@pytest.mark.slow
def test_gpt4vs_released_answers_give_the_published_row(tmp_path: Path) -> None:
    answers = published("sugar-crepe/gpt4v/gpt4v_correct.json")
    first = published("sugar-crepe/swap_obj_paper246.json")
    saved = tmp_path / "results.json"
    (found,) = answer(
        *("sugarcrepe", "--data", published("sugar-crepe/refined"), "--swap-obj", first),
        *("--judge", "answers", "--model", f"GPT-4V={answers}", "--output", saved),
    )
    row = ["96.31", "93.53", "90.26", "83.13", "90.09", "91.59", "91.76", "90.95"]
    assert [f"{value:.2f}" for value in (*found["scores"].values(), found["aggregates"]["macro"])] == row
    assert f"| GPT-4V | {' | '.join(row)} |" in run("table", saved, "--format", "markdown").stdout
    numbers = json.loads(run("table", saved, "--format", "json").stdout)
    assert f"{numbers['GPT-4V']['sugarcrepe']['macro']:.2f}" == "90.95"
    assert "GPT-4V" in run("table", saved).stdout


@pytest.mark.slow
def test_several_models_and_similarities_come_together_in_one_file(
    checkpoint: Path, sugarcrepe: list[str | Path], tmp_path: Path
) -> None:
    saved = tmp_path / "results.json"
    other = write_tiny_checkpoint(tmp_path / "other", seed=1)
    both = answer(*sugarcrepe, "--model", f"one={checkpoint}", "--model", f"two={other}", "--output", saved)
    assert [one["judge"] for one in both] == ["one", "two"]
    # a path may have the sign in it
    odd = write_tiny_checkpoint(tmp_path / "seed=1" / "tiny", seed=1)
    assert answer(*sugarcrepe, "--model", odd)[0] == {**both[1], "judge": str(odd)}
    (local,) = answer(
        *sugarcrepe, "--model", f"one={checkpoint}", "--similarity", "local", "--output", saved, "--device", "cpu"
    )
    assert (local["judge"], local["settings"]["local_weight"]) == ("one, local", 1.0)
    assert list(json.loads(run("table", saved, "--format", "json").stdout)) == ["one", "two", "one, local"]


@pytest.mark.slow
def test_a_checkpoint_is_found_in_the_store(checkpoint: Path, sugarcrepe: list[str | Path], tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    Store.open(url).publish("fsc-clip-tiny", checkpoint, CheckpointInfo(kind="fsc-clip"))
    (stored,) = answer(*sugarcrepe, "--model", "fsc-clip-tiny", "--store-url", url)
    (folder,) = answer(*sugarcrepe, "--model", checkpoint)
    assert stored["scores"] == folder["scores"]
    unknown = run(*sugarcrepe, "--model", "nothing", "--store-url", url)
    assert unknown.exit_code == 2
    assert "--model: there is no model 'nothing' in " in unknown.stderr


@pytest.mark.slow
def test_models_of_texts_judge_without_images(sugarcrepe: list[str | Path], tmp_path: Path) -> None:
    write_tiny_vera(tmp_path / "vera")
    write_tiny_grammar(tmp_path / "grammar")
    command = [*sugarcrepe[:3], "--images", "nowhere"]
    saved = tmp_path / "results.json"
    for judge in ("vera", "grammar"):
        (found,) = answer(*command, "--judge", judge, "--model", f"{judge}={tmp_path / judge}", "--output", saved)
        # one of three choices is a tie
        assert max(found["scores"].values()) <= 100 * 2 / 3 + 1e-9
    assert list(json.loads(run("table", saved, "--format", "json").stdout)) == ["vera", "grammar"]


def test_an_endpoint_is_asked_with_its_key_and_its_answers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")
    write_image(tmp_path / "red.png", (250, 0, 0))
    line = {"id": "0", "images": ["red.png"], "captions": ["a red thing", "a blue thing"]}
    data = write_lines(tmp_path / "colours.jsonl", line)
    with ChatServer(key="s3cret").served() as server:
        command: list[str | Path] = [
            "records",
            "--data",
            data,
            "--images",
            tmp_path,
            "--judge",
            "chat",
            "--model",
            "sees-all",
        ]
        command += ["--base-url", server.url, "--log", tmp_path / "answers.jsonl"]
        (found,) = answer(*command, "--key-variable", "SOME_KEY")
        assert (found["judge"], found["scores"]) == ("sees-all", {"colours": 100.0})
        failed = run(*command[:-2])
        assert failed.exit_code == 1
        assert failed.stderr.startswith("fovea evaluate compositionality: ")
        assert "401" in failed.stderr
    # nobody listens any more, and nothing needs to be asked
    assert answer(*command)[0]["scores"] == {"colours": 100.0}


def test_aros_four_tasks_are_averaged_under_either_name_of_the_second(checkpoint: Path, tmp_path: Path) -> None:
    write_image(tmp_path / "a.jpg")
    averages = []
    for second in ("VG_Attribution", "VG_Attribute"):
        tasks = ("VG_Relation", second, "Flickr30k_Order", "COCO_Order")
        lines = [
            {"id": task, "images": ["a.jpg"], "captions": [f"{task} x", f"{task} y"], "task": task} for task in tasks
        ]
        data = write_lines(tmp_path / f"{second}.jsonl", *lines)
        model: list[str | Path] = ["--images", tmp_path, "--model", checkpoint]
        (found,) = answer("records", "--data", data, "--benchmark", "aro", *model)
        assert list(found["scores"]) == ["VG_Relation", "VG_Attribution", "Flickr30k_Order", "COCO_Order"]
        averages.append(found["aggregates"].keys())
    assert averages == [{"average"}] * 2


def test_aros_own_files_and_crepes_are_judged_without_images_by_a_name_of_the_store(tmp_path: Path) -> None:
    write_aro(tmp_path)
    write_crepe(tmp_path)
    store = f"file://{tmp_path / 'store'}"
    blind = ("--judge", "grammar", "--model", "blind-grammar", "--store-url", store)
    (aro,) = answer("aro", "--data", tmp_path, *blind)
    assert aro["sizes"] == {"VG_Relation": 2, "VG_Attribution": 25} and aro["settings"]["reads"] == "captions"
    (crepe,) = answer("crepe", "--data", tmp_path / "crepe", *blind)
    assert crepe["sizes"] == {"atom": 9, "swap": 9, "negate": 9}
    told = run("vl-checklist", "--data", tmp_path, "--images", tmp_path, *blind)
    assert told.exit_code == 2 and "--images: vl-checklist has no such option" in told.stderr


def test_figure_4_2_needs_judges_with_and_without_images(tmp_path: Path) -> None:
    saved = tmp_path / "results.json"
    blind = {"judge": "Vera", "benchmark": "crepe", "scores": {"atom": 43.7}, "sizes": {"atom": 1}}
    saved.write_text(json.dumps([{**blind, "settings": {"reads": "captions"}}]))
    told = run("table", saved, "--figure", tmp_path / "figure.svg")
    assert told.exit_code == 2 and "no column of Table C.2 has a judge with images and one without" in told.stderr
    saved.write_text(json.dumps([{**blind, "settings": {"reads": "captions"}}, {**blind, "judge": "CLIP"}]))
    assert "Table C.2" in run("table", saved, "--figure", tmp_path / "figure.svg").stdout
    assert "best without images" in (tmp_path / "figure.svg").read_text()


def test_sugarcrepe_pp_has_two_true_captions_of_each_image(checkpoint: Path, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    row = {
        "id": 3,
        "filename": "a.png",
        "caption": "a red hat",
        "caption2": "a hat, red",
        "negative_caption": "a blue hat",
    }
    (tmp_path / "swap_att.json").write_text(json.dumps([row, {**row, "id": 4, "negative_caption": row["caption"]}]))
    command: list[str | Path] = ["sugarcrepe-pp", "--data", tmp_path, "--images", tmp_path]
    (found,) = answer(*command, "--model", checkpoint)
    assert (found["benchmark"], found["sizes"]) == ("sugarcrepe_pp", {"swap_att": 2})
    # the second row's captions tie
    assert found["scores"]["swap_att"] in (0, 50)
    refused = run(*command, "--judge", "chat", "--model", "m")
    assert refused.exit_code == 1 and "chooses one caption, but swap_att has 2 true ones" in refused.stderr
    (tmp_path / "swap_att.json").write_text(json.dumps([{**row, "caption2": None}]))
    assert "swap_att.json holds no captions of SugarCrepe++" in run(*command, "--model", checkpoint).stderr


@pytest.mark.slow
def test_each_benchmark_is_a_command(checkpoint: Path, tmp_path: Path) -> None:
    for number in range(10):
        write_image(tmp_path / "open-images-1" / f"img{number}.jpg", (20 * number, 0, 90))
    for name in ("ex_0_img_0.png", "ex_0_img_1.png", "visual7w/v7w_1.jpg"):
        write_image(tmp_path / name)
    model: list[str | Path] = ["--images", tmp_path, "--model", checkpoint]
    write_valse(
        tmp_path / "valse",
        {"dataset": "visual7w", "image_file": "v7w_1.jpg", "caption": "x", "foil": "y", "mturk": {"caption": 3}},
    )
    (found,) = answer("valse", "--data", tmp_path / "valse", *model)
    assert set(found["sizes"].values()) == {1}

    captions = tmp_path / "valid_neg_clip.tsv"
    captions.write_text("\ttitle\tfilepath\tneg_caption\n0\tx\tex_0_img_0.png\t['y', 'z']\n")
    (found,) = answer("aro", "--data", captions, *model)
    assert (found["benchmark"], found["sizes"]) == ("negclip", {"negclip": 1})

    example = {"id": 0, "image_0": "ex_0_img_0", "image_1": "ex_0_img_1", "caption_0": "x", "caption_1": "y"}
    write_lines(tmp_path / "examples.jsonl", example)
    (found,) = answer("winoground", "--data", tmp_path, *model)
    # both images are the same, so no caption prefers one
    assert found["scores"].keys() == {"winoground", "winoground::text", "winoground::image"}
    assert found["scores"]["winoground::image"] == 0

    sets = tmp_path / "valid_data.json"
    sets.write_text(json.dumps({"open-images-1": {"4": "x"}}))
    (found,) = answer("imagecode", "--data", sets, *model)
    assert found["sizes"] == {"static": 1}

    lines = write_lines(tmp_path / "a.jsonl", {"id": "0", "images": ["ex_0_img_0.png"], "captions": ["x", "y"]})
    (found,) = answer("records", "--data", lines, "--benchmark", "crepe", *model)
    assert (found["benchmark"], found["sizes"]) == ("crepe", {"a": 1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sugarcrepe", "--data", "nowhere"], "replace_obj.json is missing"),
        (["sugarcrepe-pp", "--data", "nowhere"], "replace_obj.json is missing. It belongs to SugarCrepe++"),
        (["valse", "--data", "nowhere"], "existence.json is missing"),
        (["aro", "--data", "nowhere.tsv"], "nowhere.tsv is missing"),
        (["winoground", "--data", "nowhere"], "examples.jsonl is missing"),
        (["imagecode", "--data", "nowhere.json"], "nowhere.json is missing"),
        (["records", "--data", "nowhere.jsonl"], "nowhere.jsonl is missing"),
        (["table", "nowhere.json"], "nowhere.json"),
    ],
)
def test_missing_data_is_told_without_a_traceback(arguments: list[str], message: str) -> None:
    told = run(*arguments)
    assert told.exit_code == 2
    assert message in told.stderr
    assert "Traceback" not in told.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "ViT-Z:openai"], "ViT-Z:openai can't be loaded: open_clip has no model 'ViT-Z'"),
        (["--model", "tests"], "tests can't be loaded: 'tests' is neither a directory with open_clip_config.json"),
        (["--model", "=x"], "'=x' is not NAME=REFERENCE"),
        (["--model", "x:y", "--model", "x:y"], "several judges have the same name: x:y, x:y"),
        (["--judge", "vera"], "--judge vera needs at least one"),
        (["--judge", "vera", "--model", "nowhere"], "there is no model 'nowhere' in "),
        (["--judge", "answers", "--model", "nowhere.json"], "nowhere.json is missing"),
        (["--judge", "chat", "--model", "x", "--key-variable", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["--judge", "chat", "--model", "x", "--base-url", "http://127.0.0.1:1/v1"], "no response from"),
        (["--output", "pyproject.toml"], "pyproject.toml:1: not JSON"),
        (["--judge", "human"], "human"),
    ],
)
def test_a_judge_that_there_is_not_is_told_without_a_traceback(
    sugarcrepe: list[str | Path], options: list[str], message: str
) -> None:
    told = run(*sugarcrepe, *options)
    assert told.exit_code in (1, 2)
    assert message in told.stderr
    assert "Traceback" not in told.output


@pytest.mark.slow
def test_what_a_judge_reached_is_kept_although_the_next_one_fails(
    checkpoint: Path, sugarcrepe: list[str | Path], tmp_path: Path
) -> None:
    saved = tmp_path / "results.json"
    told = run(*sugarcrepe, "--model", f"tiny={checkpoint}", "--model", "tests", "--output", saved)
    assert told.exit_code == 1
    assert [one["judge"] for one in json.loads(saved.read_text())] == ["tiny"]


def test_scores_are_not_lost_to_what_they_can_not_be_kept_in(
    checkpoint: Path, sugarcrepe: list[str | Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "file" / "x", "is a file")):
        refused = run(*sugarcrepe, "--model", checkpoint, "--output", path)
        assert refused.exit_code == 2
        assert message in refused.stderr
        assert not refused.stdout


@pytest.mark.slow
def test_what_one_judge_reached_is_told_where_another_can_not_be_loaded(
    checkpoint: Path, sugarcrepe: list[str | Path], tmp_path: Path
) -> None:
    damaged = write_tiny_checkpoint(tmp_path / "damaged", seed=1)
    for file in damaged.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:1000])
    result = run(*sugarcrepe, "--model", f"one={checkpoint}", "--model", f"two={damaged}")
    assert result.exit_code == 1
    assert [one["judge"] for one in json.loads(result.stdout.splitlines()[-1])] == ["one"]
    assert f"{damaged} can't be loaded: " in result.stderr
    assert "Traceback" not in result.stderr
