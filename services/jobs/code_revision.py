"""The commit of the running code, for the records of what it makes."""

import os
import subprocess
from pathlib import Path

FILE = Path(__file__)


def code_revision() -> str | None:
    """Return the commit that FOVEA_CODE_REVISION names, else that of the git work tree that has this file, if one does.

    It ends in `-dirty` if files were changed since.
    """
    if named := os.environ.get("FOVEA_CODE_REVISION"):
        return named
    try:
        _git("ls-files", "--error-unmatch", FILE.name)  # an installation may lie in another project's work tree
        return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(FILE.parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
