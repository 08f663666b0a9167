"""The guide's examples, as a reader runs them, and its tables."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fovea_vllm.estimates import FIELDS as FIELDS_OF_ESTIMATES
from fovea_vllm.request import FIELDS
from tests.vllm_plugin.engine import ROOT, served, vllm_python

GUIDE = (ROOT / "docs/guide/vllm.md").read_text()
STARTER = ROOT / "services/generate/starter/open-facts"


def test_the_guide_lists_all_fields() -> None:
    assert set(re.findall(r"^\| `(fovea_[a-z_]+)` \|", GUIDE, re.MULTILINE)) == {*FIELDS, *FIELDS_OF_ESTIMATES}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guides_examples_are_answered(tmp_path: Path) -> None:
    curl = next(block for block in re.findall(r"```sh\n(curl .*?)```", GUIDE, re.DOTALL) if "completions" in block)
    [expected] = re.findall(r'^answers `"(.*?)"`', GUIDE, re.MULTILINE)
    program = next(one for one in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "fovea_documents" in one)
    printing = [str(vllm_python()), "-c", f"{program}\nimport json\nprint(json.dumps(request))"]
    printed = subprocess.run(printing, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    with served(STARTER, tmp_path / "vllm.log") as server:
        command = curl.replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["choices"][0]["text"] == expected, done.stdout
        request = {"model": STARTER.name, "max_tokens": 4, **json.loads(printed.splitlines()[-1])}
        assert server.post("/v1/completions", request).status_code == 200
        assert server.post("/v1/completions", request | {"stream": True}).text.endswith("data: [DONE]\n\n")
