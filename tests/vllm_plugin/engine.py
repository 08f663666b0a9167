"""A real vLLM: its Python, its server, and jobs for its engine in a process of their own."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

ROOT = Path(__file__).parents[2]
OFFLINE = Path(__file__).with_name("offline.py")
START_S = 300
BLOCK_SIZE = 32
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # compiles a count of the sampler, which takes longer than most tests
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # longer than any test, so that no request meets a connection that the server is closing
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",
    "PYTHONPATH": str(ROOT / "vllm_plugin"),  # the plug-in of this checkout, whichever the environment holds
}


def vllm_python() -> Path:
    """The Python of an environment with vLLM and the plug-in; the test is skipped where there is none."""
    python = Path(os.environ.get("PYTHON_WITH_VLLM") or ROOT / ".venv-vllm/bin/python")
    if not python.exists():
        pytest.skip(f"{python} does not exist: `make vllm` installs vLLM, or set PYTHON_WITH_VLLM")
    return python


class Offline:
    """Answers rounds of requests, each round's at once, by one engine a job. See `offline.py`."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def run(self, model: Path, rounds: Sequence[Sequence[dict[str, Any]]], **job: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"model": str(model), "rounds": rounds, **job}), file=self._process.stdin, flush=True)
        result: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        assert "answers" in result, self._log.read_text()[-4000:]
        return result


@contextmanager
def running_offline(log: Path) -> Iterator[Offline]:
    environment = os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with (
        log.open("w") as output,
        subprocess.Popen(
            [vllm_python(), OFFLINE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=environment,
            cwd=log.parent,
        ) as process,
    ):
        yield Offline(process, log)


class Server:
    """vLLM's HTTP server over one model."""

    def __init__(self, url: str, model: str, process: "subprocess.Popen[bytes]") -> None:
        self.url = url
        self.model = model
        self._process = process
        self._client = httpx2.Client(base_url=url, timeout=300)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._client.post(path, json=body)

    def get(self, path: str) -> Any:
        return self._client.get(path)

    def ask(self, input_ids: Sequence[int], max_tokens: int, fields: dict[str, Any] | None = None) -> Any:
        """The response to a greedy completion with the tokens' ids and log-probabilities."""
        body = {
            "model": self.model,
            "prompt": list(input_ids),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 0,
            "return_tokens_as_token_ids": True,
        }
        return self.post("/v1/completions", body | ({"vllm_xargs": fields} if fields else {}))

    def answers(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Tokens, log-probabilities and cached tokens of requests as `ask` takes them, 16 at a time."""
        with ThreadPoolExecutor(16) as threads:
            return list(threads.map(lambda request: answer_of(self.ask(**request)), requests))

    def stop(self) -> None:
        """End the server and its engine."""
        self._process.terminate()
        self._process.wait(60)

    def close(self) -> None:
        self._client.close()


def answer_of(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    body = response.json()
    found = body["choices"][0]["logprobs"]
    cached = body["usage"].get("prompt_tokens_details") or {}
    return {
        "tokens": [int(token.removeprefix("token_id:")) for token in found["tokens"]],
        "logprobs": found["token_logprobs"],
        "cached": cached.get("cached_tokens") or 0,
    }


@contextmanager
def served(model: Path, log: Path, *arguments: str, port: int = 0) -> Iterator[Server]:
    """Serve a checkpoint with the plug-in and its endpoint until it is no longer needed, on a free port unless given.

    `arguments` follow the server's own and replace them.
    """
    port = port or free_port()
    command = [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", model.name, "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"]
    command += ["--max-num-seqs", "8", "--block-size", str(BLOCK_SIZE), "--enable-prompt-tokens-details"]
    command += ["--host", "127.0.0.1", "--port", str(port), *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            # without, the engine starts a further process for its one worker
            env=os.environ | ENVIRONMENT | {"VLLM_PLUGINS": "fovea", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            cwd=model,
        )
    server = Server(f"http://127.0.0.1:{port}", model.name, process)
    try:
        _wait(server, process, log)
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _wait(server: Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            if server.get("/health").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])
