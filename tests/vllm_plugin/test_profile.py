"""A checkpoint's profile as the plug-in's fields."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from fovea_vllm.estimates import EstimateRequest
from fovea_vllm.profile import fields_of, notes_on
from services.generate.model.profile import BiasTable, CalibrationProfile, write_profile

TABLES = tuple(BiasTable(bucket=bucket, attention=(bucket / 1000, 0.2), num_prompts=1) for bucket in (16, 128))
PROFILE = CalibrationProfile(
    enabled=True, bias="tree", temperature=1e-3, layers=(1, 2), rel_layers=(0, 1), tables=TABLES
)


def test_the_fields_of_a_profile_are_those_that_a_server_takes() -> None:
    fields = fields_of(PROFILE.model_dump(mode="json"))
    asked = EstimateRequest.of({**fields, "fovea_documents": [1, 5, 5, 9]})
    assert asked is not None
    assert (asked.bias, asked.temperature, asked.rel_layers) == ("exact", 1e-3, (0, 1))
    assert asked.kept["fovea_layers"] == [1, 2]
    assert "exact replaces it" in "; ".join(notes_on(PROFILE.model_dump()))
    heads = PROFILE.model_copy(update={"rel_heads": ((0, 1), (1, 3))}).model_dump(mode="json")
    assert fields_of(heads)["fovea_rel_heads"] == [0, 1, 1, 3]


def test_a_table_is_that_of_documents_of_about_this_length() -> None:
    cached = PROFILE.model_copy(update={"bias": "cached"}).model_dump(mode="json")
    assert fields_of(cached, 2, 100)["fovea_bias_table"] == [0.128, 0.2]
    assert fields_of(cached, 2, 20)["fovea_bias_table"] == [0.016, 0.2]
    with pytest.raises(ValueError, match="tables for 2 documents: not 3"):
        fields_of(cached, 3)
    with pytest.raises(ValueError, match="say for how many"):
        fields_of(cached)


@pytest.mark.parametrize(("content", "told"), [(None, "No such file"), ("{}", "no profile"), ("[", "Expecting value")])
def test_a_file_that_holds_no_profile_is_refused_with_a_sentence(
    content: str | None, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    command = [sys.executable, "-m", "fovea_vllm.profile", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="vllm_plugin")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{path}: ")
    assert told in done.stderr and "Traceback" not in done.stderr


def test_the_command_prints_fields_and_what_a_request_adds(tmp_path: Path) -> None:
    path = write_profile(PROFILE, tmp_path)
    command = [sys.executable, "-m", "fovea_vllm.profile", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="vllm_plugin")
    assert orjson.loads(done.stdout)["fovea_bias"] == "exact"
    assert "fovea_contents" in done.stderr
