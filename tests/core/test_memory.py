"""Clients are told to retry where memory runs out: the error does not blame them, and the process survives."""

import asyncio
import io
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from starlette.testclient import TestClient

from services.core.errors import is_out_of_memory
from services.core.settings import ProcessSettings
from tests.core.served_app import NO_MEMORY, create
from tests.core.served_process import ServedProcess
from tests.core.starved_calls import CALLS

pytestmark = pytest.mark.process


def bytes_of(pid: int) -> int:
    """Return the bytes of a process's address space in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("call", CALLS)
def test_what_can_not_be_parsed_or_decoded_for_want_of_memory_is_no_fault_of_the_client(call: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.starved_calls", call], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (0, "MemoryError"), done.stderr


@pytest.mark.parametrize("kind", NO_MEMORY)
def test_want_of_memory_anywhere_in_a_request_is_answered_with_when_to_come_back(kind: str) -> None:
    with TestClient(create(ProcessSettings(port=0)), base_url="http://localhost") as client:
        response = client.get(f"/fail/{kind}")

    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "out_of_memory"


def test_an_error_of_another_kind_is_none_of_memory() -> None:
    for error in (RuntimeError("size mismatch"), OSError(2, "no such file"), ValueError("out of memory")):
        assert not is_out_of_memory(error)
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds another process")
async def test_a_body_for_which_there_is_no_memory_is_refused_and_the_next_one_answered(
    serve: Callable[..., ServedProcess],
) -> None:
    served = serve()
    await served.started()
    body = b'{"query": "' + b"a" * 30_000_000 + b'"}'
    limit = bytes_of(served.process.pid) + 10 * 1024 * 1024
    async with aiohttp.ClientSession() as session:

        async def ask(content: bytes) -> tuple[int, str]:
            headers = {"content-type": "application/json"}
            async with session.post(f"{served.url}/rerank", data=io.BytesIO(content), headers=headers) as response:
                return response.status, await response.text()

        resource.prlimit(served.process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        status, text = await ask(body)
        assert (status, "out_of_memory" in text) == (503, True), text
        small = await asyncio.gather(*(ask(b'{"query": "a", "documents": ["b"]}') for _ in range(8)))

    assert [status for status, _ in small] == [200] * 8
