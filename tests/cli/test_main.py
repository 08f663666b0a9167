import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.programs import PACKAGES, BadPort, existing_names, plan_programs

pytestmark = pytest.mark.process


def test_the_command_line_starts_without_importing_a_framework() -> None:
    heavy = {"torch", "fastapi", "uvicorn", "pydantic", "transformers", "aiohttp"}
    script = f"import sys, services.cli.main; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


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


def test_port_zero_becomes_a_free_port() -> None:
    assert plan_programs(["gateway"], {"FOVEA_GATEWAY_PORT": "0"})[0].port != 0


@pytest.mark.parametrize("port", ["eighty", "-1", "65536"])
def test_what_is_no_port_is_refused_with_its_variable(port: str) -> None:
    with pytest.raises(BadPort, match="FOVEA_EMBED_PORT"):
        plan_programs(["embed"], {"FOVEA_EMBED_PORT": port})
