"""The packages that `make up` installs."""

import importlib.util
import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

README = Path(__file__).parents[1] / "README.md"


def required(name: str, extras: set[str], found: set[tuple[str, str]]) -> set[str]:
    """Name the distributions that one needs with its extras, itself included."""
    for extra in extras | {""}:
        if (name, extra) not in found:
            found.add((name, extra))
            for line in distribution(name).requires or ():
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    required(requirement.name, requirement.extras, found)
    return {name for name, _ in found}


def size_of(name: str) -> int:
    """Sum the bytes of a distribution's files and of the bytecode that is made of them."""
    files = {Path(str(file.locate())) for file in distribution(name).files or ()}
    compiled = {Path(importlib.util.cache_from_source(str(file))) for file in files if file.suffix == ".py"}
    return sum(file.stat().st_size for file in files | compiled if file.is_file())


def test_what_serves_takes_the_disk_that_the_readme_says_and_no_more() -> None:
    (stated,) = re.findall(r"([\d.]+) GB without CUDA", README.read_text())
    names = required("fovea-serving", {"cpu"}, set())
    if any(name.startswith("nvidia") for name in names):
        pytest.skip("this torch brings CUDA")
    assert sum(map(size_of, names)) <= float(stated) * 1e9 < 1.6e9
    assert not names & {"pytest", "mypy", "ray", "matplotlib", "triton", "psycopg"}
