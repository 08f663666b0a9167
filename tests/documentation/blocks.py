"""Generated blocks of Markdown pages: what stands between two markers is what its writer returns."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

Writer = Callable[[], str]

_BLOCK = re.compile(r"^<!-- generated: (.+?) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def names(page: str) -> list[str]:
    """The names of a page's blocks, in their order."""
    return [found.group(1) for found in _BLOCK.finditer(page)]


def render(page: str, writers: Mapping[str, Writer]) -> str:
    """The page with every block written anew. Raises KeyError for a block that has no writer."""

    def write(found: re.Match[str]) -> str:
        name = found.group(1)
        return f"<!-- generated: {name} -->\n\n{writers[name]().strip()}\n\n<!-- end -->"

    return _BLOCK.sub(write, page)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
