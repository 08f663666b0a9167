"""The embed service's contract, spoken by the clients that people really use."""

import base64
import json
import socket
from pathlib import Path
from typing import Any

import cohere
import numpy as np
import openai
import pytest

from tests.contract.curl import curl
from tests.contract.embed_processes import MODEL
from tests.contract.processes import Process
from tests.core.image_files import encode, scene
from tests.embed.tiny import CONTEXT_LENGTH, EMBEDDING_WIDTH

TEXTS = ["a red square", "a blue circle"]
COLOR = "What is the color of the object?"
TOO_LONG = "red " * CONTEXT_LENGTH
PHOTO = encode(scene(), "JPEG")
PHOTO_URI = f"data:image/jpeg;base64,{base64.b64encode(PHOTO).decode()}"


@pytest.fixture(scope="module")
def client(embed_server: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{embed_server.url}/v1", api_key="none", max_retries=0)


def norm(embedding: Any) -> float:
    return float(np.linalg.norm(np.array(embedding, dtype=np.float64)))


# --- openai ---


def test_openai_gets_the_same_numbers_by_base64_its_default_and_by_float(client: openai.OpenAI) -> None:
    by_default = client.embeddings.create(model=MODEL, input=TEXTS)
    as_floats = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    assert [entry.index for entry in by_default.data] == [0, 1]
    for one, other in zip(by_default.data, as_floats.data, strict=True):
        assert len(one.embedding) == EMBEDDING_WIDTH
        assert norm(one.embedding) == pytest.approx(1, abs=1e-5)
        assert np.array_equal(np.array(one.embedding, np.float32), np.array(other.embedding, np.float32))
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens > 0


def test_openai_embeds_an_image_under_a_condition_by_extra_fields(client: openai.OpenAI) -> None:
    item: Any = {"image": PHOTO_URI}
    plain = client.embeddings.create(model=MODEL, input=[item])
    conditioned = client.embeddings.create(model=MODEL, input=[item], extra_body={"condition": COLOR})
    assert norm(conditioned.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert plain.data[0].embedding != conditioned.data[0].embedding


def test_openai_gets_bits_and_integers_by_either_field(client: openai.OpenAI) -> None:
    rows = np.array([one.embedding for one in client.embeddings.create(model=MODEL, input=TEXTS).data], np.float32)
    bits = np.packbits(rows > 0, axis=1)
    form: Any = "ubinary"  # the client's type has two of the formats
    packed = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format=form)
    assert [one.embedding for one in packed.data] == bits.tolist()
    # by itself the client asks for base64 beside a field that it does not know
    for dtype, expected in (("binary", bits.astype(int) - 128), ("int8", np.rint(127 * rows))):
        answer = client.embeddings.create(model=MODEL, input=TEXTS, extra_body={"output_dtype": dtype})
        assert [one.embedding for one in answer.data] == expected.tolist()


def cut(rows: Any, dimensions: int) -> Any:
    shorter = np.array(rows)[:, :dimensions]
    return shorter / np.linalg.norm(shorter, axis=1, keepdims=True)


def test_openai_gets_the_dimensions_that_a_model_was_trained_for(client: openai.OpenAI) -> None:
    whole = [one.embedding for one in client.embeddings.create(model=MODEL, input=TEXTS).data]
    for dimensions in (12, 16):
        answer = client.embeddings.create(model=MODEL, input=TEXTS, dimensions=dimensions)
        assert np.allclose([one.embedding for one in answer.data], cut(whole, dimensions), atol=1e-6)


def test_openai_sends_two_thousand_and_forty_eight_inputs_at_once(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=[f"object {number}" for number in range(2048)])
    assert [entry.index for entry in answer.data] == list(range(2048))


def test_openai_maps_errors_to_its_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.embeddings.create(model="text-embedding-3-small", input="ok")
    assert unknown.value.param == "model"
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.UnprocessableEntityError) as width:
        client.embeddings.create(model=MODEL, input="ok", dimensions=8)
    assert width.value.param == "dimensions"
    with pytest.raises(openai.UnprocessableEntityError) as empty:
        client.embeddings.create(model=MODEL, input="")
    assert empty.value.param == "input"
    with pytest.raises(openai.APIStatusError) as too_long:
        client.embeddings.create(model=MODEL, input=TOO_LONG)
    assert too_long.value.status_code == 413
    assert too_long.value.request_id


