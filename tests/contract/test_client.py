"""`fovea.Client` and `fovea.AsyncClient` before a running Fovea, and before servers that refuse, break and hang."""

import asyncio
import inspect
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import pytest
from PIL import Image as Pillow

from fovea import AsyncClient, Client, FoveaError, Image, schemas
from fovea.client import Event
from gateway.access import digest
from tests.contract.running_fovea import Fovea as Running
from tests.contract.running_fovea import running_fovea
from tests.core.hostile_server import HostileServer, hostile_server
from tests.documentation.blocks import ROOT

IMAGES = ROOT / "docs" / "images"
RED_STAR = IMAGES / "red-star.jpg"
COLOR = "What is the color of the object?"
QUESTION = "What is the pet of Belan Ashford?"
DOCUMENTS = ["Corin Blackwood owns the golden parrot.", "Belan Ashford owns the quiet otter."]
PAIR = {"premise": "A child in a green shirt is sleeping.", "hypothesis": "The child wears a white shirt."}
CAPTIONS = ["a yellow square left of a blue circle", "a blue square left of a yellow circle"]
MODELS = b'{"object": "list", "data": []}'

AnyClient = Client | AsyncClient
BOTH = pytest.mark.parametrize("kind", [Client, AsyncClient])


@pytest.fixture(scope="module")
def fovea(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_fovea(tmp_path_factory.mktemp("client"), "embed", "generate", "predict", "score") as fovea:
        yield fovea


@asynccontextmanager
async def connected(kind: type[AnyClient], url: str | None = None, **options: Any) -> AsyncIterator[AnyClient]:
    client = kind(url, **options)
    try:
        yield client
    finally:
        await client.aclose() if isinstance(client, AsyncClient) else client.close()


async def ask(client: AnyClient, method: str, *arguments: Any, **fields: Any) -> Any:
    """The answer of either client; events as a list."""
    if isinstance(client, Client):
        answer = await asyncio.to_thread(getattr(client, method), *arguments, **fields)
        return await asyncio.to_thread(list, answer) if inspect.isgenerator(answer) else answer
    answer = getattr(client, method)(*arguments, **fields)
    return [event async for event in answer] if inspect.isasyncgen(answer) else await answer


async def refusal(client: AnyClient, method: str, *arguments: Any, **fields: Any) -> FoveaError:
    with pytest.raises(FoveaError) as raised:
        await ask(client, method, *arguments, **fields)
    return raised.value


def lacks(answer: Any, kind: Any, where: str = "") -> list[str]:
    """What a typed dictionary says that this answer does not have, and what it has beyond it."""
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        differing = (kind.__required_keys__ - answer.keys()) | (answer.keys() - hints.keys())
        nested = [
            one for name in answer.keys() & hints.keys() for one in lacks(answer[name], hints[name], f"{where}.{name}")
        ]
        return [f"{where}.{name}" for name in sorted(differing)] + nested
    if isinstance(answer, list) and get_args(kind):
        return [one for each in answer for one in lacks(each, get_args(kind)[0], f"{where}[]")]
    forms = [form for form in get_args(kind) if is_typeddict(form)]
    if isinstance(answer, dict) and forms:
        return min((lacks(answer, form, where) for form in forms), key=len)
    return []


@BOTH
@pytest.mark.process
async def test_every_route_of_collections_answers_in_its_type(fovea: Running, kind: type[AnyClient]) -> None:
    async with connected(kind, fovea.url) as client:
        name = f"shapes-{kind.__name__}"
        made = await ask(client, "create_collection", name, conditions=[COLOR])
        assert lacks(made, schemas.Collection) == []
        pictures = [
            {"id": "circles/red", "image": str(IMAGES / "red-circle.jpg"), "metadata": {"seen": 3}},
            {"id": "blue", "image": (IMAGES / "blue-star.jpg").read_bytes()},
        ]
        added = await ask(client, "add_images", name, pictures, wait=True)
        assert added == {"added": 2, "unchanged": 0, "ids": ["circles/red", "blue"]}
        changed = await ask(client, "update_image", name, "circles/red", {"color": "red"})
        assert changed["metadata"] == {"seen": 3, "color": "red"}
        assert lacks(changed, schemas.ImageEntry) == []

        found = await ask(client, "search", name, image=RED_STAR, condition=COLOR, k=1)
        assert [one["id"] for one in found["results"]] == ["circles/red"]
        assert lacks(found, schemas.SearchResults) == []
        filtered = await ask(client, "search", name, text="a star", filter={"seen": {"$gte": 3}})
        assert [one["id"] for one in filtered["results"]] == ["circles/red"]
        alike = await ask(client, "search", name, id="blue")
        assert [one["id"] for one in alike["results"]] == ["circles/red"]

        page = await ask(client, "images", name, after="blue", limit=1)
        assert ([one["id"] for one in page["data"]], page["has_more"]) == (["circles/red"], False)
        assert lacks(page, schemas.ImageList) == []
        assert await ask(client, "image", name, "blue") == (IMAGES / "blue-star.jpg").read_bytes()
        assert await ask(client, "delete_image", name, "blue") is None
        assert (await ask(client, "collection", name))["size"] == 1
        listed = await ask(client, "collections")
        assert name in [one["name"] for one in listed["data"]]
        assert lacks(listed, schemas.CollectionList) == []
        assert await ask(client, "delete_collection", name) is None


@BOTH
@pytest.mark.process
async def test_every_model_answers_in_its_type(fovea: Running, kind: type[AnyClient]) -> None:
    async with connected(kind, fovea.url) as client:
        embedded = await ask(client, "embed", images=[RED_STAR], texts=["a star"], condition=COLOR)
        assert [one.get("condition") for one in embedded["data"]] == [COLOR, None]
        assert lacks(embedded, schemas.EmbeddingList) == []

        answer = await ask(client, "generate", QUESTION, DOCUMENTS, citations=True)
        assert answer["answer"] == "quiet otter"
        assert [[one["index"] for one in each["documents"]] for each in answer["citations"]] == [[1]]
        assert lacks(answer, schemas.GenerateAnswer) == []
        *deltas, end = await ask(client, "generate_stream", QUESTION, DOCUMENTS, citations=True)
        assert "".join(one["delta"] for one in deltas) == "quiet otter"
        assert end["citations"] == answer["citations"]
        assert lacks(end, schemas.GenerateEnd) == []

        ranked = await ask(client, "rerank", QUESTION, DOCUMENTS, top_n=1)
        assert [one["index"] for one in ranked["results"]] == [1]
        assert lacks(ranked, schemas.RerankAnswer) == []

        tasks = await ask(client, "tasks")
        assert "inferences" in [one["id"] for one in tasks["data"]]
        assert lacks(tasks, schemas.TaskList) == []
        predicted = await ask(client, "predict", [PAIR], task="inferences", probabilities=True)
        assert predicted["predictions"][0]["label"] == "contradiction"
        assert lacks(predicted, schemas.PredictAnswer) == []

        scored = await ask(client, "score", IMAGES / "two-shapes.jpg", CAPTIONS, explain=True)
        assert scored["best"] == 1
        assert lacks(scored, schemas.ScoreAnswer) == []
        negatives = await ask(client, "hard_negatives", CAPTIONS, seed=1)
        assert [one["caption"] for one in negatives["data"]] == CAPTIONS
        assert lacks(negatives, schemas.NegativesList) == []
        models = await ask(client, "models")
        assert {one["id"].partition("@")[0] for one in models["data"]} >= {"inferences", "open-facts"}


@BOTH
@pytest.mark.process
async def test_texts_and_images_are_decided_about(fovea: Running, kind: type[AnyClient]) -> None:
    async with connected(kind, fovea.url) as client:
        content: list[dict[str, Any]] = [{"type": "input_json", "data": PAIR}]
        told = [{"type": "predicate", "name": "contradiction", "instructions": "Do they contradict each other?"}]
        decided = await ask(client, "decide", "inferences", [{"role": "user", "content": content}], told)
        assert decided["answers"][0]["probability"] > 0.5
        assert lacks(decided, schemas.Decision) == []
        content = [{"type": "input_image", "image_url": IMAGES / "two-shapes.jpg"}]
        options = [{"value": caption} for caption in CAPTIONS]
        asked = [{"type": "choice", "instructions": "What does the image show?", "choices": options}]
        decided = await ask(client, "decide", "fsc-clip-scenes", [{"role": "user", "content": content}], asked)
        assert decided["answers"][0]["choice"] == CAPTIONS[1]


@pytest.mark.process
def test_an_image_may_be_a_path_bytes_a_file_a_pil_image_or_one_that_is_stored(fovea: Running) -> None:
    with Client(fovea.url) as client, RED_STAR.open("rb") as file:
        client.create_collection("stored")
        client.add_images("stored", [{"id": "star", "image": RED_STAR}])
        picture = Pillow.open(RED_STAR)
        forms: list[Image] = [str(RED_STAR), RED_STAR.read_bytes(), file, picture, {"id": "stored/star"}]
        first, *others = [one["embedding"] for one in client.embed(images=forms)["data"]]
        assert isinstance(first, list)
        assert all(other == pytest.approx(first, abs=1e-3) for other in others)
        assert client.embed(images=[picture.convert("CMYK")])["data"]
        client.delete_collection("stored")
        with pytest.raises(FoveaError, match="URL"):
            client.embed(images=["https://example.org/star.jpg"])  # fetching is off
        with pytest.raises(FileNotFoundError):
            client.embed(images=["no-such-file.jpg"])
        with pytest.raises(TypeError, match="binary mode"):
            client.embed(images=[io.StringIO("text")])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="not int"):
            client.embed(images=[3])  # type: ignore[list-item]


