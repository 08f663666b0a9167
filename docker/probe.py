"""Readiness probe of this container's process: status 0 where it answers /readyz with 200, 1 where not.

The process is found by the container's own command, `fovea serve NAME` or `fovea up`, whose gateway knows its services.
With another command, such as a training job, nothing is asked. Port and address come from the same variables that the
process reads.
"""

import http.client
import json
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from services.cli.programs import Program, existing_names, plan_programs

TIMEOUT_S = 4.0


def served_program(command: Sequence[str]) -> Program | None:
    """Return the program that a command line serves, of all the gateway; None for one that serves nothing."""
    if "serve" in command[:-1]:
        return plan_programs([command[command.index("serve") + 1]], os.environ)[0]
    if any(Path(word).name == "fovea" and following == "up" for word, following in pairwise(command)):
        return plan_programs(existing_names(), os.environ)[0]
    return None


def is_ready(program: Program) -> bool:
    connection = http.client.HTTPConnection(program.reachable_host, program.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read()
        sys.stdout.write(body.decode())
        # The gateway has no check of a service that is left out.
        checks = json.loads(body)["checks"] if program.needs else {}
        return response.status == 200 and all(checks[name]["ok"] for name in program.needs if name in checks)
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
