"""Retrievers and generators of frameworks before a running Fovea."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from haystack import Document, Pipeline
from langchain_core.documents import Document as LangChainDocument
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from fovea import AsyncClient, Client, haystack, langchain, llama_index
from tests.contract.running_fovea import running_fovea
from tests.documentation.blocks import ROOT

IMAGES = ROOT / "docs" / "images"
RED_STAR = str(IMAGES / "red-star.jpg")
COLOR = "What is the color of the object?"
SHAPE = "What is the shape of the object?"
QUESTION = "What is the pet of Belan Ashford?"
TEXTS = ["Corin Blackwood owns the golden parrot.", "Belan Ashford owns the quiet otter."]
PICTURES: dict[str, dict[str, Any]] = {
    "red-circle": {"caption": TEXTS[0], "seen": 1},
    "blue-star": {"caption": TEXTS[1], "seen": 2},
}

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_fovea(tmp_path_factory.mktemp("frameworks"), "embed", "generate") as fovea:
        with Client(fovea.url) as client:
            client.create_collection("shapes", conditions=[COLOR, SHAPE])
            images = [{"id": id, "image": IMAGES / f"{id}.jpg", "metadata": PICTURES[id]} for id in PICTURES]
            client.add_images("shapes", images, wait=True)  # type: ignore[arg-type]
        yield fovea.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.mark.parametrize("framework", ["langchain", "llama_index", "haystack"])
def test_a_framework_that_is_not_installed_is_named_with_its_package(framework: str) -> None:
    package = {"langchain": "langchain-core", "llama_index": "llama-index-core", "haystack": "haystack-ai"}[framework]
    roots = ["langchain_core", "llama_index", "haystack"]
    program = f"import sys; sys.modules.update(dict.fromkeys({roots})); import fovea; import fovea.{framework}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(f"pip install {package}")


# --- LangChain ---


def ids(documents: list[LangChainDocument]) -> list[str | None]:
    return [document.id for document in documents]


async def test_langchain_finds_images_under_a_condition_which_a_query_may_change(url: str, client: Client) -> None:
    retriever = langchain.FoveaRetriever(client=client, collection="shapes", condition=COLOR, by="image", k=1)
    (found,) = retriever.invoke(RED_STAR)
    score = found.metadata.pop("score")
    assert (found.id, found.page_content, found.metadata) == ("red-circle", "red-circle", PICTURES["red-circle"])
    assert score == client.search("shapes", image=RED_STAR, condition=COLOR)["results"][0]["score"]
    assert ids(retriever.invoke(RED_STAR, condition=SHAPE)) == ["blue-star"]
    assert ids(retriever.bind(filter={"seen": {"$gte": 2}}).invoke(RED_STAR)) == ["blue-star"]
    assert ids(retriever.model_copy(update={"by": "id"}).invoke("blue-star")) == ["red-circle"]
    assert len(langchain.FoveaRetriever(client=client, collection="shapes").invoke("a star")) == 2
    assert ids(await retriever.ainvoke(RED_STAR, condition=SHAPE)) == ["blue-star"]
    async with AsyncClient(url) as asynchronous:
        retriever.client = asynchronous
        assert ids(await retriever.ainvoke(RED_STAR, condition=SHAPE)) == ["blue-star"]
        with pytest.raises(TypeError, match="AsyncClient"):
            retriever.invoke(RED_STAR)


async def test_langchain_answers_from_the_documents_of_a_retriever_whole_and_streamed(url: str, client: Client) -> None:
    documents = [LangChainDocument(TEXTS[0]), LangChainDocument(TEXTS[1], id="b", metadata={"title": "Pets"})]
    given: dict[str, Any] = {"question": RunnablePassthrough(), "documents": RunnableLambda(lambda _: documents)}
    chain = given | langchain.FoveaGenerator(client)
    given_to_client = [{"text": TEXTS[0]}, {"text": TEXTS[1], "title": "Pets", "id": "b"}]
    expected = client.generate(QUESTION, given_to_client, citations=True)  # type: ignore[arg-type]
    answer = chain.invoke(QUESTION)
    assert answer.keys() == expected.keys()
    assert [one["id"] for one in answer["documents"]] == [None, "b"]
    attention = [one["attention"] for one in expected["documents"]]
    assert [one["attention"] for one in answer["documents"]] == pytest.approx(attention, rel=1e-3)
    assert [one["documents"][0]["index"] for one in answer["citations"]] == [1]
    *deltas, end = chain.stream(QUESTION)
    assert len(deltas) > 1
    assert "".join(one["answer"] for one in deltas) == "quiet otter"
    assert end["citations"] == answer["citations"]
    assert (await chain.ainvoke(QUESTION))["answer"] == answer["answer"]
    async with AsyncClient(url) as asynchronous:
        chain = given | langchain.FoveaGenerator(asynchronous, citations=False, max_tokens=1)
        short = await chain.ainvoke(QUESTION)
        assert (short["finish_reason"], short["citations"]) == ("length", None)
    with pytest.raises(ValueError, match="question"):
        langchain.FoveaGenerator(client).invoke({"query": QUESTION})


def test_langchain_answers_from_the_captions_of_images_that_it_finds(client: Client) -> None:
    retriever = langchain.FoveaRetriever(client=client, collection="shapes", text_field="caption")
    chain = {"question": RunnablePassthrough(), "documents": retriever} | langchain.FoveaGenerator(client)
    assert chain.invoke(QUESTION)["answer"] == "quiet otter"


# --- LlamaIndex ---


class Texts(BaseRetriever):  # such as a vector index's
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(id_=f"text-{i}", text=text), score=0.5) for i, text in enumerate(TEXTS)]


async def test_llama_index_finds_images_under_a_condition(url: str, client: Client) -> None:
    retriever = llama_index.FoveaRetriever("shapes", client=client, condition=COLOR, by="image", k=1)
    (found,) = retriever.retrieve(RED_STAR)
    assert (found.node.node_id, found.text, found.metadata) == ("red-circle", "red-circle", PICTURES["red-circle"])
    assert found.score == client.search("shapes", image=RED_STAR, condition=COLOR)["results"][0]["score"]
    retriever = llama_index.FoveaRetriever("shapes", client=client, filter={"seen": 2}, text_field="caption")
    assert [node.text for node in retriever.retrieve(QueryBundle("", image_path=RED_STAR))] == [TEXTS[1]]
    assert [node.text for node in await retriever.aretrieve("a circle")] == [TEXTS[1]]
    async with AsyncClient(url) as asynchronous:
        retriever = llama_index.FoveaRetriever("shapes", client=asynchronous, condition=SHAPE, by="id")
        assert [node.node_id for node in await retriever.aretrieve("blue-star")] == ["red-circle"]
        with pytest.raises(TypeError, match="AsyncClient"):
            retriever.retrieve("blue-star")


async def test_llama_index_answers_from_the_nodes_of_a_retriever_with_citations(url: str, client: Client) -> None:
    engine = llama_index.FoveaQueryEngine(Texts(), client=client)
    answer = engine.query(QUESTION)
    assert str(answer) == "quiet otter"
    assert [node.node_id for node in answer.source_nodes] == ["text-0", "text-1"]
    assert answer.metadata is not None
    assert [one["id"] for one in answer.metadata["documents"]] == ["text-0", "text-1"]
    assert [one["documents"][0]["index"] for one in answer.metadata["citations"]] == [1]
    nodes = engine.retrieve(QueryBundle(QUESTION))
    answer = engine.synthesize(QueryBundle(QUESTION), nodes[1:], additional_source_nodes=nodes[:1])
    assert (str(answer), len(answer.source_nodes)) == ("quiet otter", 2)
    async with AsyncClient(url) as asynchronous:
        images = llama_index.FoveaRetriever("shapes", client=asynchronous, text_field="caption")
        engine = llama_index.FoveaQueryEngine(images, client=asynchronous, citations=False)
        answer = await engine.aquery(QUESTION)
        assert str(answer) == "quiet otter"
        assert answer.metadata is not None
        assert answer.metadata["citations"] is None


# --- Haystack ---


def test_haystack_finds_images_under_a_condition_which_a_query_may_change(url: str, client: Client) -> None:
    retriever = haystack.FoveaRetriever("shapes", base_url=url, condition=COLOR, by="image", k=1)
    (found,) = retriever.run(query=RED_STAR)["documents"]
    assert (found.id, found.content, found.meta) == ("red-circle", "red-circle", PICTURES["red-circle"])
    assert found.score == client.search("shapes", image=RED_STAR, condition=COLOR)["results"][0]["score"]
    assert [one.id for one in retriever.run(query=RED_STAR, condition=SHAPE)["documents"]] == ["blue-star"]
    assert [one.id for one in retriever.run(query=RED_STAR, filter={"seen": 2})["documents"]] == ["blue-star"]
    assert len(retriever.run(query=RED_STAR, k=2)["documents"]) == 2
    retriever.close()


@pytest.mark.parametrize("options", [None, {"citations": False}])
def test_a_haystack_pipeline_answers_from_captions_also_after_it_was_saved(
    url: str, options: dict[str, Any] | None
) -> None:
    pipeline = Pipeline()
    pipeline.add_component("images", haystack.FoveaRetriever("shapes", base_url=url, text_field="caption"))
    pipeline.add_component("answer", haystack.FoveaGenerator(base_url=url, options=options))
    pipeline.connect("images.documents", "answer.documents")
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["fovea.haystack"])
    (answer,) = loaded.run({"images": {"query": QUESTION}, "answer": {"query": QUESTION}})["answer"]["answers"]
    assert (answer.data, answer.query) == ("quiet otter", QUESTION)
    assert sorted(one.content for one in answer.documents) == sorted(TEXTS)
    assert [one["id"] for one in answer.meta["documents"]] == [one.id for one in answer.documents]
    cited = answer.meta["citations"] and answer.meta["citations"][0]["documents"][0]["index"]
    assert options or answer.documents[cited].content == TEXTS[1]
    loaded.close()
    pipeline.close()


def test_haystack_answers_from_the_documents_that_have_text(url: str) -> None:
    generator = haystack.FoveaGenerator(base_url=url)
    documents = [Document(id="image"), *(Document(content=text) for text in TEXTS)]
    (answer,) = generator.run(query=QUESTION, documents=documents)["answers"]
    assert answer.documents == documents[1:]
    assert answer.meta["citations"][0]["documents"][0]["index"] == 1
    generator.close()