@BOTH
@pytest.mark.process
async def test_a_refusal_has_the_status_code_field_and_request_of_the_service(
    fovea: Running, kind: type[AnyClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "north", "sha256": digest("north"), "scopes": ["score"]}]}))
    settings = {"FOVEA_GATEWAY_SCORE_URLS": fovea.processes["score"].url, "FOVEA_GATEWAY_KEYS_FILE": str(keys)}
    settings["FOVEA_GATEWAY_EMBED_URLS"] = fovea.processes["embed"].url
    gateway = fovea.start("gateway", settings, instance=f"gateway-with-keys-{kind.__name__}")
    gateway.wait_until_ready()
    async with connected(kind, fovea.url) as client:
        error = await refusal(client, "search", "forms", text="a star")
        assert (error.status, error.type) == (404, "not_found_error")
        assert str(error) == f"404: {error.message}"
        assert error.request_id
        error = await refusal(client, "predict", [{"premise": "A dog."}], task="inferences")
        assert (error.status, error.param) == (422, "inputs.0.hypothesis")
        error = await refusal(client, "rerank", QUESTION, DOCUMENTS, model="nosuch")
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    async with connected(kind, gateway.url) as client:
        assert (await refusal(client, "models")).status == 401
    async with connected(kind, gateway.url, api_key="north") as client:
        assert (await refusal(client, "collections")).status == 403
    monkeypatch.setenv("FOVEA_API_KEY", "north")
    async with connected(kind, gateway.url) as client:
        assert (await ask(client, "models"))["data"]


