"""The import graph of the source tree, as `ast` reads it."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


def sources(root: Path = ROOT) -> list[Path]:
    """All modules that the wheel holds."""
    return sorted(path for folder in ("fovea", "services", "gateway") for path in (root / folder).rglob("*.py"))


def starter_sources(root: Path = ROOT) -> list[Path]:
    """All modules that make or judge the packaged checkpoints, which no wheel holds."""
    return sorted((root / "starters").rglob("*.py"))


def plug_in_sources(root: Path = ROOT) -> list[Path]:
    """All modules of the plug-in for vLLM, which has a wheel of its own."""
    return sorted((root / "vllm_plugin" / "fovea_vllm").rglob("*.py"))


def module_name(path: Path, root: Path = ROOT) -> str:
    return path.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a module's syntax tree."""
    return tuple(ast.walk(ast.parse(text)))


def imported(text: str, known: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Line and module of each import; `from a import b` is of `a.b` where that is a module of `known`."""
    for node in nodes(text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for full in dict.fromkeys(f"{node.module}.{alias.name}" for alias in node.names):
                yield node.lineno, full if full in known else node.module


def import_graph(root: Path = ROOT, *, with_starters: bool = False) -> dict[str, set[str]]:
    """The modules of ours that each of our modules imports."""
    paths = [*sources(root), *(starter_sources(root) if with_starters else ())]
    files = {module_name(path, root): path for path in paths}
    known = frozenset(files)
    return {
        name: {module for _, module in imported(path.read_text(), known) if module in known and module != name}
        for name, path in files.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which imports all others in the end."""
    reach = {name: reached(graph, name) for name in graph}
    groups = {frozenset({name, *(other for other in reach[name] if name in reach[other])}) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """The longest path of imports in a graph without circles."""

    @cache
    def chain(name: str) -> list[str]:
        return [name, *_longest(chain(other) for other in sorted(graph[name]))]

    return _longest(chain(name) for name in sorted(graph))


def _longest(chains: Iterable[list[str]]) -> list[str]:
    return max(chains, key=lambda chain: len(chain), default=[])


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All modules that one imports in the end."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found
