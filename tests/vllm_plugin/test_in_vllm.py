"""The plug-in's classes among vLLM's, and what is refused, without an engine."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.vllm_plugin.engine import ENVIRONMENT, vllm_python

pytestmark = [pytest.mark.process, pytest.mark.slow]

INSPECT = Path(__file__).with_name("inspect_plugin.py")


def inspected(**environment: str) -> dict[str, Any]:
    ran = subprocess.run(
        [vllm_python(), INSPECT], capture_output=True, text=True, env=os.environ | ENVIRONMENT | environment
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_all_backends_and_both_runners_interfaces_are_complete_and_refusals_have_their_sentences() -> None:
    found = inspected()
    assert found["classes"] == [
        *("FoveaCPUBackend", "FoveaCPUImpl", "FoveaCPUMetadataBuilder"),
        *("FoveaFlashBackend", "FoveaFlashImpl", "FoveaFlashMetadataBuilder"),
        *("FoveaTritonBackend", "FoveaTritonImpl", "FoveaTritonMetadataBuilder"),
    ]
    assert found["abstract"] == []
    assert found["after"] is None
    assert found["v2"] is None
    assert found["supported"] is None
    assert found["unmeasured"] is None
    assert found["replayed"] == [1, 1, None, 1]  # plain, calibrated, measured, and measured without tables
    for name, sentence in found["refused"].items():
        assert sentence is not None and "calibrat" in sentence, name


def test_requests_are_refused_where_vllm_runs_without_the_plug_in() -> None:
    found = inspected(VLLM_PLUGINS="another")
    assert found["after"] == found["before"]
    assert "VLLM_PLUGINS is set and does not name fovea" in found["after"]
