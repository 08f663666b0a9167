"""Every YAML file of the repository says each thing once.

A key that stands twice is refused by compose and by kubectl, while Python's parser takes the last one in silence.
"""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.compose import EXAMPLE
from tests.deploy.kubernetes_manifests import LOADER, ROOT

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.y*ml",
        "charts/fovea/*.y*ml",
        "charts/fovea/profiles/*.y*ml",
        "k8s/**/*.y*ml",
        "monitoring/**/*.y*ml",
        "services/**/*.y*ml",
    )
    for path in ROOT.glob(pattern)
)


def keys_there_twice(text: str) -> list[str]:
    """`key (line N)` of each key that an earlier one of the same mapping has as well."""
    return [found for document in yaml.compose_all(text, LOADER) for found in _twice(document)]


def _twice(node: yaml.Node | None) -> Iterator[str]:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _twice(item)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                yield f"{key.value} (line {key.start_mark.line + 1})"
            seen.add(key.value)
            yield from _twice(value)


@pytest.mark.parametrize("file", FILES)
def test_no_key_stands_twice_in_one_mapping(file: str) -> None:
    assert keys_there_twice((ROOT / file).read_text()) == []


def test_a_key_that_stands_twice_is_found_wherever_it_is() -> None:
    assert keys_there_twice("a: 1\nb:\n- {c: 1, d: 2, c: 3}\n---\na: 1\na: 2\n") == ["c (line 3)", "a (line 6)"]


def test_the_example_of_an_env_file_names_each_variable_once() -> None:
    named = Counter(re.findall(r"^#?(\w+)=", EXAMPLE, re.MULTILINE))
    assert [name for name, times in named.items() if times > 1] == []
