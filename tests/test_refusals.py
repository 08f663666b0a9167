"""Users' errors are reported by the command line in one line that names them, before any work, without a traceback."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.main import app
from tests.commands import trainer
from tests.embed.conversations import write_conversations
from tests.generate.tiny_models import save_tiny
from tests.score.tiny import tiny_clip

FOCALLENS = ["focallens", "--llava", "llava.json"]
FSC_CLIP = ["fsc-clip", "--images", "captions.tsv"]
TRAININGS = (["litm"], ["clip"], FOCALLENS, ["clip-scenes"], FSC_CLIP)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the captions and the conversations that trainings name, into the current folder."""
    (tmp_path / "captions.tsv").write_text("0.png\ta red circle\n")
    write_conversations(tmp_path)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str | Path) -> Result:
    words = [str(argument) for argument in arguments]
    program = trainer(words[1])[0] if words[0] == "train" else app
    # a wide terminal breaks no message into lines
    return CliRunner(env={"COLUMNS": "300"}).invoke(program, words)


def refusal(*arguments: str | Path) -> str:
    """Return the message of a command that refuses."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2), result.output
    return result.stderr


@pytest.mark.parametrize("training", TRAININGS, ids=lambda words: words[0])
def test_a_training_refuses_an_output_that_is_a_file_or_lies_in_one(training: Sequence[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for output in (file, file / "folder"):
        assert f"'--output': {file} is a file" in refusal("train", *training, "--output", output)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("training", TRAININGS, ids=lambda words: words[0])
def test_a_training_asks_for_the_store_that_it_publishes_to_before_it_begins(
    training: Sequence[str], tmp_path: Path
) -> None:
    told = refusal("train", *training, "--output", tmp_path / "run", "--store-url", "bogus://x")
    program = trainer(training[0])[0].info.name
    assert told.startswith(f"{program} train {training[0]}: store URL 'bogus://x' must begin with file://")
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["litm", "--documents", "0"], "'--documents': Input should be greater than or equal to 1"),
        (["litm", "--documents", "10000"], "'--documents': Input should be less than or equal to 27"),
        (["litm", "--checkpoint-every", "0"], "'--checkpoint-every': Input should be greater than or equal to 1"),
        (["litm", "--bias", "nan"], "'--bias': Input should be greater than or equal to 0"),
        (["litm", "--bias", "inf"], "'--bias': inf is not a finite number"),
        (["litm", "--questions", "0"], "'--questions': Input should be greater than or equal to 1"),
        (["litm", "--lookup-steps", "-1"], "'--lookup-steps': Input should be greater than or equal to 0"),
        (["litm", "--seed", "-1"], "'--seed': Input should be greater than or equal to 0"),
        (["clip", "--learning-rate", "inf"], "'--learning-rate': inf is not a finite number above 0"),
        (["clip", "--width", "100"], "'--width': 100 is not a positive multiple of 32"),
        (["clip", "--precision", "int8"], "'--precision': Value error, 'int8' is not one of 'no', 'bf16', 'fp16'"),
        ([*FOCALLENS, "--checkpoint-every", "0"], "'--checkpoint-every': Input should be greater than or equal to 1"),
        ([*FOCALLENS, "--accumulate", "0"], "'--accumulate': Input should be greater than or equal to 1"),
        ([*FOCALLENS, "--set", "learning_rate=nan"], "learning_rate: Input should be less than or equal to 1"),
        (["fsc-clip", "--images", "x", "--set", "alpha=nan"], "alpha: Input should be less than or equal to 1"),
        (
            ["fsc-clip", "--images", "x", "--set", "local_weight=2"],
            "local_weight: Input should be less than or equal to 1",
        ),
        (
            ["fsc-clip", "--images", "x", "--num-workers", "-1"],
            "'--num-workers': Input should be greater than or equal to 0",
        ),
    ],
)
def test_a_number_that_makes_no_training_is_refused_with_its_option(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    assert message in refusal("train", *arguments, "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [*FOCALLENS, "--base", "nope"],
        [*FSC_CLIP, "--base", "nope"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_model_that_the_store_has_not_is_told_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    told = refusal("train", *arguments, "--output", tmp_path / "run", "--store-url", store)
    assert told.startswith(f"fovea train {arguments[0]}: there is no model 'nope' in file://")
    assert len(told.splitlines()) == 1


def test_a_calibration_that_would_be_kept_nowhere_is_refused_before_it_begins() -> None:
    told = refusal("calibrate", "litm-facts", "--data", "questions.csv")
    assert "--publish NAME, --output FOLDER or --save FILE" in told


def test_the_guides_keep_every_calibration_that_they_make() -> None:
    pages = (Path(__file__).parents[1] / "docs" / "guide").glob("*.md")
    lines = [line for page in pages for line in page.read_text().splitlines()]
    commands = [line for line in lines if line.strip().startswith("fovea calibrate ")]
    assert len(commands) > 1
    assert all("--publish" in command or "--output" in command for command in commands)


@pytest.mark.slow
def test_a_folder_that_was_begun_with_other_options_is_refused_in_one_line(tmp_path: Path) -> None:
    tiny = ["--lookup-steps", "1", "--doubt-steps", "0", "--bias-steps", "0", "--documents", "2", "--tokens", "1"]
    job: list[str | Path] = ["train", "litm", *tiny, "--questions", "1", "--no-publish", "--output", tmp_path / "run"]
    assert run(*job).exit_code == 0
    told = refusal(*job, "--seed", "1")
    assert told.startswith(
        f"starters train litm: {tmp_path}/run/resume.pt belongs to a run with other arguments (--seed was 0, and is 1)"
    )
    assert len(told.splitlines()) == 1


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose weights were cut off, as Hugging Face names them and as open_clip does."""
    folder = tmp_path_factory.mktemp("damaged")
    save_tiny(folder, num_hidden_layers=1)
    (folder / "open_clip_config.json").write_text(json.dumps(tiny_clip().config))
    for name in ("model.safetensors", "open_clip_model.safetensors"):
        (folder / name).write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "CHECKPOINT", "--data", "QUESTIONS", "--save", "RUN"],
        ["evaluate", "litm", "CHECKPOINT", "--data", "QUESTIONS"],
        ["evaluate", "focallens", "colorshape", "--checkpoint", "CHECKPOINT", "--baseline", "CHECKPOINT"],
        ["train", *FOCALLENS, "--base", "CHECKPOINT", "--output", "RUN", "--no-publish"],
        ["train", *FSC_CLIP, "--base", "CHECKPOINT", "--output", "RUN", "--no-publish"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_damaged_weights_are_told_with_their_folder(command: list[str], damaged: Path, tmp_path: Path) -> None:
    questions = tmp_path / "questions.csv"
    questions.write_text("context,question,answer\nAda is here,Who?,Ada\n")
    places = {"CHECKPOINT": damaged, "RUN": tmp_path / "run", "QUESTIONS": questions}
    told = refusal(*(places.get(word, word) for word in command))
    assert f"{damaged}: the weights are damaged" in told
    assert "Traceback" not in told
