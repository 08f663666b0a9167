"""The page of the packaged checkpoints lists all of them, with commands that exist and figures that were recorded."""

import json
import re
import shlex
from functools import reduce
from typing import Any

import pytest
import typer

from services.cli.delegation import Delegate
from services.cli.main import app as fovea
from services.core.store.checkpoint_files import packaged_starters
from starters.__main__ import app as starters
from tests.imports import ROOT

README = (ROOT / "starters" / "README.md").read_text()
PROGRAMS = {"fovea": fovea, "python -m starters": starters}
ROWS = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| [^|]* \| ([^|]*) \|$", README, re.MULTILINE)
COMMANDS = re.findall(r"^ {4}(fovea|python -m starters) ((?:.*\\\n)*.*)", README, re.MULTILINE)


def test_every_packaged_checkpoint_has_a_row() -> None:
    listed = sorted(f"{service}/{name}" for name, service, _ in ROWS)
    assert listed == sorted(f"{path.parents[1].name}/{path.name}" for path in packaged_starters())


@pytest.mark.parametrize(("name", "service", "told"), ROWS, ids=[row[0] for row in ROWS])
def test_figures_are_those_of_the_checkpoint(name: str, service: str, told: str) -> None:
    description = ROOT / "services" / service / "starter" / name / "checkpoint.json"
    metrics: dict[str, Any] = json.loads(description.read_text())["metrics"]
    figures = re.findall(r"`([\w.]+)` ([\d.]+)", told)
    assert figures
    for path, stated in figures:
        recorded: Any = reduce(lambda found, key: found[key], path.split("."), metrics)
        assert f"{recorded:.{len(stated.partition('.')[2])}f}" == stated, path


@pytest.mark.parametrize(("program", "line"), COMMANDS, ids=[" ".join(line.split()[:3]) for _, line in COMMANDS])
def test_a_command_has_the_options_that_it_is_given(program: str, line: str) -> None:
    words = shlex.split(line.replace("\\\n", " "))
    command: Any = typer.main.get_command(PROGRAMS[program])
    while words and words[0] in (commands := getattr(command, "commands", {})):
        command = commands[words.pop(0)]
        command = command.load() if isinstance(command, Delegate) else command
    assert not getattr(command, "commands", {}) or words == ["--help"]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}
