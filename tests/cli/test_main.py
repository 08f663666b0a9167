import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from services.cli.main import EXAMPLES, app
from services.cli.programs import PACKAGES, BadPort, existing_names, plan_programs
from tests.core.child_processes import running

pytestmark = pytest.mark.process


def test_the_command_line_starts_without_importing_a_framework() -> None:
    heavy = {"torch", "fastapi", "uvicorn", "pydantic", "transformers", "aiohttp"}
    script = f"import sys, services.cli.main; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_the_first_screen_names_no_file_that_the_reader_would_need() -> None:
    assert "curl" in EXAMPLES
    assert " @" not in EXAMPLES


def test_the_first_pages_say_how_to_get_the_command_on_the_path() -> None:
    for page in ("README.md", "docs/guide/operate.md"):
        text = (Path(__file__).parents[2] / page).read_text()
        assert "source .venv/bin/activate" in text


def test_what_follows_two_dashes_is_no_option_of_a_command_of_another_module(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["keys", "revoke", "--file", str(tmp_path / "keys.json"), "--", "-x"])
    assert (refused.exit_code, "has no key named '-x'" in refused.output) == (1, True)


def test_a_command_warns_of_a_variable_that_nobody_reads(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "FOVEA_STORE_UR": "s3://fovea", "FOVEA_EMBED_UNKNOWN_HERE": "1"}
    listed = CliRunner(env=environment).invoke(app, ["store", "ls"])
    assert listed.exit_code == 0
    assert listed.stderr == "fovea store: warning: FOVEA_STORE_UR is not a setting; did you mean FOVEA_STORE_URL?\n"


