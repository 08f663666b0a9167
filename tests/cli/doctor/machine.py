"""A machine of a user's own, on which the doctor is asked."""

import json
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from services.cli.main import main

ROOT = Path(__file__).parents[3]
# Imports once what the doctor imports, which takes most of its time, and forks for each doctor.
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["gateway.access", "gateway.settings", "services.cli.doctor.command", "tests.cli.doctor.machine"]
    + [f"services.{name}.settings" for name in ("embed", "generate", "predict", "score")]
)


def run_forked(arguments: list[str], home: Path, environment: dict[str, str], written: list[Path]) -> None:
    """Run `fovea` in a fork as if it had been started with this environment, in this folder."""
    os.chdir(home)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path in enumerate(written, start=1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    sys.argv = ["fovea", *arguments]
    main()


class Machine:
    """A home of its own and free ports; `environment` can be changed before the doctor is asked."""

    def __init__(self, home: Path, ports: dict[str, int]) -> None:
        self.home, self.ports = home, ports
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")}
        own = {f"FOVEA_{name}_PORT": str(port) for name, port in ports.items()}
        self.environment = {**kept, **own, "HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def doctor(self, *arguments: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        if without or self.environment["PYTHONPATH"] != str(ROOT):  # other packages than the fork has
            module = ["tests.cli.without_packages", ",".join(without)] if without else ["services.cli.main"]
            return subprocess.run(
                [sys.executable, "-m", *module, "doctor", *arguments],
                capture_output=True,
                text=True,
                check=False,
                cwd=self.home,
                env=self.environment,
            )
        asked, written = ["doctor", *arguments], [self.home / "stdout", self.home / "stderr"]
        process = FORKS.Process(target=run_forked, args=(asked, self.home, self.environment, written))
        process.start()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(asked, process.exitcode, *(path.read_text() for path in written))

    def findings(self, *arguments: str, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Ask for JSON, and hold the exit status to the findings."""
        ended = self.doctor("--json", *arguments, without=without)
        assert "Traceback" not in ended.stderr
        answer = json.loads(ended.stdout)
        failed = any(finding["status"] == "failure" for finding in answer["findings"])
        assert (ended.returncode, answer["works"]) == (int(failed), not failed)
        found: list[dict[str, Any]] = answer["findings"]
        return found

    def failures(self, *arguments: str, without: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
        """The topic, the finding and the cure of what would not work."""
        found = self.findings(*arguments, without=without)
        return [(one["topic"], one["found"], one["cure"]) for one in found if one["status"] == "failure"]