@asynccontextmanager
async def scripted(kind: type[AnyClient], *answers: bytes | None, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A client, and a server that gives these answers in turn; None is one that never comes."""
    left = list(answers)

    async def answer(writer: asyncio.StreamWriter) -> None:
        content = left.pop(0)
        if content is None:
            await asyncio.Event().wait()
        else:
            writer.write(content)
            await writer.drain()

    async with hostile_server("127.0.0.1") as server:
        server.answers = dict.fromkeys(("/v1/models", "/generate"), answer)
        async with connected(kind, f"http://127.0.0.1:{server.port}", **options) as client:
            yield client, server
        await server.hang_up()


def response(status: str, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers))
    return f"{head}\r\n\r\n".encode() + body


def refused(status: str, *headers: str) -> bytes:
    error = {"message": "Not now.", "type": "overloaded_error", "param": None, "code": "queue_full"}
    return response(status, json.dumps({"error": error}).encode(), *headers)


def time_given(server: HostileServer) -> list[float]:
    """What each request said of its deadline."""
    return [float(head.lower().split(b"x-request-timeout: ")[1].split()[0]) for head in server.requests]


@BOTH
async def test_a_call_is_sent_again_after_503_and_429_with_what_is_left_of_its_time(kind: type[AnyClient]) -> None:
    busy = [
        refused("503 Service Unavailable", "Retry-After: 1", "retry-after-ms: 1"),
        refused("429 Too Many Requests", "retry-after-ms: 1"),
    ]
    async with scripted(kind, *busy, response("200 OK", MODELS), timeout=30) as (client, server):
        assert await ask(client, "models") == json.loads(MODELS)
        first, second, third = time_given(server)
        assert 30 >= first > second > third > 0


@BOTH
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (refused("503 Service Unavailable"), 503),
        (refused("503 Service Unavailable", "Retry-After: 120"), 503),
        (refused("504 Gateway Timeout", "Retry-After: 0"), 504),
        (b"", None),
        (response("200 OK", b"<html>"), 200),
    ],
    ids=["without a time", "after its time", "a deadline", "a broken connection", "of another server"],
)
async def test_what_another_attempt_would_not_help_or_may_repeat_is_not_sent_again(
    kind: type[AnyClient], answer: bytes, status: int | None
) -> None:
    async with scripted(kind, answer, timeout=20) as (client, server):
        error = await refusal(client, "models")
        assert error.status == status
        assert error.type == {None: "connection_error", 200: "unreadable_response"}.get(status, "overloaded_error")
        assert len(server.requests) == 1


@BOTH
async def test_after_as_many_retries_as_are_allowed_the_last_refusal_is_raised(kind: type[AnyClient]) -> None:
    answers = [refused("503 Service Unavailable", "retry-after-ms: 1")] * 2
    async with scripted(kind, *answers, max_retries=1) as (client, server):
        error = await refusal(client, "models")
        assert (error.status, error.code, error.retry_after_s) == (503, "queue_full", 0.001)
        assert len(server.requests) == 2


@BOTH
async def test_a_call_without_an_answer_ends_with_its_time(kind: type[AnyClient]) -> None:
    async with scripted(kind, None, timeout=2) as (client, server):
        error = await refusal(client, "models")
        assert (error.status, error.type) == (None, "timeout_error")
        assert len(server.requests) == 1


@BOTH
@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("scheme", ["http", "HTTP"])
async def test_the_base_url_of_an_openai_client_is_taken_too(
    kind: type[AnyClient], scheme: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEA_URL", f"{scheme}://127.0.0.1:9/fovea{end}")
    async with connected(kind) as client:
        assert client.base_url == f"{scheme}://127.0.0.1:9/fovea"
    async with hostile_server("127.0.0.1") as server:
        answer = response("200 OK", b'{"data": []}')

        async def models(writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await writer.drain()

        server.answers = {"/v1/models": models}
        async with connected(kind, f"{scheme}://127.0.0.1:{server.port}{end}") as client:
            assert await ask(client, "models") == {"data": []}
        await server.hang_up()


def test_a_key_loses_its_line_break_and_one_that_no_header_holds_is_refused_without_showing_it() -> None:
    with (
        Client("http://127.0.0.1:9", api_key="fovea-secret\n") as client,
        pytest.raises(FoveaError, match="no answer from") as refused,
    ):
        client.models()
    assert "secret" not in str(refused.value)
    with pytest.raises(ValueError, match="api_key: the key holds a character") as bad:
        Client(api_key="fovea-sec\nret")
    assert "ret" not in str(bad.value).removeprefix("api_key: the key holds a character")
    with pytest.raises(ValueError, match="timeout: None"):
        Client(timeout=None)  # type: ignore[arg-type]


def test_one_image_where_several_are_taken_is_refused_before_it_is_read() -> None:
    with Client() as client:
        for image in ("red.jpg", RED_STAR, b"x", Pillow.new("RGB", (2, 2))):
            with pytest.raises(TypeError, match="images is a list of images, not one"):
                client.embed(images=image)  # type: ignore[arg-type]


@BOTH
async def test_where_nothing_listens_the_address_is_named(kind: type[AnyClient]) -> None:
    async with connected(kind, "http://127.0.0.1:9", max_retries=1) as client:
        error = await refusal(client, "models")
        assert (error.status, error.type) == (None, "connection_error")
        assert "http://127.0.0.1:9" in error.message
    with pytest.raises(ValueError, match="base_url"):
        kind("127.0.0.1:8080")


@BOTH
async def test_a_stream_that_fails_or_breaks_off_raises_what_happened(kind: type[AnyClient]) -> None:
    error = {"message": "Too late.", "type": "timeout_error", "param": None, "code": None}
    failed = f'data: {{"delta": "a"}}\n\ndata: {json.dumps({"error": error})}\n\n'.encode()
    async with scripted(kind, response("200 OK", failed)) as (client, _):
        raised = await refusal(client, "generate_stream", QUESTION)
        assert (raised.type, str(raised)) == ("timeout_error", "Too late.")
    cut = response("200 OK", b'data: {"delta": "a"}\n\n')
    async with scripted(kind, cut, cut.replace(b"Length: 22", b"Length: 23")) as (client, _):
        assert (await refusal(client, "generate_stream", QUESTION)).type == "unreadable_response"
        assert (await refusal(client, "generate_stream", QUESTION)).type == "connection_error"


def test_a_type_checker_and_a_reader_see_the_parameters_and_the_answer_of_each_method() -> None:
    def first(client: Client) -> tuple[str, float, str]:
        found: schemas.SearchResults = client.search("shapes", text="a star", k=1)
        events: list[Event] = list(client.generate_stream(QUESTION, DOCUMENTS, max_tokens=4))
        return (
            found["results"][0]["id"],
            found["results"][0]["score"],
            "".join(e["delta"] for e in events if "delta" in e),
        )

    async def later(client: AsyncClient) -> str:
        return (await client.generate(QUESTION, DOCUMENTS))["answer"]

    assert (first.__name__, later.__name__) == ("first", "later")
    methods = {name for name in dir(Client) if not name.startswith("_")} - {"close"}
    assert methods == {name for name in dir(AsyncClient) if not name.startswith("_")} - {"aclose"}
    assert all(getattr(Client, name).__doc__ for name in methods)
    shown = inspect.signature(Client("http://127.0.0.1:9").search)
    assert list(shown.parameters)[:2] == ["collection", "text"]
    assert shown.return_annotation is schemas.SearchResults