@pytest.mark.parametrize(
    "command",
    [
        ["up"],
        ["serve"],
        ["store", "publish"],
        ["keys", "create"],
        pytest.param(["train", "focallens"], marks=pytest.mark.slow),  # these import torch
        pytest.param(["evaluate", "focallens"], marks=pytest.mark.slow),
    ],
)
def test_every_command_explains_itself(command: list[str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "services.cli.main", *command, "--help"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert f"Usage: fovea {' '.join(command)}" in finished.stdout


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the commands of other modules too, each once."""
    for name, command in group.commands.items():
        inner = command.load() if hasattr(command, "load") else command
        if hasattr(inner, "commands"):
            yield from _commands(inner, (*path, name))
        else:
            yield (*path, name), inner


@pytest.mark.slow  # imports every job
def test_no_help_cuts_the_name_of_an_option_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cut = [
        f"{' '.join(path)} {option}"
        for path, command in _commands(get_command(app))
        for told in [command.get_help(command.make_context(path[-1], [], resilient_parsing=True)).split()]
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option not in told
    ]
    assert cut == []


def test_ctrl_c_while_a_command_still_imports_what_it_needs_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", stop)
    stopped = CliRunner().invoke(app, ["train", "distill"])
    assert (stopped.exit_code, stopped.stderr) == (130, "Stopped before the work began.\n")


def test_an_unknown_service_is_refused_with_those_that_exist() -> None:
    refused = CliRunner().invoke(app, ["serve", "paint"])
    assert refused.exit_code == 2
    assert "gateway" in refused.output


def test_the_gateway_exists_and_comes_first() -> None:
    assert existing_names()[0] == "gateway"


def test_every_process_has_a_port_of_its_own() -> None:
    programs = plan_programs(list(PACKAGES), {})
    assert programs[0].url == "http://127.0.0.1:8080"
    assert len({program.port for program in programs}) == len(PACKAGES)


def test_a_service_moved_to_another_port_is_found_there_by_the_gateway() -> None:
    gateway, embed = plan_programs(["gateway", "embed"], {"FOVEA_EMBED_PORT": "9103", "FOVEA_HOST": "0.0.0.0"})
    assert (embed.host, embed.port) == ("0.0.0.0", 9103)
    assert embed.environment["FOVEA_EMBED_PORT"] == "9103"
    assert gateway.environment["FOVEA_GATEWAY_EMBED_URLS"] == "http://127.0.0.1:9103"


def test_the_gateway_is_told_which_services_there_are_not() -> None:
    gateway, _ = plan_programs(["gateway", "embed"], {})
    assert gateway.environment["FOVEA_GATEWAY_SCORE_URLS"] == ""
    assert gateway.needs == ("embed",)


def test_the_environment_has_the_last_word_on_where_a_service_is() -> None:
    gateway, _ = plan_programs(["gateway", "embed"], {"FOVEA_GATEWAY_EMBED_URLS": "http://elsewhere:1"})
    assert "FOVEA_GATEWAY_EMBED_URLS" not in gateway.environment


def test_a_gateway_of_this_machine_finds_a_review_that_is_started_beside_it() -> None:
    review = "FOVEA_GATEWAY_REVIEW_URL"
    for given, url in (({}, "http://127.0.0.1:8090"), ({"FOVEA_CURATE_PORT": "9090"}, "http://127.0.0.1:9090")):
        gateway, _ = plan_programs(["gateway", "embed"], given)
        assert gateway.environment[review] == url
    for elsewhere in ({"FOVEA_GATEWAY_HOST": "0.0.0.0"}, {review: "http://review:8090"}):
        gateway, _ = plan_programs(["gateway", "embed"], elsewhere)
        assert review not in gateway.environment


def test_requests_wait_for_a_service_that_is_starting_unless_the_environment_says_otherwise() -> None:
    gateway, _ = plan_programs(["gateway", "embed"], {})
    assert float(gateway.environment["FOVEA_GATEWAY_WAIT_FOR_SERVICE_S"]) > 0
    gateway, _ = plan_programs(["gateway", "embed"], {"FOVEA_GATEWAY_WAIT_FOR_SERVICE_S": "0"})
    assert "FOVEA_GATEWAY_WAIT_FOR_SERVICE_S" not in gateway.environment


@pytest.mark.parametrize(
    ("given", "is_terminal", "told"),
    [("", True, "console"), ("", False, None), ("auto", True, "console"), ("json", True, None)],
)
def test_fovea_up_logs_for_people_at_a_terminal_only(
    given: str, is_terminal: bool, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    gateway, *_ = plan_programs(["gateway"], {"FOVEA_LOG_FORMAT": given} if given else {})
    assert gateway.environment.get("FOVEA_LOG_FORMAT") == told


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_process_logs_short_lines_at_a_terminal_and_json_elsewhere(is_terminal: bool) -> None:
    reading, writing = os.openpty() if is_terminal else os.pipe()
    environment = {**os.environ, "FOVEA_GATEWAY_PORT": "0"}
    command = [sys.executable, "-m", "services.cli.main", "serve", "gateway"]
    with running(command, stdout=writing, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(writing)
        line = os.read(reading, 4096).decode().splitlines()[0]
        process.terminate()
    os.close(reading)
    assert line.startswith("{") is not is_terminal
    assert "listening" in line


def test_port_zero_becomes_a_free_port() -> None:
    assert plan_programs(["gateway"], {"FOVEA_GATEWAY_PORT": "0"})[0].port != 0


def test_two_processes_with_one_port_are_refused_with_both_variables() -> None:
    with pytest.raises(BadPort, match=r"FOVEA_GATEWAY_PORT and FOVEA_EMBED_PORT are both 9103\."):
        plan_programs(["gateway", "embed"], {"FOVEA_EMBED_PORT": "9103", "FOVEA_GATEWAY_PORT": "9103"})


@pytest.mark.parametrize("port", ["eighty", "-1", "65536"])
def test_what_is_no_port_is_refused_with_its_variable(port: str) -> None:
    with pytest.raises(BadPort, match="FOVEA_EMBED_PORT"):
        plan_programs(["embed"], {"FOVEA_EMBED_PORT": port})


def completed(words: str) -> set[str]:
    """Return what a shell offers for the last of these words."""
    environment = {"_FOVEA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    finished = subprocess.run(
        [sys.executable, "-m", "services.cli.main"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return set(finished.stdout.split())


def test_a_shell_completes_commands_and_their_options() -> None:
    assert {"up", "serve", "train", "store", "keys", "calibrate"} <= completed("fovea ")
    assert {"fsc-clip", "focallens"} <= completed("fovea train ")
    assert {"publish", "ls", "gc"} <= completed("fovea store ")
    assert {"--keep", "--delete"} <= completed("fovea store gc --")
    assert "--rate-limit" in completed("fovea keys create --r")


def test_completion_belongs_to_the_whole_command() -> None:
    runner = CliRunner(env={"COLUMNS": "200"})
    assert "--install-completion" in runner.invoke(app, ["--help"]).output
    for command in ("store", "keys"):
        assert "--install-completion" not in runner.invoke(app, [command, "--help"]).output


def test_the_version_is_the_installed_one() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == version("fovea-serving")
