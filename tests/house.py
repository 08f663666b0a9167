"""Print the size of the source in one table, a column for each checkout: `python -m tests.house [FOLDER …]`."""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tests.imports import ROOT, circles, import_graph, longest_chain, module_name, reached, sources

SERVED = ("services.embed", "services.generate", "services.predict", "services.score", "gateway")
MAX_FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def served_lines(root: Path) -> int:
    """Count the lines that the four services and the gateway import in the end."""
    graph = import_graph(root)
    entries = {f"{name}.__main__" for name in SERVED}
    found = entries.union(*(reached(graph, entry) for entry in entries))
    return lines(path for path in sources(root) if module_name(path, root) in found)


def functions(root: Path) -> Iterator[Function]:
    for path in sources(root):
        yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function))


def long_functions(root: Path) -> int:
    """Count the functions that are long, their signatures included."""
    return sum((node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES for node in functions(root))


def widest_command(root: Path) -> str:
    """Count the parameters of the `@app.command()` that has the most, and name it."""
    commands = {
        node.name: len(node.args.args) + len(node.args.kwonlyargs)
        for node in functions(root)
        if any(".command(" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
    name = max(commands, key=commands.__getitem__)
    return f"{commands[name]} ({name})"


def longest(root: Path) -> str:
    graph = import_graph(root)
    return "endless" if circles(graph) else str(len(longest_chain(graph)))


MEASURES: dict[str, Callable[[Path], object]] = {
    "lines under services/, gateway/ and fovea/": lambda root: lines(sources(root)),
    "of them reachable from the four services and the gateway": served_lines,
    "lines of services/predict": lambda root: lines((root / "services" / "predict").rglob("*.py")),
    "longest chain of imports, modules": longest,
    f"functions over {MAX_FUNCTION_LINES} lines": long_functions,
    "parameters of the widest command": widest_command,
}


def main(folders: Sequence[str]) -> None:
    roots = [Path(folder).resolve() for folder in folders] or [ROOT]
    print("|", " | ".join(["measure", *(root.name for root in roots)]), "|")
    print("| --- |", " | ".join("---:" for _ in roots), "|")
    for name, measure in MEASURES.items():
        print("|", " | ".join([name, *(str(measure(root)) for root in roots)]), "|")


if __name__ == "__main__":
    main(sys.argv[1:])
