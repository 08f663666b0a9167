"""`fovea mcp` before a running Fovea, by the protocol's own client: as its process, and over HTTP with keys."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent
from typer.testing import CliRunner

from gateway.access import digest
from services.cli.mcp_server import Fovea, app, make_server
from tests.contract.running_fovea import Fovea as Running
from tests.contract.running_fovea import running_fovea
from tests.core.child_processes import running
from tests.documentation.blocks import ROOT
from tests.kept_port import kept_port

IMAGES = ROOT / "docs" / "images"
COMMAND = (sys.executable, "-m", "services.cli.main", "mcp")
COLOR = "What is the color of the object?"


@pytest.fixture(scope="module")
def fovea(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_fovea(tmp_path_factory.mktemp("mcp"), "embed", "generate", "predict", "score") as fovea:
        files = [("file", (name, (IMAGES / name).read_bytes())) for name in ("red-circle.jpg", "blue-star.jpg")]
        with httpx2.Client(base_url=fovea.url, timeout=60) as client:
            client.put("/collections/shapes").raise_for_status()
            client.post("/collections/shapes/images", params={"wait": "true"}, files=files).raise_for_status()
        yield fovea


@asynccontextmanager
async def agent(url: str) -> AsyncIterator[Client]:
    """Connect as an agent does that starts `fovea mcp` itself."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--url", url], env=environment)
    async with Client(stdio_client(command)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


async def refusal(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    (told,) = result.content
    assert result.is_error
    assert isinstance(told, TextContent)
    return told.text


@pytest.mark.process
async def test_an_agent_finds_what_is_served_and_has_each_method_answer(fovea: Running) -> None:
    async with agent(fovea.url) as client:
        served = await call(client, "list_served")
        assert {one["id"].partition("@")[0] for one in served["models"]} >= {"inferences", "fsc-clip-scenes"}
        assert [one["name"] for one in served["collections"]] == ["shapes"]
        assert served["unavailable"] == {}
        assert len(json.dumps(served)) < 4000  # an agent reads all of it
        (task,) = (one for one in served["tasks"] if one["id"] == "inferences")
        pair = {"premise": "A child in a green shirt is sleeping.", "hypothesis": "The child wears a white shirt."}
        assert pair.keys() == set(task["fields"])
        predicted = await call(client, "predict", task="inferences", inputs=[pair])
        assert predicted["predictions"][0]["label"] == "contradiction"
        by_name = await call(client, "predict", task="inferences", inputs=[pair], model=task["model"])
        assert by_name["model"] == task["model"]

        documents = ["Belan Ashford owns the quiet otter.", "Mira Kell owns the loud crane."]
        ordered = await call(client, "rerank", query="What is the pet of Mira Kell?", documents=documents, top_n=1)
        assert [one["index"] for one in ordered["results"]] == [1]

        captions = ["a yellow square left of a blue circle", "a blue square left of a yellow circle"]
        scored = await call(client, "score_captions", image=str(IMAGES / "two-shapes.jpg"), captions=captions)
        assert scored["best"] == 1

        searched = {"collection": "shapes", "image": str(IMAGES / "red-star.jpg"), "condition": COLOR, "k": 1}
        found = await call(client, "search_images", **searched)
        assert [one["id"] for one in found["results"]] == ["red-circle.jpg"]


@pytest.mark.process
async def test_what_fovea_refuses_is_told_to_the_agent(fovea: Running, tmp_path: Path) -> None:
    async with agent(f"{fovea.url}/v1/") as client:
        assert "404: " in await refusal(client, "search_images", collection="forms", text="a star")
        assert "inputs.0" in await refusal(client, "predict", task="inferences", inputs=[{"premise": "A dog."}])
        asked = {"task": "inferences", "inputs": [{}], "model": "word-problems"}
        told = await refusal(client, "predict", **asked)
        assert "has the task 'word-problems', not 'inferences'; models that have it: 'inferences'." in told
        assert await refusal(client, "search_images", collection="shapes") == (
            "Error executing tool search_images: give either text or image"
        )
        secret = tmp_path / "secret.txt"
        secret.write_text("nobody's business")
        told = await refusal(client, "score_captions", image=str(secret), captions=["a dog"])
        assert "is not a JPEG, PNG, WebP, GIF or BMP" in told
        missing = str(tmp_path / "none.jpg")
        assert f"image: {missing}: No such file" in await refusal(
            client, "score_captions", image=missing, captions=["a dog"]
        )


async def test_arguments_that_a_tool_lacks_are_refused_and_so_is_a_fovea_that_does_not_answer() -> None:
    async with Client(make_server(Fovea("http://127.0.0.1:9"))) as client:
        told = await refusal(client, "rerank", query="a", documents=["b"], top_k=1)
        assert told == "rerank has no argument 'top_k'; it has query, documents, top_n, model"
        assert await refusal(client, "list_served", kind="models") == "list_served has no argument 'kind'; it has none"
        told = await refusal(client, "rerank", query="a", documents="b")
        assert told == "documents: Input should be a valid list"
        told = await refusal(client, "rerank", query="a", documents=["b"])
        assert "No Fovea answers at http://127.0.0.1:9" in told
        assert "fovea up" in told


def test_the_address_may_come_from_the_environment_and_one_that_is_none_is_refused() -> None:
    refused = CliRunner(env={"FOVEA_URL": "fovea.example"}).invoke(app, [])
    assert refused.exit_code == 2
    assert "fovea.example does not begin with http:// or https://" in refused.output


async def test_the_server_has_a_version_and_its_tools_change_nothing_and_describe_their_arguments() -> None:
    async with Client(make_server(Fovea("http://127.0.0.1:9"))) as client:
        tools = (await client.list_tools()).tools
        server = client.server_info
    assert server is not None
    assert (server.name, server.version) == ("fovea", version("fovea-serving"))
    assert {tool.name for tool in tools} == {"list_served", "search_images", "rerank", "score_captions", "predict"}
    assert all(tool.description and tool.annotations and tool.annotations.read_only_hint for tool in tools)
    assert all(each["description"] for tool in tools for each in tool.input_schema["properties"].values())


@asynccontextmanager
async def over_http(url: str, **headers: str) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        # a connection that is kept would be left to the garbage collector of a later test
        limits = httpx2.Limits(max_keepalive_connections=0)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60, limits=limits))
        yield await stack.enter_async_context(Client(streamable_http_client(url, http_client=http)))


