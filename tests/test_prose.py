"""The form of docstrings: each begins with a verb or a noun, so that its first words say what is described."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.imports import ROOT

FOLDERS = ("gateway", "services", "starters", "vllm_plugin")
OPENERS = re.compile(r"(What|Of|Those|Whoever|How|Where|Which|Who|When|Whatever|Whose|Why|All that)\b")
# Found as plain text first, as parsing every file takes seconds.
QUOTED_OPENERS = re.compile(rf'"""\s*{OPENERS.pattern}')
DESCRIBED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, DESCRIBED) and (text := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, text


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert files
    breaches = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in files
        if QUOTED_OPENERS.search(path.read_text())
        for line, text in docstrings(path)
        if OPENERS.match(text)
    ]
    assert not breaches, "these docstrings begin with a relative or question word:\n" + "\n".join(breaches)
