"""Readiness probe of this container's process: status 0 where it answers /readyz with 200, 1 where not.

The process is found by the container's own command, `fovea serve NAME`; with another command, such as a training
job, nothing is asked. Its port and address come from the same variables that the process reads.
"""

import http.client
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from services.cli.programs import Program, plan_programs

TIMEOUT_S = 4.0


def served_program(command: Sequence[str]) -> Program | None:
    """Return the program that a command line serves; None for one that serves nothing."""
    if "serve" not in command[:-1]:
        return None
    (program,) = plan_programs([command[command.index("serve") + 1]], os.environ)
    return program


def is_ready(program: Program) -> bool:
    connection = http.client.HTTPConnection(program.reachable_host, program.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        sys.stdout.write(response.read().decode())
        return response.status == 200
    except OSError as unreachable:
        sys.stdout.write(f"{program.url}: {unreachable}")
        return False
    finally:
        connection.close()


def main() -> int:
    # Given on the command line where the container's first process is another one.
    command = sys.argv[1:] or Path("/proc/1/cmdline").read_text().split("\0")
    program = served_program(command)
    return 0 if program is None or is_ready(program) else 1


if __name__ == "__main__":
    sys.exit(main())