@pytest.mark.process
async def test_over_http_each_agent_has_its_own_key_and_no_files(fovea: Running, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "north", "sha256": digest("north"), "scopes": ["score"]}]}))
    settings = {"FOVEA_GATEWAY_SCORE_URLS": fovea.processes["score"].url, "FOVEA_GATEWAY_KEYS_FILE": str(keys)}
    gateway = fovea.start("gateway", settings, instance="gateway-with-keys")
    gateway.wait_until_ready()
    with kept_port() as port:
        command = (*COMMAND, "--transport", "http", "--url", gateway.url, "--api-key", "north", "--port", str(port))
        with running(command) as process:
            url = f"http://127.0.0.1:{port}/mcp"
            await _listens(port)
            asked = {"image": str(IMAGES / "two-shapes.jpg"), "captions": ["a dog"]}
            async with over_http(url) as client:
                assert "your own Authorization header" in await refusal(client, "list_served")
            async with over_http(url, Authorization="Bearer north") as client:
                assert (await call(client, "list_served"))["models"]
                assert "a server over HTTP reads no files" in await refusal(client, "score_captions", **asked)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.process
async def test_the_guides_clients_print_what_is_served_and_the_document_that_answers(fovea: Running) -> None:
    starting, program = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/guide/agents.md").read_text(), re.M | re.S)
    with (
        kept_port() as port,
        running((*COMMAND, "--transport", "http", "--url", fovea.url, "--port", str(port))) as server,
    ):
        await _listens(port)
        command = (sys.executable, "-c", program.replace("8085", str(port)))
        environment = {**os.environ, "FOVEA_API_KEY": "north"}
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=environment)
        async with httpx2.AsyncClient() as http:
            ping = await http.post(f"http://127.0.0.1:{port}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        server.send_signal(signal.SIGTERM)
    assert "'index': 1" in done.stdout, done.stderr
    assert ping.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    starting = starting.replace("http://127.0.0.1:8080", fovea.url)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = (sys.executable, "-c", starting)
    environment = {**os.environ, "PATH": path}
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=environment)
    assert "inferences" in done.stdout, done.stderr


async def _listens(port: int) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise TimeoutError(f"nothing listens on {port}")
