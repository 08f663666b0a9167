"""`python -m tests.supervising JSON`: a supervisor over the given programs, as `fovea up` is over its own."""

import asyncio
import json
import sys

from services.cli.programs import Program
from services.cli.supervisor import PortTaken, RestartPolicy, Supervisor


async def supervise(arguments: dict[str, object]) -> int:
    supervisor = Supervisor(
        [Program(**{**program, "needs": tuple(program["needs"])}) for program in arguments["programs"]],  # type: ignore[attr-defined]
        output=sys.stdout,
        drain_timeout_s=float(str(arguments["drain_timeout_s"])),
        policy=RestartPolicy(first_delay_s=0.05, hung_after_s=float(str(arguments["hung_after_s"]))),
        remind_s=0.2,
    )
    return await supervisor.run("all set")


if __name__ == "__main__":
    try:
        raise SystemExit(asyncio.run(supervise(json.loads(sys.argv[1]))))
    except PortTaken as taken:
        raise SystemExit(str(taken)) from None
