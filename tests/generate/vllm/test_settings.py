"""Settings of the service over vLLM."""

import pytest
from pydantic import ValidationError

from services.generate.calibrate.bench import estimates_to_try
from services.generate.settings import GenerateSettings


def test_a_server_of_vllm_serves_one_model() -> None:
    assert GenerateSettings(models=("one", "two")).engine == "own"
    assert GenerateSettings(models=("one",), engine="vllm").vllm_url == "http://127.0.0.1:8000"
    with pytest.raises(ValidationError, match="a server of vLLM serves one"):
        GenerateSettings(models=("one", "two"), engine="vllm")
    assert GenerateSettings(engine="vllm", vllm_url="HTTP://vllm:8000").vllm_url == "HTTP://vllm:8000"
    with pytest.raises(ValidationError, match="vllm_url"):
        GenerateSettings(engine="vllm", vllm_url="127.0.0.1:8000")


def test_calibrating_over_vllm_uses_exact_for_tree() -> None:
    assert estimates_to_try(("tree", "exact", "single"), is_over_vllm=True) == ("exact", ("exact", "single"))
    assert estimates_to_try(("tree",), is_over_vllm=True) == ("exact", ("exact",))
    assert estimates_to_try(("tree", "single"), is_over_vllm=False) == ("tree", ("tree", "single"))
    assert estimates_to_try(("query",), is_over_vllm=False) == ("query", ("query",))
    assert estimates_to_try(("cached",), is_over_vllm=False) == ("tree", ("cached",))
