"""Reranking by the clients that people really use, through the gateway."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import pytest
import requests

from tests.contract.curl import curl
from tests.contract.generate_processes import running_system
from tests.contract.served_system import System
from tests.core.image_files import encode, scene
from tests.generate.served_tiny import MODEL, publish_tiny
from tests.published_rerankers import QWEN3_RERANKER, QWEN3_VL_RERANKER, RERANKERS, import_rerankers

QUERY = "who kept the lighthouse?"
DOCUMENTS = [
    "The harbour was built by the people of the island.",
    "The keeper of the lighthouse was called Ada.",
    "The people fished and traded with the mainland.",
    "It was built in the year 1931.",
]
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "generate.md"
METHODS = ["calibrated", "attention", "query_likelihood", "relevance_prompt"]


@pytest.fixture(scope="module")
def generate_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("generate")) as system:
        yield system


@pytest.fixture(scope="module")
def expected(generate_system: System) -> list[dict[str, Any]]:
    """Return the service's own answer to the tests' query."""
    body = {"query": QUERY, "documents": DOCUMENTS, "return_documents": False}
    answer = requests.post(f"{generate_system.service.url}/v1/rerank", json=body, timeout=30)
    results: list[dict[str, Any]] = answer.json()["results"]
    assert sorted(result["index"] for result in results) == [0, 1, 2, 3]
    return results


def indices(results: list[dict[str, Any]]) -> list[int]:
    return [result["index"] for result in results]


def scores(results: list[dict[str, Any]]) -> list[float]:
    return [result["relevance_score"] for result in results]


# --- Cohere ---


@pytest.fixture(scope="module")
def connections() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def cohere_v2(generate_system: System, connections: httpx.Client) -> cohere.ClientV2:
    return cohere.ClientV2(api_key="none", base_url=generate_system.gateway.url, httpx_client=connections)


@pytest.fixture(scope="module")
def cohere_v1(generate_system: System, connections: httpx.Client) -> cohere.Client:
    return cohere.Client(api_key="none", base_url=generate_system.gateway.url, httpx_client=connections)


def test_cohere_v2_gets_the_best_first_and_no_documents(cohere_v2: cohere.ClientV2, expected: list[Any]) -> None:
    answer = cohere_v2.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [result.index for result in answer.results] == indices(expected)[:2]
    assert [result.relevance_score for result in answer.results] == scores(expected)[:2]
    assert not hasattr(answer.results[0], "document")
    assert answer.id
    assert answer.meta is not None
    assert answer.meta.api_version is not None
    assert answer.meta.api_version.version == "2"
    assert answer.meta.billed_units is not None
    assert answer.meta.billed_units.search_units == 1


def test_cohere_v2_is_told_which_documents_its_limit_cut(cohere_v2: cohere.ClientV2) -> None:
    long = "lighthouse " * 200
    whole = cohere_v2.rerank(model=MODEL, query=QUERY, documents=[DOCUMENTS[0], long])
    assert whole.meta is not None
    assert whole.meta.warnings is None
    cut = cohere_v2.rerank(model=MODEL, query=QUERY, documents=[DOCUMENTS[0], long], max_tokens_per_doc=60)
    assert cut.meta is not None
    assert cut.meta.warnings is not None
    (warning,) = cut.meta.warnings
    assert "60 tokens" in warning
    assert warning.endswith("document 1.")


def test_cohere_v2_raises_its_own_errors(cohere_v2: cohere.ClientV2) -> None:
    with pytest.raises(cohere.NotFoundError):
        cohere_v2.rerank(model="rerank-v3.5", query=QUERY, documents=DOCUMENTS)
    with pytest.raises(cohere.BadRequestError):
        cohere_v2.rerank(model=MODEL, query=QUERY, documents=[])


@pytest.mark.parametrize("method", METHODS)
def test_cohere_v2_chooses_the_method_by_an_extra_field(cohere_v2: cohere.ClientV2, method: str) -> None:
    answer = cohere_v2.rerank(
        model=MODEL,
        query=QUERY,
        documents=DOCUMENTS,
        request_options={"additional_body_parameters": {"method": method}},
    )
    found = [result.relevance_score for result in answer.results]
    assert found == sorted(found, reverse=True)
    assert all(0 <= score <= 1 for score in found)
    assert sorted(result.index for result in answer.results) == [0, 1, 2, 3]


def test_cohere_v1_gets_its_documents_back(cohere_v1: cohere.Client, expected: list[Any]) -> None:
    documents: Any = [{"text": text, "page": str(number)} for number, text in enumerate(DOCUMENTS)]
    answer = cohere_v1.rerank(model=MODEL, query=QUERY, documents=documents, return_documents=True)
    assert [result.index for result in answer.results] == indices(expected)
    for result in answer.results:
        assert result.document is not None
        assert result.document.text == DOCUMENTS[result.index]
        assert result.document.model_dump()["page"] == str(result.index)


# --- published rerankers ---


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("rerankers")
    store_url = publish_tiny(folder)
    served = ",".join(import_rerankers(folder, store_url))
    with running_system(folder, FOVEA_STORE_URL=store_url, FOVEA_GENERATE_MODELS=served) as system:
        yield system


@pytest.mark.parametrize("name", [name.lower() for name in RERANKERS])
def test_cohere_jinas_and_teis_clients_get_one_answer_of_a_reranker(
    rerankers: System, connections: httpx.Client, name: str
) -> None:
    url = rerankers.gateway.url
    client = cohere.ClientV2(api_key="none", base_url=url, httpx_client=connections)
    answer = client.rerank(model=name, query=QUERY, documents=DOCUMENTS, top_n=3)
    told = [(str(result.index), result.relevance_score) for result in answer.results]
    assert len({score for _, score in told}) == 3

    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    jina = JinaRerank(top_n=3, model=name, base_url=f"{url}/v1", api_key="none")
    assert [(node.node.node_id, node.score) for node in jina.postprocess_nodes(nodes(), query_str=QUERY)] == told
    tei = curl(f"{url}/rerank", "--json", json.dumps({"query": QUERY, "texts": DOCUMENTS, "model": name})).json
    assert [(str(one["index"]), one["score"]) for one in tei][:3] == told


def test_coheres_client_gives_a_reranker_an_instruction_by_an_extra_field(
    rerankers: System, connections: httpx.Client
) -> None:
    client = cohere.ClientV2(api_key="none", base_url=rerankers.gateway.url, httpx_client=connections)

    def ranked(model: str, instruct: str) -> set[float]:
        answer = client.rerank(
            model=model.lower(),
            query=QUERY,
            documents=DOCUMENTS,
            request_options={"additional_body_parameters": {"instruct": instruct}},
        )
        return {result.relevance_score for result in answer.results}

    assert not ranked(QWEN3_RERANKER, "Find ships.") & ranked(QWEN3_RERANKER, "Find who built what.")
    with pytest.raises(cohere.BadRequestError, match="ranks without instructions"):
        ranked("bge-reranker-base", "Find ships.")


def test_the_guides_example_ranks_by_a_published_reranker(rerankers: System) -> None:
    (program,) = re.findall(r'^```python title="rerank.py"\n(.*?)^```', GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    program = program.replace("http://127.0.0.1:8080", rerankers.gateway.url)
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert sorted(line.split()[0] for line in printed.splitlines()) == ["0", "1"]


def test_the_guides_example_ranks_images(rerankers: System, tmp_path: Path) -> None:
    title = "rerank_images.py"
    (program,) = re.findall(rf'^```python title="{title}"\n(.*?)^```', GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    program = program.replace("http://127.0.0.1:8080", rerankers.gateway.url)
    (tmp_path / "lighthouse.jpg").write_bytes(encode(scene(), "JPEG"))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["0", "1", "2"]


def test_jinas_and_vllms_bodies_with_images_get_one_answer(rerankers: System) -> None:
    image = base64.b64encode(encode(scene(), "PNG")).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    jina = {"query": QUERY, "documents": [{"text": DOCUMENTS[0]}, {"image": image}], "return_documents": False}
    parts = [{"content": [{"type": "text", "text": DOCUMENTS[0]}]}, {"content": [part]}]
    vllm = {"query": {"content": [{"type": "text", "text": QUERY}]}, "documents": parts, "top_n": 2}
    told = []
    for path, body in (("/v1/rerank", jina), ("/rerank", vllm), ("/v1/rerank", vllm), ("/v2/rerank", vllm)):
        sent = json.dumps({"model": QWEN3_VL_RERANKER.lower(), **body})
        answer = curl(f"{rerankers.gateway.url}{path}", "--json", sent)
        assert answer.status == 200, answer
        told.append([(one["index"], one["relevance_score"]) for one in answer.json["results"]])
    assert told[1:] == told[:1] * 3
    refused = curl(
        f"{rerankers.gateway.url}/v1/rerank", "--json", json.dumps({**jina, "model": QWEN3_RERANKER.lower()})
    )
    assert (refused.status, refused.json["error"]["param"]) == (400, "documents.1.image")
    assert "which reads text only" in refused.json["detail"]


def test_haystack_ranks_texts_by_a_reranker_of_images(
    rerankers: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    monkeypatch.setenv("HOME", str(tmp_path))
    from haystack import Document
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.jina import JinaRanker

    url, model = f"{rerankers.gateway.url}/v1/rerank", QWEN3_VL_RERANKER.lower()
    ranker = JinaRanker(model=model, api_key=Secret.from_token("none"), base_url=url)
    found = ranker.run(query=QUERY, documents=[Document(content=text) for text in DOCUMENTS])["documents"]
    sent = json.dumps({"model": model, "query": QUERY, "documents": DOCUMENTS})
    expected = curl(url, "--json", sent).json["results"]
    assert [(one.content, one.score) for one in found] == [
        (one["document"]["text"], one["relevance_score"]) for one in expected
    ]


def test_a_reranker_asked_to_chat_raises_the_clients_own_error(rerankers: System) -> None:
    import openai

    client = openai.OpenAI(api_key="none", base_url=f"{rerankers.gateway.url}/v1", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="which only ranks documents"):
        client.chat.completions.create(
            model=next(iter(RERANKERS)).lower(), messages=[{"role": "user", "content": QUERY}]
        )


# --- LangChain ---


def test_langchain_compresses_documents(generate_system: System, expected: list[Any]) -> None:
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document
    from pydantic import SecretStr

    reranker = CohereRerank(
        model=MODEL, cohere_api_key=SecretStr("none"), base_url=generate_system.gateway.url, top_n=3
    )
    documents = [Document(text, metadata={"number": number}) for number, text in enumerate(DOCUMENTS)]
    found = reranker.compress_documents(documents, QUERY)
    assert [document.metadata["number"] for document in found] == indices(expected)[:3]
    assert [document.metadata["relevance_score"] for document in found] == scores(expected)[:3]


# --- LlamaIndex ---


def nodes() -> list[Any]:
    from llama_index.core.schema import NodeWithScore, TextNode

    return [NodeWithScore(node=TextNode(text=text, id_=str(i)), score=0.5) for i, text in enumerate(DOCUMENTS)]


def test_llama_index_speaks_jina(generate_system: System, expected: list[Any]) -> None:
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    reranker = JinaRerank(top_n=3, model=MODEL, base_url=f"{generate_system.gateway.url}/v1", api_key="none")
    found = reranker.postprocess_nodes(nodes(), query_str=QUERY)
    assert [node.node.node_id for node in found] == [str(index) for index in indices(expected)[:3]]
    assert [node.score for node in found] == scores(expected)[:3]


def test_llama_index_shows_its_user_what_is_wrong(generate_system: System) -> None:
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    reranker = JinaRerank(
        model="jina-reranker-v1-base-en", base_url=f"{generate_system.gateway.url}/v1", api_key="none"
    )
    with pytest.raises(RuntimeError, match="jina-reranker-v1-base-en"):
        reranker.postprocess_nodes(nodes(), query_str=QUERY)


def test_llama_index_speaks_tei(generate_system: System, expected: list[Any]) -> None:
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    reranker = TextEmbeddingInference(top_n=2, base_url=generate_system.gateway.url, auth_token="none")
    found = reranker.postprocess_nodes(nodes(), query_str=QUERY)
    assert [node.node.node_id for node in found] == [str(index) for index in indices(expected)[:2]]
    assert [node.score for node in found] == scores(expected)[:2]


# --- Haystack ---


@pytest.fixture
def haystack_ranker(generate_system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    monkeypatch.setenv("HOME", str(tmp_path))
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.jina import JinaRanker

    return lambda model: JinaRanker(
        model=model, api_key=Secret.from_token("none"), base_url=f"{generate_system.gateway.url}/v1/rerank"
    )


def test_haystack_ranks_documents(haystack_ranker: Any, expected: list[Any]) -> None:
    from haystack import Document

    documents = [Document(content=text, id=str(number)) for number, text in enumerate(DOCUMENTS)]
    answer = haystack_ranker(MODEL).run(query=QUERY, documents=documents, top_k=3)
    assert [document.id for document in answer["documents"]] == [str(index) for index in indices(expected)[:3]]
    assert [document.score for document in answer["documents"]] == scores(expected)[:3]
    assert answer["meta"]["model"].startswith(f"{MODEL}@")
    assert answer["meta"]["usage"]["total_tokens"] > 0


def test_haystack_shows_its_user_what_is_wrong(haystack_ranker: Any) -> None:
    from haystack import Document

    with pytest.raises(RuntimeError, match="jina-reranker-v1-base-en"):
        haystack_ranker("jina-reranker-v1-base-en").run(query=QUERY, documents=[Document(content="a")])


def test_the_guide_tells_each_client_the_address_that_it_is_given_here() -> None:
    guide = GUIDE.read_text()
    rows = dict(re.findall(r"^\| (.+) \| `http://127\.0\.0\.1:8080([^`]*)`", guide, re.MULTILINE))
    assert {path for clients, path in rows.items() if "JinaRanker" in clients} == {"/v1/rerank"}
    assert {path for clients, path in rows.items() if "JinaRerank" in clients} == {"/v1"}
    assert {path for clients, path in rows.items() if "CohereRerank" in clients} == {""}


# --- bare HTTP ---


def test_every_spelling_of_the_path_gives_one_answer(generate_system: System, expected: list[Any]) -> None:
    body = json.dumps({"query": QUERY, "documents": DOCUMENTS, "return_documents": False})
    for path in ("/rerank", "/v1/rerank"):
        answer = curl(f"{generate_system.gateway.url}{path}", "--json", body)
        assert (answer.status, answer.json["results"]) == (200, expected)
    answer = curl(f"{generate_system.gateway.url}/rerank", "--json", json.dumps({"query": QUERY, "texts": DOCUMENTS}))
    assert [(one["index"], one["score"]) for one in answer.json] == list(
        zip(indices(expected), scores(expected), strict=True)
    )


def test_tei_reads_errors_in_its_own_form(generate_system: System) -> None:
    answer = curl(f"{generate_system.gateway.url}/rerank", "--json", json.dumps({"query": QUERY, "texts": 1}))
    assert answer.status == 422
    assert answer.json["error_type"] == "Validation"
    assert "texts" in answer.json["error"]