def test_openai_is_told_not_to_retry_what_a_retry_cannot_mend(embed_server: Process) -> None:
    eager = openai.OpenAI(base_url=f"{embed_server.url}/v1", api_key="none", max_retries=5)
    with pytest.raises(openai.BadRequestError) as error:
        eager.embeddings.create(model=MODEL, input=[[1, 2, 3]])
    assert error.value.response.headers["x-should-retry"] == "false"
    assert error.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_openai_lists_and_retrieves_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).created == model.created
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_openai_reads_which_checkpoint_answered(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(model=MODEL, input="ok")
    assert raw.headers["x-fovea-model"].startswith(f"{MODEL}@")
    assert raw.parse().model == raw.headers["x-fovea-model"]


# --- Cohere ---


def test_cohere_v2_embeds_texts_and_images(embed_server: Process, client: openai.OpenAI) -> None:
    speaker = cohere.ClientV2(api_key="none", base_url=embed_server.url)
    asked: Any = {"model": MODEL, "input_type": "search_document"}
    answer = speaker.embed(texts=TEXTS, embedding_types=["float", "base64"], **asked)
    expected = [entry.embedding for entry in client.embeddings.create(model=MODEL, input=TEXTS).data]
    assert answer.embeddings.float_ is not None
    assert answer.embeddings.base64 is not None
    assert np.allclose(answer.embeddings.float_, expected, atol=1e-6)
    assert np.allclose(np.frombuffer(base64.b64decode(answer.embeddings.base64[1]), "<f4"), expected[1], atol=1e-6)
    assert answer.texts == TEXTS
    images = speaker.embed(images=[PHOTO_URI], model=MODEL, input_type="image").embeddings.float_
    parts: Any = [{"content": [{"type": "image_url", "image_url": {"url": PHOTO_URI}}]}]
    parted = speaker.embed(inputs=parts, model=MODEL, input_type="image").embeddings.float_
    assert images is not None
    assert np.allclose(images, parted or [], atol=1e-6)


def test_cohere_gets_every_type_of_embedding_that_it_knows(embed_server: Process) -> None:
    speaker = cohere.ClientV2(api_key="none", base_url=embed_server.url)
    types: Any = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    found = speaker.embed(texts=TEXTS, model=MODEL, input_type="search_document", embedding_types=types).embeddings
    rows = np.array(found.float_, np.float32)
    bits, levels = np.packbits(rows > 0, axis=1).astype(int), np.rint(127 * rows)
    assert (found.ubinary, found.binary) == (bits.tolist(), (bits - 128).tolist())
    assert (found.int8, found.uint8) == (levels.tolist(), (levels + 128).tolist())
    assert [len(row) for row in found.ubinary or ()] == [EMBEDDING_WIDTH // 8] * 2


def test_cohere_gets_fewer_dimensions_as_floats_and_as_bits(embed_server: Process) -> None:
    speaker = cohere.ClientV2(api_key="none", base_url=embed_server.url)
    asked: Any = {"texts": TEXTS, "model": MODEL, "input_type": "search_query", "embedding_types": ["float", "ubinary"]}
    whole = speaker.embed(**asked).embeddings.float_ or []
    found = speaker.embed(**asked, output_dimension=16).embeddings
    assert np.allclose(found.float_ or [], cut(whole, 16), atol=1e-6)
    assert found.ubinary == np.packbits(np.array(found.float_) > 0, axis=1).tolist()


def test_cohere_v2_embeds_an_image_and_a_text_beside_it_as_the_image_under_the_text(
    embed_server: Process, client: openai.OpenAI
) -> None:
    speaker = cohere.ClientV2(api_key="none", base_url=embed_server.url)
    image: Any = cohere.ImageUrlEmbedContent(image_url=cohere.EmbedImageUrl(url=PHOTO_URI))
    texts: list[Any] = [cohere.TextEmbedContent(text=text) for text in (COLOR, TEXTS[0])]
    inputs = [cohere.EmbedInput(content=content) for content in ([texts[0], image], [image], [texts[1]])]
    found = speaker.embed(inputs=inputs, model=MODEL, input_type="search_document").embeddings.float_ or []
    item: Any = {"image": PHOTO_URI}
    conditioned = client.embeddings.create(model=MODEL, input=[item], extra_body={"condition": COLOR}).data
    plain = client.embeddings.create(model=MODEL, input=[item, TEXTS[0]]).data
    assert np.allclose(found, [one.embedding for one in (*conditioned, *plain)], atol=1e-6)
    with pytest.raises(cohere.BadRequestError) as refused:
        speaker.embed(inputs=[cohere.EmbedInput(content=[image, image])], model=MODEL, input_type="search_document")
    assert "one image and one text" in str(refused.value.body)


def test_cohere_v2_gives_an_image_the_condition_of_an_extra_field(embed_server: Process, client: openai.OpenAI) -> None:
    speaker = cohere.ClientV2(api_key="none", base_url=embed_server.url)
    conditioned = speaker.embed(
        images=[PHOTO_URI],
        model=MODEL,
        input_type="image",
        request_options={"additional_body_parameters": {"condition": COLOR}},
    )
    item: Any = {"image": PHOTO_URI}
    expected = client.embeddings.create(model=MODEL, input=[item], extra_body={"condition": COLOR}).data[0].embedding
    assert np.allclose((conditioned.embeddings.float_ or [[]])[0], expected, atol=1e-6)


@pytest.mark.parametrize("fields", [{"embedding_types": ["int4"]}, {"truncate": "START"}, {"output_dimension": 8}])
def test_cohere_v2_is_told_what_is_not_done_here(embed_server: Process, fields: Any) -> None:
    speaker = cohere.ClientV2(api_key="none", base_url=embed_server.url)
    with pytest.raises((cohere.BadRequestError, cohere.UnprocessableEntityError)) as refused:
        speaker.embed(texts=TEXTS, model=MODEL, input_type="search_query", **fields)
    assert next(iter(fields)) in str(refused.value.body) or "dimensions" in str(refused.value.body)


def test_cohere_cuts_long_texts_where_it_is_asked_to(embed_server: Process) -> None:
    speaker = cohere.ClientV2(api_key="none", base_url=embed_server.url)
    asked: Any = {"texts": [TOO_LONG], "model": MODEL, "input_type": "search_query"}
    assert speaker.embed(**asked, truncate="END").embeddings.float_
    with pytest.raises(cohere.core.ApiError) as refused:
        speaker.embed(**asked)
    assert refused.value.status_code == 413


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning")
def test_cohere_v1_gets_a_plain_list_unless_it_asks_for_types(embed_server: Process) -> None:
    speaker = cohere.Client(api_key="none", base_url=embed_server.url)
    plain: Any = speaker.embed(texts=TEXTS, model=MODEL, input_type="search_query")
    typed: Any = speaker.embed(texts=TEXTS, model=MODEL, input_type="search_query", embedding_types=["float"])
    assert [len(row) for row in plain.embeddings] == [EMBEDDING_WIDTH] * 2
    assert np.allclose(plain.embeddings, typed.embeddings.float_, atol=1e-6)


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning")
def test_langchains_cohere_embeddings_embed(embed_server: Process) -> None:
    from langchain_cohere import CohereEmbeddings
    from pydantic import SecretStr

    embeddings: Any = CohereEmbeddings
    embedder = embeddings(model=MODEL, cohere_api_key=SecretStr("none"), base_url=embed_server.url)
    vectors = embedder.embed_documents(TEXTS)
    assert [len(vector) for vector in vectors] == [EMBEDDING_WIDTH] * 2
    assert np.allclose(embedder.embed_query(TEXTS[0]), vectors[0], atol=1e-6)


# --- LangChain ---


@pytest.fixture(scope="module")
def byte_tokens() -> str:
    """LangChain asks tiktoken for the tokens of a model by name; the real ones would have to be downloaded."""
    import tiktoken
    import tiktoken.model
    import tiktoken.registry

    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"[\s\S]", mergeable_ranks=ranks, special_tokens={})
    tiktoken.registry.ENCODINGS["bytes"] = encoding
    tiktoken.model.MODEL_TO_ENCODING["bytes"] = "bytes"
    return "bytes"


def test_langchain_embeds_with_its_length_check_off(embed_server: Process) -> None:
    from langchain_openai import OpenAIEmbeddings
    from pydantic import SecretStr

    embeddings = OpenAIEmbeddings(
        model=MODEL,
        openai_api_base=f"{embed_server.url}/v1",
        openai_api_key=SecretStr("none"),
        check_embedding_ctx_length=False,
    )
    vectors = embeddings.embed_documents(TEXTS)
    assert [len(vector) for vector in vectors] == [EMBEDDING_WIDTH] * 2
    assert np.allclose(embeddings.embed_query(TEXTS[0]), vectors[0], atol=1e-6)


def test_langchain_with_its_length_check_on_is_told_what_to_set(embed_server: Process, byte_tokens: str) -> None:
    from langchain_openai import OpenAIEmbeddings
    from pydantic import SecretStr

    embeddings = OpenAIEmbeddings(
        model=MODEL,
        openai_api_base=f"{embed_server.url}/v1",
        openai_api_key=SecretStr("none"),
        tiktoken_model_name=byte_tokens,
    )
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        embeddings.embed_documents(TEXTS)


# --- LlamaIndex ---


def test_llama_index_speaks_to_the_tei_routes(embed_server: Process) -> None:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    embeddings = TextEmbeddingsInference(
        model_name=MODEL, base_url=embed_server.url, text_instruction=" ", query_instruction=" ", timeout=30
    )
    vectors = embeddings.get_text_embedding_batch(TEXTS)
    assert [norm(vector) for vector in vectors] == pytest.approx([1, 1], abs=1e-5)
    assert np.allclose(embeddings.get_query_embedding(TEXTS[1]), vectors[1], atol=1e-6)


# --- curl ---


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "photo.jpg"
    path.write_bytes(PHOTO)
    return path


def test_curl_embeds_a_photo_in_every_form(embed_server: Process, photo: Path) -> None:
    url = f"{embed_server.url}/embed?condition=What+is+the+color+of+the+object%3F"
    answers = [
        curl(url, "-H", "Content-Type: image/jpeg", "--data-binary", f"@{photo}"),
        curl(url, "-F", f"file=@{photo}"),
        curl(url, "--json", json.dumps({"images": [PHOTO_URI]})),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200]
    data = [answer.json["data"] for answer in answers]
    assert data[0] == data[1] == data[2]
    assert data[0][0]["condition"] == COLOR
    assert norm(data[0][0]["embedding"]) == pytest.approx(1, abs=1e-5)


def test_curl_embeds_several_files_under_several_conditions(embed_server: Process, photo: Path) -> None:
    url = f"{embed_server.url}/embed?condition=color&condition=shape"
    answer = curl(url, "-F", f"file=@{photo}", "-F", f"file=@{photo}")
    assert answer.status == 200
    assert [entry["condition"] for entry in answer.json["data"]] == ["color", "shape"] * 2


def test_curl_without_a_content_type_is_told_what_to_add(embed_server: Process, photo: Path) -> None:
    answer = curl(f"{embed_server.url}/embed", "--data-binary", f"@{photo}")
    assert answer.status == 415
    assert "Content-Type: image/jpeg" in answer.json["error"]["message"]


# --- bare sockets ---


def exchange(server: Process, sent: bytes) -> bytes:
    """Send bytes, close the sending side, and return the whole answer."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_body_announced_far_over_the_limit_is_refused_before_it_is_sent(embed_server: Process) -> None:
    head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: {10**15}\r\n\r\n"
    answer = exchange(embed_server, head.encode())
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer


@pytest.mark.parametrize("content_type", ["image/jpeg", "application/json", "multipart/form-data; boundary=b"])
def test_bodies_that_break_off_harm_nobody(embed_server: Process, client: openai.OpenAI, content_type: str) -> None:
    head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: 5000\r\n\r\n"
    answer = exchange(embed_server, head.encode() + b"--b\r\n" + PHOTO[:200])
    assert not answer.startswith(b"HTTP/1.1 2")
    assert not answer.startswith(b"HTTP/1.1 5")
    assert client.embeddings.create(model=MODEL, input="still here").data
