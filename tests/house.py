"""The shape of the source tree in one table: `python -m tests.house [FOLDER …]`, a column for each checkout.

Checkouts are measured with the packages of the environment that runs this, whichever of them it has installed.
"""

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.imports import ROOT, circles, import_graph, longest_chain, sources

NUM_SERVICES = 4

# What of our files runs between a request and its answer; `tests.generate.served_tiny` is the same in all checkouts.
TRACED_REQUEST = """
import sys, tempfile, threading
from pathlib import Path
from tests.generate.served_tiny import served_tiny

root, files, watched = str(Path.cwd()), set(), []

def trace(frame, event, argument):
    if watched and event == "call" and frame.f_code.co_filename.startswith((root + "/services", root + "/gateway")):
        files.add(frame.f_code.co_filename)

threading.setprofile(trace)
sys.setprofile(trace)
with tempfile.TemporaryDirectory() as folder, served_tiny(Path(folder)) as client:
    body = {"query": "Who has a cat?", "documents": ["Ann has a cat.", "Bob has a dog."], "max_tokens": 4}
    watched.append(True)
    response = client.post("/generate", json=body)
    watched.clear()
assert response.status_code == 200, response.text
own = [file for file in files if "/services/generate/" in file]
print(len(own), len(files))
"""

# Of a table of rooms, the last parts of its patterns that are the name of one file.
ROOMS_BY_NAME = """
import re
from tests.test_architecture import ROOMS
names = [name for room in ROOMS for name in re.sub(r"[{}]", "", room.files.rpartition("/")[2]).split(",")]
print(*(name.removesuffix(".py") for name in names if "*" not in name))
"""


def widest_folder(root: Path) -> str:
    counts = Counter(path.parent for path in sources(root) if path.stem != "__init__")
    folder, count = max(counts.items(), key=lambda item: item[1])
    return f"{count} ({folder.relative_to(root)})"


def longest(root: Path) -> str:
    graph = import_graph(root)
    if circles(graph):
        return "endless"
    return str(len(longest_chain(graph)))


def rooms_typed_by_hand(root: Path) -> str:
    """Count the files in the table of rooms that not every service has."""
    folders = Counter(path.stem for path in sources(root))
    return str(sum(0 < folders[name] < NUM_SERVICES for name in set(_run(root, ROOMS_BY_NAME).split())))


def hops(root: Path) -> str:
    own, everything = _run(root, TRACED_REQUEST).splitlines()[-1].split()
    return f"{own} of the service, {everything} in all"


def lines(paths: Sequence[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def statements(paths: Sequence[Path]) -> int:
    return sum(isinstance(node, ast.stmt) for path in paths for node in ast.walk(ast.parse(path.read_text())))


MEASURES: dict[str, Callable[[Path], str]] = {
    "widest folder, files": widest_folder,
    "longest import chain, modules": longest,
    "circles": lambda root: str(len(circles(import_graph(root)))),
    "rooms typed by hand": rooms_typed_by_hand,
    "lines of test_architecture.py": lambda root: str(lines([root / "tests" / "test_architecture.py"])),
    "source files": lambda root: str(len(sources(root))),
    "source lines": lambda root: str(lines(sources(root))),
    "source statements": lambda root: str(statements(sources(root))),
    "files that a /generate request passes": hops,
}


def _run(root: Path, program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main(folders: Sequence[str]) -> None:
    roots = [Path(folder).resolve() for folder in folders] or [ROOT]
    print("|", " | ".join(["measure", *(root.name for root in roots)]), "|")
    print("| --- |", " | ".join("---" for _ in roots), "|")
    for name, measure in MEASURES.items():
        print("|", " | ".join([name, *(measure(root) for root in roots)]), "|")


if __name__ == "__main__":
    main(sys.argv[1:])
