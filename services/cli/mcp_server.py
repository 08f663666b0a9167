"""`fovea mcp`: a server of the Model Context Protocol whose tools ask a running Fovea.

An agent lists what is served, searches images under a condition, orders documents, tells which caption is true of an
image, and predicts by a student's task.
"""

import asyncio
import base64
import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import httpx2
import typer
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import Field, ValidationError

from services.core.images.headers import media_type_of
from services.core.refusals import first_complaint, shown_names
from services.jobs.options import LOCAL_URL, command_line, fovea_url
from services.jobs.options import api_key as checked_key

TIMEOUT = httpx2.Timeout(600, connect=10)  # services end what they can't answer by their own deadlines
INSTRUCTIONS = (
    "Small models that answer quickly and say how sure they are. Call list_served first: it names models, tasks with "
    "the fields of their inputs, and image collections."
)
Answer = dict[str, Any]
Ctx = Context[Any, Any]
AN_IMAGE = "a data URI, a URL that Fovea may fetch, or the path of a file"
FILTER = (
    'Which images count, by their metadata: {"color": "red"} or one of a list, {"year": {"$gte": 2020}} ($gt, $gte, '
    "$lt, $lte, $ne, $in, $nin, $exists), several by $and, $or and $not."
)
# Of what a service lists, that by which an agent chooses.
LISTED = {
    "models": ("id", "kind", "statement"),
    "tasks": ("id", "model", "fields", "labels", "choices", "statement"),
    "collections": ("name", "model", "size", "conditions"),
}
Model = Annotated[str | None, Field(description="Id of a model, as list_served names it; the first one if left out.")]

app = command_line(help="Serve Fovea's models to agents as tools of the Model Context Protocol.")


class Tools(MCPServer[None]):
    """A server that refuses arguments that its tools do not have, which the library ignores, and names wrong ones."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        known = {tool.name: [*tool.input_schema["properties"]] for tool in await self.list_tools()}
        for argument in arguments if name in known else ():
            if argument not in known[name]:
                raise ToolError(f"{name} has no argument {argument!r}; it has {shown_names(known[name]) or 'none'}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as refused:
            if isinstance(refused.__cause__, ValidationError):
                raise ToolError(first_complaint(refused.__cause__, name)) from None
            raise


class Fovea:
    """Tools that call the Fovea at `url`.

    A server over HTTP passes on the `Authorization` of whoever calls it and reads no files of its machine; one over
    standard input is its user's own, and has the user's key and files.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT)

    async def ask(self, ctx: Ctx, path: str, body: Answer | None = None) -> Answer:
        """Call a route and return its JSON. Raises ToolError with what Fovea says if it refuses."""
        authorization = (ctx.headers or {}).get("authorization")
        callers = {"Authorization": authorization} if authorization else {}
        given = {name: value for name, value in (body or {}).items() if value is not None}
        try:
            answer = await self._client.request("POST" if body else "GET", path, json=given or None, headers=callers)
        except httpx2.HTTPError as error:
            told = f"No Fovea answers at {self._client.base_url} ({str(error).rstrip('.') or type(error).__name__})."
            raise ToolError(f"{told} Start one with `fovea up`, or name its address with --url or FOVEA_URL.") from None
        if answer.is_success:
            found: Answer = answer.json()
            return found
        raise ToolError(_message(answer))

    async def list_served(self, ctx: Ctx) -> Answer:
        """List the models, the tasks of predict with the fields of their inputs, and the image collections."""
        served: Answer = {"unavailable": {}}
        for kind, path in (("models", "/v1/models"), ("tasks", "/tasks"), ("collections", "/collections")):
            try:
                found = (await self.ask(ctx, path))["data"]
            except ToolError as refused:
                if kind == "models":
                    raise
                served["unavailable"][kind] = str(refused)  # its service does not run
            else:
                served[kind] = [{name: one[name] for name in LISTED[kind] if name in one} for one in found]
        return served

    async def search_images(  # noqa: PLR0913 - each is an argument of the tool
        self,
        ctx: Ctx,
        collection: Annotated[str, Field(description="Name of a collection, as list_served names it.")],
        text: Annotated[str | None, Field(description="What the images show. Give this or image.")] = None,
        image: Annotated[str | None, Field(description=f"An image to compare with: {AN_IMAGE}.")] = None,
        condition: Annotated[
            str | None, Field(description='What to compare images by, such as "What is the color of the object?".')
        ] = None,
        k: Annotated[int, Field(description="Number of results.", ge=1)] = 10,
        filter: Annotated[Answer | None, Field(description=FILTER)] = None,
    ) -> Answer:
        """Find the images of a collection that are similar to an image or a text, under a condition."""
        if (text is None) == (image is None):
            raise ToolError("give either text or image")
        query = {"text": text, "image": image and _read(ctx, image), "condition": condition, "k": k, "filter": filter}
        return await self.ask(ctx, f"/collections/{quote(collection, safe='')}/search", query)

    async def rerank(
        self,
        ctx: Ctx,
        query: Annotated[str, Field(description="What is asked of the documents.")],
        documents: Annotated[list[str], Field(description="Texts, in any order.")],
        top_n: Annotated[int | None, Field(description="Number of documents to return; all if left out.", ge=1)] = None,
        model: Model = None,
    ) -> Answer:
        """Order documents by their relevance to a query, wherever they stand in the prompt."""
        asked = {"query": query, "documents": documents, "top_n": top_n, "model": model}
        return await self.ask(ctx, "/v1/rerank", asked)

    async def score_captions(
        self,
        ctx: Ctx,
        image: Annotated[str, Field(description=f"The image: {AN_IMAGE}.")],
        captions: Annotated[list[str], Field(description="Captions of which one fits best.")],
        model: Model = None,
    ) -> Answer:
        """Tell which caption is true of an image, with the probability of each among the captions given."""
        return await self.ask(ctx, "/score", {"image": _read(ctx, image), "captions": captions, "model": model})

    async def predict(
        self,
        ctx: Ctx,
        task: Annotated[str, Field(description="Id of a task, as list_served names it.")],
        inputs: Annotated[list[Answer], Field(description="One object for each input, with the task's fields.")],
        model: Annotated[str | None, Field(description="Id of a model, if several have the task.")] = None,
        *,
        rationale: Annotated[bool, Field(description="Give reasons as well, which takes longer.")] = False,
    ) -> Answer:
        """Predict a task's labels or values, with a confidence for each."""
        asked = {"task": task, "inputs": inputs, "model": model, "rationale": rationale}
        return await self.ask(ctx, "/predict", asked)


