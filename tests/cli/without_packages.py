"""`python -m tests.cli.without_packages NAMES ARGUMENTS…`: the `fovea` command where these packages are missing."""

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from services.cli.main import main


class Missing(importlib.abc.MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{missing}.") for missing in self._names):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


if __name__ == "__main__":
    sys.meta_path.insert(0, Missing(sys.argv.pop(1).split(",")))
    main()
