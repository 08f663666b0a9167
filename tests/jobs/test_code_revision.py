"""The commit that a record of a job names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.jobs import code_revision


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=Tests", "-c", "user.email=tests@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *author, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def revision(folder: Path, **variables: str) -> str:
    """Return the revision that the code in a folder tells."""
    words = [sys.executable, "-c", "import code_revision; print(code_revision.code_revision())"]
    environment = {name: value for name, value in os.environ.items() if name != "FOVEA_CODE_REVISION"}
    done = subprocess.run(
        words, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.process
def test_the_commit_is_that_of_the_variable_or_of_the_work_tree_that_has_the_code(tmp_path: Path) -> None:
    shutil.copy(code_revision.__file__, tmp_path)
    assert revision(tmp_path) == "None"
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "of another project")
    assert revision(tmp_path) == "None"
    git(tmp_path, "add", "code_revision.py")
    git(tmp_path, "commit", "-q", "-m", "the code")
    assert revision(tmp_path) == git(tmp_path, "rev-parse", "HEAD")
    with (tmp_path / "code_revision.py").open("a") as file:
        file.write("# changed\n")
    assert revision(tmp_path) == git(tmp_path, "rev-parse", "HEAD") + "-dirty"
    assert revision(tmp_path, FOVEA_CODE_REVISION="abc") == "abc"
