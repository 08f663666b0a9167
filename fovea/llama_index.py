"""LlamaIndex: a retriever over a collection's images, and a query engine that answers from retrieved nodes."""

from collections.abc import Sequence
from typing import Any

from fovea.client import Client
from fovea.documents import AnyClient, QueryKind, asked, document, sync, text_of
from fovea.schemas import DocumentInput, GenerateAnswer, SearchResults

try:
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.response.schema import Response
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ModuleNotFoundError as missing:
    raise ImportError("fovea.llama_index needs LlamaIndex: pip install llama-index-core") from missing


class FoveaRetriever(BaseRetriever):
    """Finds the images of a collection that are nearest to a query, under a condition.

    A node has the image's id and metadata, and as its text the metadata's `text_field` or the id. `by="image"`, and a
    QueryBundle's `image_path`, read the file that a query names, so they are for queries that you trust.
    """

    def __init__(
        self,
        collection: str,
        *,
        client: AnyClient | None = None,
        condition: str | None = None,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
        model: str | None = None,
        by: QueryKind = "text",
        text_field: str | None = None,
    ) -> None:
        super().__init__()
        self._client = client or Client()
        self._collection = collection
        self._fields = {"condition": condition, "k": k, "filter": filter, "model": model}
        self._by = by
        self._text_field = text_field

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(sync(self._client).search(self._collection, **self._search_fields(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(await asked(self._client, "search", self._collection, **self._search_fields(query_bundle)))

    def _search_fields(self, bundle: QueryBundle) -> dict[str, Any]:
        query: dict[str, Any] = {"image": bundle.image_path} if bundle.image_path else {self._by: bundle.query_str}
        return {**self._fields, **query}

    def _nodes(self, found: SearchResults) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(id_=one["id"], text=text_of(one, self._text_field), metadata=one["metadata"]),
                score=one["score"],
            )
            for one in found["results"]
        ]


class FoveaQueryEngine(BaseQueryEngine):
    """Answers by `/generate`, from the nodes of any retriever.

    The response has these nodes as `source_nodes`, and as `metadata` the rest of the route's answer: `documents` with
    the attention of each, `citations` and so on. `options` are fields of `Client.generate`.
    """

    def __init__(self, retriever: BaseRetriever, *, client: AnyClient | None = None, **options: Any) -> None:
        super().__init__(callback_manager=None)
        self._retriever = retriever
        self._client = client or Client()
        self._options = {"citations": True, **options}

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the retriever's nodes."""
        return self._retriever.retrieve(query_bundle)

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> Response:
        """Answer from these nodes."""
        answer = sync(self._client).generate(query_bundle.query_str, _documents(nodes), **self._options)
        return _response(answer, [*nodes, *(additional_source_nodes or [])])

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> Response:
        """Answer from these nodes."""
        answer = await asked(self._client, "generate", query_bundle.query_str, _documents(nodes), **self._options)
        return _response(answer, [*nodes, *(additional_source_nodes or [])])

    def _query(self, query_bundle: QueryBundle) -> Response:
        return self.synthesize(query_bundle, self._retriever.retrieve(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return await self.asynthesize(query_bundle, await self._retriever.aretrieve(query_bundle))


def _documents(nodes: Sequence[NodeWithScore]) -> list[DocumentInput]:
    return [document(one.node.get_content(), one.node.node_id, one.node.metadata) for one in nodes]


def _response(answer: GenerateAnswer, nodes: list[NodeWithScore]) -> Response:
    metadata = {name: value for name, value in answer.items() if name != "answer"}
    return Response(answer["answer"], source_nodes=nodes, metadata=metadata)
