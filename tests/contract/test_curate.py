"""`fovea curate run` with this project's own generate service as the model, through the gateway."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.jobs.sugarcrepe import read_pairs
from services.score.negatives.prompting.checks import WRITTEN_KINDS
from tests.contract.generate_processes import running_system
from tests.curate.scene_captions import write_scene_captions
from tests.generate.served_tiny import MODEL

NUM_CAPTIONS = 4
RECIPE = """
name = "Scenes"
output = "out"
[captions]
file = "captions.jsonl"
[generate]
model = "{model}"
endpoint = "{url}/v1"
max_tokens = 12
concurrency = 4
max_unusable = 1.0
"""


@pytest.mark.slow
def test_what_a_model_of_random_weights_says_is_rejected_with_a_reason_and_asked_for_once(tmp_path: Path) -> None:
    write_scene_captions(tmp_path / "captions.jsonl", NUM_CAPTIONS)
    command = [sys.executable, "-m", "services.curate.pipeline.command", str(tmp_path / "recipe.toml")]
    with running_system(tmp_path) as system:
        (tmp_path / "recipe.toml").write_text(RECIPE.format(model=MODEL, url=system.gateway.url))
        ran = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2)]
    assert [one.returncode for one in ran] == [0, 0], ran[0].stderr
    generated = tmp_path / "out" / "generated"
    answers = (generated / "answers.jsonl").read_text().splitlines()
    assert len({json.loads(line)["id"] for line in answers}) == len(answers) <= NUM_CAPTIONS * len(WRITTEN_KINDS)
    rejected = (generated / "rejected.jsonl").read_text().splitlines()
    assert read_pairs(tmp_path / "out" / "published" / "pairs.jsonl") == []
    assert len(rejected) == NUM_CAPTIONS * len(WRITTEN_KINDS)
    accounts = json.loads((tmp_path / "out" / "accounts.json").read_text())
    assert sum(accounts["made"].values()) == len(rejected)
