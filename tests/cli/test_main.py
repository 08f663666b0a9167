import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import EXAMPLES, app
from services.cli.programs import PACKAGES, BadPort, existing_names, plan_programs

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


def test_the_version_is_the_installed_one() -> None:
    assert CliRunner().invoke(app, ["version"]).output.strip() == version("fovea")


@pytest.mark.parametrize(
    "command",
    [
        ["up"],
        ["serve"],
        ["store", "publish"],
        ["keys", "create"],
        pytest.param(["train", "clip"], marks=pytest.mark.slow),  # these import torch
        pytest.param(["evaluate", "focallens"], marks=pytest.mark.slow),
    ],
)
def test_every_command_explains_itself(command: list[str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "services.cli.main", *command, "--help"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert f"Usage: fovea {' '.join(command)}" in finished.stdout


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


def test_requests_wait_for_a_service_that_is_starting_unless_the_environment_says_otherwise() -> None:
    gateway, _ = plan_programs(["gateway", "embed"], {})
    assert float(gateway.environment["FOVEA_GATEWAY_WAIT_FOR_SERVICE_S"]) > 0
    gateway, _ = plan_programs(["gateway", "embed"], {"FOVEA_GATEWAY_WAIT_FOR_SERVICE_S": "0"})
    assert "FOVEA_GATEWAY_WAIT_FOR_SERVICE_S" not in gateway.environment


def test_port_zero_becomes_a_free_port() -> None:
    assert plan_programs(["gateway"], {"FOVEA_GATEWAY_PORT": "0"})[0].port != 0


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
    assert {"litm", "clip", "fsc-clip"} <= completed("fovea train ")
    assert {"publish", "ls", "gc"} <= completed("fovea store ")
    assert {"--keep", "--delete"} <= completed("fovea store gc --")
    assert "--rate-limit" in completed("fovea keys create --r")


def test_completion_belongs_to_the_whole_command() -> None:
    runner = CliRunner(env={"COLUMNS": "200"})
    assert "--install-completion" in runner.invoke(app, ["--help"]).output
    for command in ("store", "keys"):
        assert "--install-completion" not in runner.invoke(app, [command, "--help"]).output


def test_version_is_an_option_too() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == version("fovea")
