"""The guide's first example prints what it says, and its tables name each option of a command with its default."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from services.core.openai_client import MAX_MALFORMED
from services.curate.authoring import command as generating
from services.curate.authoring.job import GenerateOptions
from services.curate.evaluation import audit as auditing
from services.curate.refinement import command as refining
from services.curate.refinement.report import SCARCE
from services.curate.review.command import DEFAULT_PORT
from services.score.negatives.annotation import TextBlobAnnotator, best_annotator
from starters.curate import train as training

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "curate.md").read_text()


def test_the_first_example_makes_the_pairs_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(best_annotator(), TextBlobAnnotator):
        pytest.skip("the guide shows what is made with TextBlob's tags")
    monkeypatch.chdir(tmp_path)
    example = GUIDE.split("## A first example\n")[1].split("\n## ")[0]
    captions, pairs = re.findall(r"^```json\n(.*?)^```", example, re.MULTILINE | re.DOTALL)
    (tmp_path / "captions.jsonl").write_text(captions)
    (arguments,) = re.findall(r"^ {4}fovea curate generate (.*)$", example, re.MULTILINE)
    done = CliRunner().invoke(generating.app, shlex.split(arguments))
    assert done.exit_code == 0, done.output
    printed = re.findall(r"^ {4}(?!fovea)(.*)$", example, re.MULTILINE)
    # a line of progress may come before, if none was printed for a while
    assert done.stderr.splitlines()[-len(printed) :] == printed
    assert (tmp_path / "first" / "pairs.jsonl").read_text().startswith(pairs)


def defaults(heading: str) -> dict[str, str]:
    """The defaults in the tables of options below a heading, by option."""
    section = GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| (`--[^|]*) \| *([^|]*?) *\|", section, re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"--[a-z-]+", names)}


@pytest.mark.parametrize(("module", "heading"), [(generating, "Generate"), (refining, "Refine")])
def test_options_have_the_default_that_the_guide_tells(module: Any, heading: str) -> None:
    command = typer.main.get_command(module.app)
    command = next(iter(getattr(command, "commands", {"": command}).values()))
    told = defaults(heading)
    for option in command.params:
        name = max(option.opts, key=len)
        # told in sentences
        if name.startswith("--") and name not in ("--store-url", "--seed"):
            is_shown = isinstance(option.default, str | int | float | Path) and not isinstance(option.default, bool)
            assert told[name] == (f"`{option.default}`" if is_shown else told[name]), name


def test_settings_have_the_default_that_the_guide_tells() -> None:
    section = GUIDE.split("\n| `--set` | default | |\n")[1].split("\n\n")[0]
    found = re.findall(r"^\| `([a-z_]+)` \| `([^`]*)` \|", section, re.MULTILINE)
    assert len(found) == 6
    for name, told in found:
        assert str(GenerateOptions.model_fields[name].default) == told, name


def default(module: Any, parameter: str) -> Any:
    command = typer.main.get_command(module.app)
    command = next(iter(getattr(command, "commands", {"": command}).values()))
    return next(option.default for option in command.params if option.name == parameter)


def test_numbers_in_its_sentences_are_those_of_the_code() -> None:
    text = " ".join(GUIDE.split())
    steps, size, layers = (default(training, name) for name in ("steps", "batch_size", "layers"))
    assert f"The defaults are `--steps {steps}`, `--batch-size {size}` and `--layers {layers}`" in text
    assert f"(`--words`, {default(auditing, 'words')} of each task)" in text
    assert f"(`--items`, {default(auditing, 'items')} of each task and model)" in text
    assert f"The port is `--port` ({DEFAULT_PORT})" in text
    assert f"fewer than {SCARCE} are left" in text
    assert MAX_MALFORMED == 3 and "three if the answers are not in OpenAI's format" in text