def _read(ctx: Ctx, image: str) -> str:
    """Return the image as routes take it; a path is read where the server is its caller's own."""
    if image[:8].lower().startswith(("data:", "http://", "https://")):
        return image
    if ctx.headers is not None:
        raise ToolError("image: give a data URI or a URL; a server over HTTP reads no files")
    try:
        data = Path(image).expanduser().read_bytes()
    except OSError as error:
        raise ToolError(f"image: {image}: {error.strerror}") from None
    if media_type_of(data) is None:  # nothing else of the machine is sent anywhere
        raise ToolError(f"image: {image} is not a JPEG, PNG, WebP, GIF or BMP")
    return base64.b64encode(data).decode()


def _message(answer: httpx2.Response) -> str:
    """Return what a refusal says, in any of the forms that routes have for errors."""
    try:
        body = answer.json()
    except json.JSONDecodeError:
        body = {}
    error = body.get("error", body) if isinstance(body, dict) else {}
    told = error if isinstance(error, str) else error.get("message")
    if answer.status_code == httpx2.codes.UNAUTHORIZED:
        return f"{told} Give a key: --api-key or FOVEA_API_KEY, over HTTP your own Authorization header."
    return f"{answer.status_code}: {told or answer.reason_phrase}"


def make_server(fovea: Fovea) -> MCPServer[None]:
    """Return a server of the tools, none of which changes anything."""
    server = Tools("fovea", version=version("fovea-serving"), instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in (fovea.list_served, fovea.search_images, fovea.rerank, fovea.score_captions, fovea.predict):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    return server


@app.command()
def serve(
    url: Annotated[str, typer.Option(envvar="FOVEA_URL", callback=fovea_url, help="Address of Fovea.")] = LOCAL_URL,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="FOVEA_API_KEY", callback=checked_key, help="API key; over HTTP, callers send their own instead."
        ),
    ] = None,
    transport: Annotated[
        Literal["stdio", "http"], typer.Option(help="How agents connect: as a process of their own, or by HTTP.")
    ] = "stdio",
    host: Annotated[str, typer.Option(help="Address to listen on, over HTTP.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, over HTTP; the path is /mcp.")] = 8085,
) -> None:
    """Serve Fovea's models to agents as tools: search under a condition, rerank, score, predict."""
    if transport == "stdio":
        make_server(Fovea(url, api_key)).run()
    else:
        server = make_server(Fovea(url))
        asyncio.run(server.run_streamable_http_async(host=host, port=port, json_response=True, stateless_http=True))
